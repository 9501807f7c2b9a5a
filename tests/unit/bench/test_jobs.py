"""fio's language: values, options, job files, and how jobs fall into stages and groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from vringd.bench import jobfile, values
from vringd.bench.errors import JobOptionError
from vringd.bench.options import make_job
from vringd.bench.planning import cpus_of, groups, stages
from vringd.bench.spec import BlockSizes, JobSpec
from vringd.bench.target import queue_of_job


def job(name: str = "j", /, **options: str) -> JobSpec:
    return make_job(name, options)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("4k", 4096), ("4K", 4096), ("1m", 1 << 20), ("2GiB", 2 << 30), ("512b", 512)],
)
def test_sizes(text: str, expected: int) -> None:
    assert values.size(text) == expected


@pytest.mark.parametrize("text", ["", "k", "4x", "-1", "1.5k"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        values.size(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("10", 10), ("500ms", 0.5), ("2m", 120), ("1.5", 1.5), ("100us", 1e-4)]
)
def test_times(text: str, expected: float) -> None:
    assert values.seconds(text) == pytest.approx(expected)


def test_published_block_size_split_is_understood() -> None:
    sizes = values.block_splits("512/20:1k/16:2k/9:4k/12:8k/19:16k/10:32k/8:64k/4")
    assert (sizes.least, sizes.most) == (512, 65536)
    assert sum(share for _, share in sizes.splits) == 100


def test_splits_without_percentage_share_the_rest() -> None:
    assert values.block_splits("4k/50:8k:16k").splits == ((4096, 50), (8192, 25), (16384, 25))


def test_last_size_has_what_is_left_to_a_hundred() -> None:
    assert values.block_splits("4k/50:8k/40").splits == ((4096, 50), (8192, 50))


def test_splits_of_more_than_a_hundred_are_refused() -> None:
    with pytest.raises(ValueError, match="make 110, more than 100"):
        values.block_splits("4k/50:8k/60")


@pytest.mark.parametrize("text", ["4k", "8k-4k", "4k-100"])
def test_bad_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|multiple"):
        values.block_range(text)


@pytest.mark.parametrize(
    ("text", "directions", "random"),
    [
        ("read", {"read"}, False),
        ("randwrite", {"write"}, True),
        ("rw", {"read", "write"}, False),
        ("readwrite", {"read", "write"}, False),
        ("randrw", {"read", "write"}, True),
        ("randtrim", {"trim"}, True),
    ],
)
def test_modes(text: str, directions: set[str], random: bool) -> None:
    spec = job(rw=text)
    assert (spec.directions, spec.random) == (directions, random)


def test_mode_with_a_number() -> None:
    assert job(rw="randrw:2").run_length == 2
    assert job(rw="read:8k").skip == 8192


def test_sizes_for_each_direction() -> None:
    spec = job(bs="4k,8k")
    assert spec.sizes["read"] == BlockSizes(4096, 4096)
    assert spec.sizes["write"] == BlockSizes(8192, 8192)
    assert spec.sizes["trim"] == BlockSizes(8192, 8192)


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(JobOptionError, match="unknown option 'iodpeth'; did you mean 'iodepth'"):
        job(iodpeth="4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rw": "sideways"}, "rw=sideways: not one of"),
        ({"bs": "100"}, "bs=100: not a multiple of 512"),
        ({"iodepth": "0"}, "must be 1 or more"),
        ({"rwmixread": "101"}, "percentage"),
        ({"cpus_allowed": "a"}, "list of CPUs"),
        ({"time_based": "1"}, "time_based needs runtime"),
        ({"verify": "md5"}, "only crc32c"),
        ({"verify": "crc32c", "rw": "trim"}, "exclude each other"),
        ({"random_distribution": "pareto:1"}, "random or zipf"),
        ({"random_distribution": "zipf:1"}, "theta"),
        ({"iodepth": "4", "iodepth_batch_submit": "8"}, "more than iodepth=4"),
    ],
)
def test_values_that_make_no_sense_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(JobOptionError, match=message):
        make_job("j", options)


def test_options_for_files_are_accepted_without_effect() -> None:
    spec, ignored = make_job("j", {"ioengine": "libaio", "direct": "1", "rw": "randread"})
    assert ignored == ["ioengine", "direct"]
    assert spec.random


def test_job_file(tmp_path: Path) -> None:
    path = tmp_path / "x.fio"
    path.write_text(
        "; a comment\n[global]\nbs=${SIZE}\ntime_based\n\n# another\n[a]\nrw=read\n"
        "[global]\niodepth=7\n[b]\nbs=8k\n"
    )
    sections = jobfile.read_file(path, {"SIZE": "4k"})
    assert sections == [
        ("a", {"bs": "4k", "time_based": "", "rw": "read"}),
        ("b", {"time_based": "", "iodepth": "7", "bs": "8k"}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rw=read\n", "before the first section"),
        ("[a\n", "not a section"),
        ("[a]\nx=${NO}\n", "NO"),
    ],
)
def test_bad_job_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.fio"
    path.write_text(text)
    with pytest.raises(JobOptionError, match=message):
        jobfile.read_file(path, {})


def test_absent_job_file(tmp_path: Path) -> None:
    with pytest.raises(JobOptionError, match="name a job file"):
        jobfile.read_file(tmp_path / "no.fio")


def test_words_before_the_first_name_are_for_all() -> None:
    words = ["--bs=4k", "--name=a", "--rw=read", "--name=b", "--bs=8k"]
    assert jobfile.read_words(words) == [
        ("a", {"bs": "4k", "rw": "read"}),
        ("b", {"bs": "8k"}),
    ]
    assert jobfile.read_words(["--rw=read"]) == [("job", {"rw": "read"})]


def test_word_without_dashes_is_refused() -> None:
    with pytest.raises(JobOptionError, match="neither a job file nor an option"):
        jobfile.read_words(["rw=read"])


def test_stonewall_begins_a_stage_and_a_group() -> None:
    jobs = [job("a", group_reporting=""), job("b", group_reporting=""), job("c", stonewall="")]
    assert [[each.name for each in stage] for stage in stages(jobs)] == [["a", "b"], ["c"]]
    assert groups(jobs) == [0, 0, 1]


def test_jobs_report_alone_without_group_reporting() -> None:
    assert groups([job("a"), job("b")]) == [0, 1]


@pytest.mark.parametrize(
    ("jobs", "queues", "sharing", "expected"),
    [
        (4, 2, "blk-mq", [0, 0, 1, 1]),
        (4, 2, "round-robin", [0, 1, 0, 1]),
        (2, 4, "blk-mq", [0, 1]),
        (5, 3, "blk-mq", [0, 0, 1, 1, 2]),
        (3, 1, "blk-mq", [0, 0, 0]),
    ],
)
def test_queue_of_each_job(jobs: int, queues: int, sharing: str, expected: list[int]) -> None:
    assert [queue_of_job(i, jobs, queues, sharing) for i in range(jobs)] == expected  # type: ignore[arg-type]


def test_cpus_are_split_or_shared() -> None:
    shared = job(cpus_allowed="0-3", numjobs="4")
    split = job(cpus_allowed="0-3", cpus_allowed_policy="split", numjobs="4")
    assert cpus_of(shared, 2) == (0, 1, 2, 3)
    assert [cpus_of(split, i) for i in range(5)] == [(0,), (1,), (2,), (3,), (0,)]
