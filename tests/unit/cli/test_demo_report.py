"""What `vringd demo` prints: the lines of its steps, and the table of an export's queues."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from vringd.bench.options import make_job
from vringd.bench.runner import run_jobs
from vringd.bench.target import Target
from vringd.cli.demo_disk import NUM_QUEUES, DemoDisk
from vringd.cli.demo_report import Progress, queue_table
from vringd.control.daemon import Daemon

BEGIN = "the disk works ............................."

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is 1.5 s after the one before."""
    ticks = iter(range(100))
    fake = SimpleNamespace(monotonic=lambda: next(ticks) * 1.5)
    monkeypatch.setattr("vringd.cli.demo_report.time", fake)


def test_a_step_begins_a_line_and_completes_it(capsys: Captured) -> None:
    with Progress(verbose=False).step("the disk works") as step:
        assert capsys.readouterr().out == BEGIN
        step.result = "in every way"
    assert capsys.readouterr().out == "   1.5 s  in every way\n"


def test_a_step_without_a_result_ends_with_its_time(capsys: Captured) -> None:
    progress = Progress(verbose=False)
    for _ in range(2):
        with progress.step("the disk works"):
            pass
    assert capsys.readouterr().out == f"{BEGIN}   1.5 s\n" * 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
def test_a_step_that_raises_has_failed(capsys: Captured, error: type[BaseException]) -> None:
    with pytest.raises(error), Progress(verbose=False).step("the disk works"):
        raise error
    assert capsys.readouterr().out == f"{BEGIN}   1.5 s  FAILED\n"


def test_details_are_for_verbose_only(capsys: Captured) -> None:
    progress = Progress(verbose=False)
    with progress.step("the disk works"):
        progress.detail("this is how")
    assert capsys.readouterr().out == f"{BEGIN}   1.5 s\n"


def test_details_stand_between_a_steps_begin_and_its_whole_line(capsys: Captured) -> None:
    progress = Progress(verbose=True)
    with progress.step("the disk works") as step:
        progress.detail("first\nsecond\n")
        progress.detail("  \n")  # is nothing to show
        progress.detail("third")
        step.result = "well"
    assert capsys.readouterr().out == (
        f"{BEGIN}\n    | first\n    | second\n    | third\n{BEGIN}   1.5 s  well\n"
    )


def cells(table: str) -> list[list[str]]:
    return [re.split(" {2,}", line.strip()) for line in table.splitlines()]


async def test_the_table_tells_what_each_queue_has_done(tmp_path: Path) -> None:
    disk = DemoDisk(tmp_path)
    disk.create()
    daemon = Daemon(disk.options())
    await daemon.start()
    try:
        export = daemon.exports[disk.export_id]
        idle = queue_table(export)
        jobs = [
            make_job("w", {"rw": "write", "bs": "4k", "size": "1m", "numjobs": str(NUM_QUEUES)}),
            make_job("r", {"rw": "read", "bs": "64k", "size": "2m", "stonewall": "1"}),
        ]
        target = Target(disk.socket, num_queues=NUM_QUEUES)
        await asyncio.to_thread(run_jobs, target, [job for job, _ in jobs])
        busy = queue_table(export)
    finally:
        await daemon.stop()

    header = ["queue", "IOThread", "CPU", "requests", "read", "written", "errors", "p50", "p99"]
    pins = [thread.cpu_affinity for thread in disk.options().iothreads]
    cpus = [str(pin[0]) if pin else "any" for pin in pins]
    first = [[str(queue), f"t{queue % 2}", cpus[queue % 2]] for queue in range(NUM_QUEUES)]
    assert cells(idle) == [
        header,
        *([*where, "0", "0.0 MiB", "0.0 MiB", "0", "-", "-"] for where in first),
    ]
    assert cells(busy)[0] == header
    assert [row[:7] for row in cells(busy)[1:]] == [
        [*first[0], "288", "2.0 MiB", "1.0 MiB", "0"],
        *([*where, "256", "0.0 MiB", "1.0 MiB", "0"] for where in first[1:]),
    ]
    for row in cells(busy)[1:]:
        assert all(re.fullmatch(r"\d+ (µs|ms)", latency) for latency in row[7:]), row
    assert len({len(line) for line in busy.splitlines()}) == 1, "the columns are not aligned"
