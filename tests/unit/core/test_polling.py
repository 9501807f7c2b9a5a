"""Adaptive polling and the coalescing of interrupts, by what an IOThread counts."""

from __future__ import annotations

import time

import pytest

from vringd.block.null import NullBackend
from vringd.testing.blk import BlkDriver
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .rig import ENGINES, Worker, make_queue


def serve_for(worker: Worker, ram: GuestRam, seconds: float) -> tuple[set[object], float]:
    """Keep a null disk busy; the ways of polling seen meanwhile, and the requests a second."""
    disk = NullBackend("null")
    seen = set()
    with DriverQueue(ram, 64) as driver:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tokens = [blk.submit_read(n, 512) for n in range(16)]
            for token in tokens:
                blk.complete(token)
            seen.add(worker.thread.counters()["poll_way"])
        worker.detach(queue)
        return seen, queue.stats.snapshot()["read"]["ops"] / seconds


@ENGINES
def test_under_load_both_ways_are_measured(ram: GuestRam, io_uring: bool) -> None:
    with Worker(io_uring=io_uring) as worker:
        seen, rate = serve_for(worker, ram, 0.5)
        if rate < 15_000:
            pytest.skip(f"the fake driver made {rate:.0f} requests a second: load begins at 12,000")
        # Load begins with spinning; whether sleeping proves as good is the machine's affair.
        assert "spin" in seen
        assert seen <= {"rule", "spin", "sleep"}


def test_a_little_load_is_left_to_the_rule(ram: GuestRam) -> None:
    disk = NullBackend("null")
    with Worker() as worker, DriverQueue(ram, 64) as driver:
        worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for _ in range(30):
            blk.read(0, 512)
            time.sleep(0.003)
        counters = worker.thread.counters()
        assert counters["poll_way"] == "rule"
        # Pauses of 3 ms are far beyond poll-max-ns, so the rule has given up spinning.
        assert counters["poll_ns"] == 0


@ENGINES
def test_poll_max_ns_0_never_spins(ram: GuestRam, io_uring: bool) -> None:
    with Worker(io_uring=io_uring, poll_max_ns=0) as worker:
        assert serve_for(worker, ram, 0.2)[0] == {"rule"}
        assert worker.thread.counters()["spins_won"] == 0


@pytest.mark.parametrize("poll_max_ns", [0, 32768])
def test_a_driver_with_one_request_at_a_time_misses_no_interrupt(
    ram: GuestRam, poll_max_ns: int
) -> None:
    disk = NullBackend("null")
    with Worker(poll_max_ns=poll_max_ns) as worker, DriverQueue(ram, 64) as driver:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for _ in range(500):
            blk.read(0, 512)  # the driver fails if an interrupt that it armed is late or lost
        worker.detach(queue)
        assert queue.stats.snapshot()["read"]["ops"] == 500
        assert queue.stats.snapshot()["notifications"] > 0


def test_a_burst_is_answered_with_fewer_interrupts_than_requests(ram: GuestRam) -> None:
    disk = NullBackend("null")
    with Worker() as worker, DriverQueue(ram, 256) as driver:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for _ in range(50):
            for token in [blk.submit_read(n, 512) for n in range(32)]:
                blk.complete(token)
        worker.detach(queue)
        snapshot = queue.stats.snapshot()
        assert snapshot["read"]["ops"] == 1600
        assert 0 < snapshot["notifications"] < 1600
