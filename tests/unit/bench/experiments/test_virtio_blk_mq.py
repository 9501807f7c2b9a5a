"""The first published experiment: its data, its cells, its reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vringd.bench.experiments import html, text
from vringd.bench.experiments.cells import Backend, Experiment, Plan
from vringd.bench.experiments.noise import noise_of
from vringd.bench.experiments.placement import PINNINGS, place
from vringd.bench.experiments.published import load
from vringd.bench.experiments.registry import EXPERIMENTS
from vringd.bench.experiments.running import Outcome
from vringd.bench.experiments.virtio_blk_mq import NAME, experiment
from vringd.bench.lab.errors import UsageError
from vringd.bench.lab.host import Host
from vringd.bench.lab.rounds import Results
from vringd.bench.lab.samples import Sample

MIB = 1 << 20
HOST = Host("a CPU", "x86_64", (0, 1, 2, 3), 4, 1, 8 << 30, "6.1", "", "", {})


def plan(cpus: int = 4) -> Plan:
    return Plan(1.0, tuple(range(cpus)), [Backend("disk", "null-co,size=1G", "for a test")])


@pytest.fixture
def plots() -> None:
    """What reports with plots need; the sanitizers' environments have none of it."""
    for name in ("matplotlib", "jinja2"):
        pytest.importorskip(name, reason=f"no {name}: install vringd[report]")


def outcome(made: Experiment, *, failed: str = "") -> Outcome:
    """As if each cell of n threads had read n * 100 and written n * 50 MB/s."""
    results = Results()
    for cell in made.unique():
        for number in (1, 2, 3):
            results.samples.append(
                Sample(
                    cell.key,
                    "vringd",
                    number,
                    error="died of cold <b>" if cell.label == failed else "",
                    iops=1000.0 * cell.threads,
                    requests=10,
                    read_bytes=(cell.threads * 100.0 + number) * MIB,
                    write_bytes=cell.threads * 50.0 * MIB,
                    p50_ns=20_000,
                    p99_ns=90_000,
                    cpu_us=2.5,
                    client_us=1.5,
                )
            )
    noise = noise_of([100.0, 102.0], [104.0, 98.0])
    return Outcome(made, HOST, ["vringd"], 3, 1.0, 0.0, results, noise, complete=True)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_published_data_are_whole(name: str) -> None:
    publication = load(name)
    assert publication.author
    assert publication.source
    for series in publication.series:
        assert series.pinning in PINNINGS
        for figures in series.figures.values():
            assert list(figures) == series.cells
            assert all(value > 0 for value in figures.values())


def test_published_figures_are_those_of_the_mailing_list() -> None:
    series = {each.id: each for each in load(NAME).series}
    assert series["8-jobs"].figures["read"]["4 thr 4 mq"] == 2187
    assert series["8-jobs"].figures["write"]["8 thr 8 mq"] == 1378
    assert series["8-jobs-one-to-one"].figures["read"]["1 thr 4 mq"] == 969
    assert series["4-jobs-halves"].figures["read"]["2 thr 2 mq"] == 1792
    assert sum(len(each.cells) for each in series.values()) == 3 * 7 + 3 * 5


def test_cells_have_the_threads_queues_and_jobs_that_were_published() -> None:
    for cell in experiment(plan()).cells:
        match = re.fullmatch(r"(\d+) thr (\d+) mq", cell.label)
        assert match is not None
        assert (cell.setup.threads, cell.setup.queues) == (int(match[1]), int(match[2]))
        (spec,) = cell.job.specs()
        assert spec.numjobs == cell.jobs
        assert (spec.iodepth, spec.batch_submit, spec.batch_complete_min) == (64, 64, 64)
        assert spec.run_length == 2
        assert not spec.gtod_reduce


def test_what_comes_to_the_same_is_measured_once() -> None:
    made = experiment(plan())
    assert len(made.cells) == 36
    assert len(made.unique()) == 36 - 7


def test_jobs_and_threads_are_pinned_one_to_one() -> None:
    found = place("one-to-one", (4, 5, 6), threads=4)
    assert found.thread_cpus == ((4,), (5,), (6,), (4,))
    assert found.job_words() == ("--cpus_allowed=4,5,6", "--cpus_allowed_policy=split")


def test_halves_are_apart() -> None:
    found = place("halves-one-to-one", (0, 1, 2, 3), threads=3)
    assert found.job_cpus == (0, 1)
    assert found.server_cpus == (2, 3)
    assert found.thread_cpus == ((2,), (3,), (2,))
    loose = place("halves", (0, 1, 2, 3), threads=2)
    assert loose.thread_cpus == ((2, 3), (2, 3))
    assert not loose.split


def test_one_cpu_serves_as_both_halves_and_that_is_told() -> None:
    found = place("halves", (3,), threads=2)
    assert found.job_cpus == found.server_cpus == (3,)
    assert "one CPU" in found.note


def test_unpinned_runs_anywhere() -> None:
    for pinning in ("none", "jobs"):
        found = place(pinning, (0, 1), threads=2)
        assert (found.server_cpus, found.thread_cpus, found.job_words()) == ((), (), ())


def test_cells_that_ask_for_more_threads_than_cpus_are_marked() -> None:
    cells = {cell.key: cell for cell in experiment(plan()).cells}
    crowded = {cell.jobs + cell.threads for cell in cells.values() if cell.crowded(10)}
    assert crowded == {12, 16}


def test_only_chosen_cells_are_measured() -> None:
    made = experiment(plan()).only(["8-jobs/2 thr*", "4-jobs-halves/*"])
    assert {cell.series for cell in made.cells} == {"8-jobs", "4-jobs-halves"}
    assert len(made.cells) == 6
    with pytest.raises(UsageError, match=r"--cells nothing: matches none of"):
        experiment(plan()).only(["nothing"])


def test_noise_is_told_by_medians_and_by_spread() -> None:
    noise = noise_of([100.0, 100.0, 100.0], [110.0, 90.0, 110.0])
    assert noise.difference == pytest.approx(10 / 105)
    assert noise.spread == pytest.approx(0.2)
    assert noise.count == 6
    assert "not measured" in noise_of([], []).describe()


def test_text_shows_published_beside_measured() -> None:
    told = text.report(outcome(experiment(plan())))
    block = told[told.index("### 8 jobs, nothing pinned (reads") :].splitlines()
    rows = {
        cells[0]: cells[1:]
        for line in block[2:11]
        if (cells := [cell.strip() for cell in line.split("|")[1:-1]])
    }
    assert rows["4 thr 4 mq"] == [
        *("8+4/4*", "2187", "1.79", "402 [401-403]", "3.94", "90 µs", "2.50+1.50 µs")
    ]
    assert "mitigations: none needed" in told
    assert "medians differ by" in told
    assert "own limit was not measured" in told
    assert "FAILED" not in told


@pytest.mark.usefixtures("plots")
def test_html_stands_alone_and_is_well_formed() -> None:
    page = html.report(outcome(experiment(plan())))
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", page)
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 6
    for plot in plots:
        root = ElementTree.fromstring(plot)
        words = "".join(root.itertext())
        for wanted in ("published", "p99", "CPU time for each request", "relative to 1 thr 1 mq"):
            assert wanted in words
    assert "2187" in page
    assert "402 [401-403]" in page


@pytest.mark.usefixtures("plots")
def test_failed_cells_are_told_and_escaped() -> None:
    done = outcome(experiment(plan()), failed="2 thr 2 mq")
    page = html.report(done)
    assert "died of cold &lt;b&gt;" in page
    told = text.report(done)
    assert "FAILED" in told
    assert "| failed" in told


def test_json_has_what_is_needed_to_repeat_it(tmp_path: Path) -> None:
    done = outcome(experiment(plan()))
    done.write(tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    keys = {cell["key"] for cell in document["cells"]}
    assert {sample["cell"] for sample in document["samples"]} == keys
    for cell in document["cells"]:
        assert cell["fio"][0] == "--name=job"
        assert cell["disk"] == "null-co,size=1G"
    assert document["host"]["kernel"] == "6.1"
    assert document["noise"]["count"] == 4
