"""`vringd bench compare` with real servers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vringd.testing.peers import missing_reason
from vringd.testing.served_disk import run_vringd

_SHORT = ("--rw=randread", "--iodepth=8", "--time_based", "--runtime=300ms")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="vb-") as name:
        yield Path(name)


def test_servers_are_measured_in_turn_and_compared(folder: Path) -> None:
    if reason := missing_reason("qemu-storage-daemon"):
        pytest.skip(reason)
    done = run_vringd(
        *("bench", "compare", "--peer", "qemu-storage-daemon", "--peer", "vringd:poll-max-ns=0"),
        *("--rounds", "2", "--retries", "0", "--json", str(folder / "samples.json"), *_SHORT),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((folder / "samples.json").read_text())
    servers = ["vringd", "qemu-storage-daemon", "vringd:poll-max-ns=0"]
    assert [sample["server_name"] for sample in document["samples"]] == servers * 2
    for sample in document["samples"]:
        assert sample["error"] == ""
        assert sample["iops"] > 100
        assert sample["cpu_us"] > 0
        assert sample["p50_ns"] > 0
    header = next(line for line in done.stdout.splitlines() if line.startswith("| cell"))
    assert "vringd / qemu-storage-daemon" in header
    assert document["host"]["kernel"] in done.stdout


def test_file_disk_and_job_file_are_used(folder: Path) -> None:
    image = folder / "disk.img"
    image.write_bytes(bytes(1 << 20))
    jobs = folder / "jobs.fio"
    jobs.write_text("[mixed]\nrw=randrw\nbs=8k\niodepth=4\ntime_based\nruntime=300ms\n")
    done = run_vringd(
        *("bench", "compare", "--rounds", "1", "--retries", "0"),
        *("--disk", f"driver=file,filename={image}", "--json", str(folder / "out.json")),
        str(jobs),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (sample,) = json.loads((folder / "out.json").read_text())["samples"]
    assert sample["read_bytes"] > 0
    assert sample["write_bytes"] > 0


def test_server_that_dies_ends_in_status_1_and_the_others_are_measured() -> None:
    done = run_vringd(
        *("bench", "compare", "--peer", "bad=sh -c 'echo out of discs; exit 4' {socket}"),
        *("--rounds", "1", "--retries", "0", *_SHORT),
        timeout=60,
    )
    assert done.returncode == 1
    assert "bad FAILED: bad died (exit status 4)" in done.stdout
    assert "out of discs" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("| load"))
    assert "µs" in row


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--peer", "vringd"), "measured already"),
        (("--peer", "nosuch"), "--peer nosuch: not one of"),
        (("--disk", "size=5"), "--disk size=5"),
        (("--server-cpus", "1000"), "CPU 1000 is not one of"),
        (("--rounds", "0"), "not a number of 1 or more"),
        (("--nice", "77"), "--nice 77"),
        (("--program", "x"), "--program x: not NAME=PATH"),
        (("--rw=read",), "--time_based"),
        (("--rw=read", "--time_bsed"), "did you mean 'time_based'"),
        (("--server", "qemu-storage-daemon", "--threads", "2"), "one IOThread"),
    ],
)
def test_wrong_option_is_one_line(words: tuple[str, ...], told: str) -> None:
    if "qemu-storage-daemon" in words and (reason := missing_reason("qemu-storage-daemon")):
        pytest.skip(reason)
    done = run_vringd("bench", "compare", *words)
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
