"""`vringd bench experiment` and `vringd bench predict`, run as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vringd.testing.served_disk import run_vringd

_QUICK = ("--runtime", "0.3", "--rounds", "1")


def test_experiment_measures_cells_and_writes_both_reports(tmp_path: Path) -> None:
    done = run_vringd(
        *("bench", "experiment", "virtio-blk-mq", *_QUICK, "--output-dir", str(tmp_path)),
        *("--cells", "8-jobs*/1 thr 1 mq/null,4-jobs-halves-one-to-one/2 thr 2 mq/null"),
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "virtio-blk-mq.json").read_text())
    assert document["complete"]
    assert len(document["cells"]) == 4
    assert len(document["samples"]) == 3
    for sample in document["samples"]:
        assert sample["error"] == ""
        assert sample["read_bytes"] > 0
        assert sample["write_bytes"] > 0
        assert sample["p99_ns"] >= sample["p50_ns"] > 0
    assert document["noise"]["count"] == 6
    assert document["ceiling"]["iops"] > 0 or len(os.sched_getaffinity(0)) < 2
    assert "### 8 jobs, nothing pinned (writes, MB/s)" in done.stdout
    page = (tmp_path / "virtio-blk-mq.html").read_text()
    assert page.count("<svg") == 4


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("vhost-scsi-workers", "worker-per-vq-2/2 VQ/null"),
        ("virtio-scsi-iothreads", "4-vcpus-halves/2 IOThreads/null"),
    ],
)
def test_experiments_about_scsi_are_measured(tmp_path: Path, name: str, cell: str) -> None:
    done = run_vringd(
        *("bench", "experiment", name, *_QUICK, "--output-dir", str(tmp_path), "--no-html"),
        *("--cells", cell),
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / f"{name}.json").read_text())
    (sample,) = document["samples"]
    assert sample["error"] == ""
    assert sample["iops"] > 0


def test_other_server_and_disk_can_be_measured(tmp_path: Path) -> None:
    done = run_vringd(
        *("bench", "experiment", "virtio-blk-mq", *_QUICK, "--output-dir", str(tmp_path)),
        *("--server", "vringd:poll-max-ns=0", "--disk", "null-co,size=64M", "--no-html"),
        *("--cells", "8-jobs/1 thr 1 mq/*"),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (sample,) = json.loads((tmp_path / "virtio-blk-mq.json").read_text())["samples"]
    assert sample["server_name"] == "vringd:poll-max-ns=0"
    assert not (tmp_path / "virtio-blk-mq.html").exists()


def test_server_that_dies_ends_an_experiment_in_status_1(tmp_path: Path) -> None:
    done = run_vringd(
        *("bench", "experiment", "virtio-blk-mq", *_QUICK, "--output-dir", str(tmp_path)),
        *("--server", "bad=sh -c 'echo no more discs; exit 3' {socket}{threads}", "--no-html"),
        timeout=60,
    )
    assert done.returncode == 1
    assert "no more discs" in done.stdout
    assert not json.loads((tmp_path / "virtio-blk-mq.json").read_text())["complete"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("virtio-blk-qm",), "did you mean virtio-blk-mq?"),
        (("virtio-blk-mq", "--cells", "9-jobs/*"), "--cells 9-jobs/*: matches none"),
        (("virtio-blk-mq", "--runtime", "0"), "not a number of seconds"),
        (("virtio-blk-mq", "--cpus", "1000"), "CPU 1000"),
        (("virtio-blk-mq", "--server", "vringd", "--server", "vringd"), "each only once"),
        (("virtio-blk-mq", "--output-dir", "/proc/none"), "--output-dir /proc/none"),
        (("virtio-blk-mq", "--disk", "size=1"), "--disk size=1"),
    ],
)
def test_wrong_option_of_an_experiment_is_one_line(words: tuple[str, ...], told: str) -> None:
    done = run_vringd("bench", "experiment", *words)
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_cells_are_listed() -> None:
    done = run_vringd("bench", "experiment", "virtio-blk-mq", "--list")
    assert done.returncode == 0
    assert "8-jobs/4 thr 4 mq/null" in done.stdout.splitlines()


def test_costs_are_measured_once_and_used_again(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("costs are measured with the load on a CPU of its own: 2 CPUs are needed")
    saved = tmp_path / "costs.json"
    done = run_vringd(
        *("bench", "predict", "--runtime", "0.3", "--rounds", "1", "--output", str(saved)),
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "mean error" in done.stdout
    document = json.loads(saved.read_text())
    assert document["costs"]["server"] > 0
    assert all(check["measured"] > 0 for check in document["checks"])
    again = run_vringd("bench", "predict", "--from", str(saved), "--cpus", "16")
    assert again.returncode == 0, again.stderr
    assert "on 16 CPUs" in again.stdout
    assert "| 4 thr 4 mq | 2187" in again.stdout


@pytest.mark.parametrize("text", ["", "{}", '{"costs": {"server": 1}}', '{"costs": 5}'])
def test_file_without_costs_is_refused(tmp_path: Path, text: str) -> None:
    saved = tmp_path / "costs.json"
    saved.write_text(text)
    done = run_vringd("bench", "predict", "--from", str(saved))
    assert done.returncode == 1
    assert f"--from {saved}" in done.stderr
    assert done.stderr.count("\n") == 1
