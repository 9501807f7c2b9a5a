"""A server is killed at any instant, again and again: every request completes exactly once.

The driver of the test complains of a used entry for a request that is not in flight, the traffic
of wrong data and of a request that does not complete.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from vringd.core.inflight import InflightBuffer
from vringd.testing.driver import DriverQueue

from .engine import DISK_BYTES
from .kill_server import KilledServer, Ring
from .stepping import may_step
from .traffic import Traffic, guest_ram, running

# The servers are other processes, and what is tested are their stores, one by one: instrumented
# code would only be slower.
pytestmark = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") == "sanitizers",
    reason="not with sanitizers: killed processes could not report anything",
)

QUEUES = 2
SIZE = 32
STORES = 20  # to the inflight buffer, of which the last before a kill is one
AFTER = 12  # instructions from such a store to a kill

LAYOUTS = pytest.mark.parametrize(
    ("packed", "in_order"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["split", "split-in-order", "packed", "packed-in-order"],
)
KINDS = pytest.mark.parametrize("kind", ["null", "file"])


@dataclass
class Served:
    """Two rings under load, and who serves them."""

    server: KilledServer
    inflight: InflightBuffer
    traffics: list[Traffic]

    @property
    def done(self) -> int:
        return sum(traffic.done for traffic in self.traffics)


@contextmanager
def served(
    folder: Path, *, kind: str, packed: bool, in_order: bool, io_uring: bool
) -> Iterator[Served]:
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    with ExitStack() as stack:
        rams = [stack.enter_context(guest_ram(i)) for i in range(QUEUES)]
        queues = [
            stack.enter_context(DriverQueue(ram, SIZE, packed=packed, in_order=in_order))
            for ram in rams
        ]
        inflight = InflightBuffer.create(QUEUES, SIZE, packed)
        server = stack.enter_context(
            KilledServer(
                [Ring.of(queue) for queue in queues],
                inflight,
                image=None if kind == "null" else str(image),
                disk_size=DISK_BYTES,
                io_uring=io_uring,
            )
        )
        traffics = [Traffic(queue, part=i, keeps=kind != "null") for i, queue in enumerate(queues)]
        with running(traffics):
            yield Served(server, inflight, traffics)
        for ram in rams:
            ram.check()


@KINDS
@LAYOUTS
def test_requests_complete_once_whenever_the_server_is_killed(
    folder: Path, seconds: float, poller: str, kind: str, packed: bool, in_order: bool
) -> None:
    pick = random.Random(f"{kind} {packed} {in_order} {poller}")
    lives = max(8, int(8 * seconds))
    useful = 0
    with served(
        folder, kind=kind, packed=packed, in_order=in_order, io_uring=poller == "io_uring"
    ) as load:
        for _ in range(lives):
            before = load.done
            if pick.random() < 0.5:
                # It is starting, learns what its predecessor has left, or serves.
                time.sleep(pick.uniform(0, 0.02))
            else:
                assert pick.choice(load.traffics).advances(pick.randint(1, 40))
            load.server.kill()
            useful += load.done > before
            load.server.start()
    assert useful >= lives // 3


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="written for x86-64, where an instruction is one step"
)
@LAYOUTS
def test_requests_complete_once_when_the_server_is_killed_amid_its_bookkeeping(
    folder: Path, seconds: float, packed: bool, in_order: bool
) -> None:
    """Killed a few instructions after a store to the inflight buffer: each store is a place where
    buffer and ring say different things. Random instants all but never hit these."""
    if not may_step():
        pytest.skip("ptrace is forbidden here (kernel.yama.ptrace_scope, or a container's seccomp)")
    pick = random.Random(f"{packed} {in_order}")
    lives = max(10, int(12 * seconds))
    hits = 0
    with served(folder, kind="null", packed=packed, in_order=in_order, io_uring=False) as load:
        for _ in range(lives):
            assert load.traffics[0].advances()
            hits += load.server.kill_amid(pick.randint(1, STORES), pick.randint(0, AFTER))
            load.server.start()
    assert hits >= lives // 2
