"""Front-ends connect and vanish under load; a neighbour on the same IOThreads notices nothing."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

from vringd.testing.blk import BlkDriver
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend
from vringd.vhost_user.wire import HEADER, VERSION, Request

from .engine import Engine
from .ledger import assert_no_more_than, held
from .machine import PACKED, Machine
from .traffic import guest_ram, repeat

QUEUES = 3


def visit(path: Path, pick: random.Random) -> None:
    """Connect, start queues, leave requests in flight, and vanish somewhere on the way."""
    last = pick.randrange(5)
    with ExitStack() as stack:
        frontend = stack.enter_context(Frontend.connect(path))
        if last == 0:
            return
        frontend.negotiate(features=~PACKED if pick.random() < 0.5 else ~0)
        packed = bool(frontend.features & PACKED)
        drivers = []
        for i in range(QUEUES):
            ram = stack.enter_context(guest_ram(20 + i))
            frontend.add_ram(ram)
            queue = stack.enter_context(DriverQueue(ram, 64, packed=packed))
            drivers.append(BlkDriver(queue))
            frontend.attach(i, queue)
            if last == 1:
                return
        for _ in range(5):
            for driver in drivers:
                driver.submit_read(pick.randrange(64), 4096)
        if last == 2:
            drivers[0].complete()
        elif last == 3:
            frontend.get_vring_base(pick.randrange(QUEUES))
        # Half a message is the last that the back-end hears.
        frontend.send_bytes(HEADER.pack(Request.SET_VRING_NUM, VERSION, 8) + b"\0\0")
        # Only the connection ends here. The device still writes into the memory, which it has
        # mapped itself, while this side has given it up.
        frontend.close()


def test_vanishing_front_ends_leave_nothing_behind(
    engine: Engine, folder: Path, seconds: float
) -> None:
    slow = engine.serve_disk("null", folder, "slow", latency_ns=2_000_000)
    busy = engine.serve_disk("file", folder, "busy")
    pick = random.Random(6)
    with Machine(busy) as machine:
        visit(slow, pick)
        before = held(workers=False)
        repeat(seconds, lambda: visit(slow, pick))
        assert_no_more_than(before, workers=False)
        machine.assert_alive()
    # The device still serves whoever behaves.
    with Machine(slow, keeps=False, depth=4):
        pass
