"""A front-end truncates its memory file under load: its device fails, nothing else does."""

from __future__ import annotations

import os
import random
import select
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from vringd.testing.blk import BlkDriver
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend
from vringd.testing.memory import GuestRamError

from .engine import Engine
from .machine import PACKED, Machine
from .traffic import guest_ram, repeat


def pull_the_rug(path: Path, pick: random.Random) -> bool:
    """Truncate while requests are in flight; whether the back-end reported the loss."""
    with ExitStack() as stack:
        frontend = stack.enter_context(Frontend.connect(path))
        frontend.negotiate(features=~PACKED if pick.random() < 0.5 else ~0)
        ram = stack.enter_context(guest_ram(20))
        frontend.add_ram(ram)
        queue = DriverQueue(ram, 256, packed=bool(frontend.features & PACKED))
        frontend.attach(0, queue)
        driver = BlkDriver(queue)
        (region,) = ram.regions
        size = region.mmap_offset + region.size
        while queue.num_free >= 6:
            driver.submit_write(pick.randrange(64), bytes(4096))
            driver.submit_read(pick.randrange(64), 4096)
        time.sleep(pick.random() * 0.01)
        os.ftruncate(region.fd, pick.choice((0, region.mmap_offset)))
        # From here on an access of our own to the lost pages would end this process.
        os.eventfd_write(queue.kick_fd, 1)
        poller = select.poll()
        poller.register(queue.err_fd, select.POLLIN)
        told = poller.poll(2000)
        frontend.get_vring_base(0)
        frontend.close()
        os.ftruncate(region.fd, size)
        with suppress(GuestRamError):
            queue.close()
    return bool(told)


@pytest.mark.parametrize("kind", ["null", "file", "threads"])
def test_a_truncated_memory_file_costs_only_its_own_device(
    engine: Engine, folder: Path, seconds: float, kind: str
) -> None:
    slow = {"latency_ns": 100_000, "parallelism": 2} if kind == "null" else {}
    victim = engine.serve_disk(kind, folder, "victim", **slow)
    busy = engine.serve_disk("file", folder, "busy")
    pick = random.Random(8)
    reports = 0

    def strike() -> None:
        nonlocal reports
        reports += pull_the_rug(victim, pick)

    with Machine(busy) as machine:
        rounds = repeat(seconds / 2, strike, least=5)
        machine.assert_alive()
    assert reports == rounds
    with Machine(victim, keeps=kind != "null"):
        pass
