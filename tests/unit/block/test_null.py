"""The disk without bytes: how long its requests take, and in which order they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vringd.block.null import NullBackend
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.blk import BlkDriver
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from ..core.rig import ENGINES, Worker, make_queue

MS = 1_000_000


@contextmanager
def served(
    disk: NullBackend, *, queues: int = 1, io_uring: bool = False
) -> Iterator[list[BlkDriver]]:
    """Queues of one disk, each on an IOThread of its own."""
    device = BlkDevice(BlkSettings(disk.limits), disk.size)
    workers = [Worker(io_uring=io_uring, name=f"io{n}") for n in range(queues)]
    with GuestRam((1 << 20,)) as ram:
        drivers = [DriverQueue(ram, 64) for _ in workers]
        started = []
        try:
            for n, (worker, driver) in enumerate(zip(workers, drivers, strict=True)):
                started.append(worker.__enter__())
                worker.serve(make_queue(driver, index=n), disk, device)
            yield [BlkDriver(driver) for driver in drivers]
        finally:
            for worker in started:
                worker.__exit__(None, None, None)
        for driver in drivers:
            driver.close()


def timed(blks: list[BlkDriver], count: int) -> float:
    """Seconds that `count` reads of each queue, all at once, take."""
    start = time.monotonic()
    for _ in range(count):
        for blk in blks:
            blk.submit_read(0, 512)
    for blk in blks:
        for _ in range(count):
            blk.complete()
    return time.monotonic() - start


@ENGINES
def test_each_request_takes_its_latency_and_all_of_them_at_once(io_uring: bool) -> None:
    with served(NullBackend("n", latency_ns=50 * MS), io_uring=io_uring) as blks:
        assert 0.05 <= timed(blks, 16) < 0.4  # one after another: 0.8 s


@ENGINES
def test_parallelism_is_shared_by_all_queues(io_uring: bool) -> None:
    disk = NullBackend("n", latency_ns=10 * MS, parallelism=2)
    with served(disk, queues=2, io_uring=io_uring) as blks:
        assert timed(blks, 5) >= 0.05  # ten requests, two at a time
    with served(NullBackend("n", latency_ns=10 * MS, parallelism=1)) as blks:
        assert timed(blks, 5) >= 0.05


def test_requests_of_one_queue_end_in_their_order() -> None:
    with served(NullBackend("n", latency_ns=2 * MS, parallelism=3)) as (blk,):
        tokens = [blk.submit_read(0, 512) for _ in range(20)]
        assert [blk.complete().token for _ in tokens] == tokens


def test_reads_leave_the_buffer_or_fill_it_with_zeros() -> None:
    with served(NullBackend("n", read_zeroes=True)) as (blk,):
        assert blk.read(0, 4096) == bytes(4096)
    with served(NullBackend("n")) as (blk,):
        assert blk.read(0, 4096) != bytes(4096)


def test_processor_time_is_spent_on_each_request() -> None:
    with served(NullBackend("n", cpu_ns=5 * MS)) as blks:
        assert timed(blks, 10) >= 0.049  # 5 ms each on average


def test_a_null_disk_changes_its_size_when_told() -> None:
    disk = NullBackend("n", size=4096)
    disk.resize(8192)
    assert disk.refresh_size() == 8192
    with pytest.raises(ValueError, match="parallelism"):
        NullBackend("n", parallelism=-1)
