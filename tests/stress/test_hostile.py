"""A driver that writes nonsense into its rings harms nobody but itself."""

from __future__ import annotations

import random
import select
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Disconnected, Frontend
from vringd.testing.memory import GuestRam, GuestRamError

from .engine import Engine
from .machine import PACKED, Machine
from .traffic import guest_ram, repeat

QUEUES = 3
SIZE = 32


def nonsense(pick: random.Random, ram: GuestRam) -> tuple[int, int, int]:
    """Address, length and flags of a descriptor: half of them nearly right."""
    (region,) = ram.regions
    address = pick.choice(
        (
            region.guest_addr + pick.randrange(region.size),
            region.end - pick.randrange(1, 64),
            pick.getrandbits(64),
            2**64 - pick.randrange(1, 4096),
        )
    )
    length = pick.choice((0, 1, 16, 512, 4096, pick.getrandbits(32), 2**32 - 1))
    return address, length, pick.choice((0, 1, 2, 3, 4, 5, 7, pick.getrandbits(16)))


def scribble(pick: random.Random, ram: GuestRam, queue: DriverQueue) -> None:
    """Fill the ring with nonsense, again and again while the device reads it."""
    for _ in range(pick.randrange(1, 6)):
        # Ring and headers are random bytes too, but mostly of sensible request types.
        ram.write(
            ram.regions[0].guest_addr + pick.randrange(ram.regions[0].size - 16),
            bytes([pick.choice((0, 1, 4, 8, 11, 13, 14, 255))]) + bytes(7) + pick.randbytes(8),
        )
        if queue.packed:
            for i in range(SIZE):
                address, length, flags = nonsense(pick, ram)
                flags |= pick.choice((1 << 7, 1 << 7, 1 << 15, 0))
                queue.write_packed_desc(i, address, length, pick.getrandbits(6), flags)
            queue.set_driver_event(pick.getrandbits(16), pick.randrange(4))
        else:
            for i in range(SIZE):
                queue.write_desc(i, *nonsense(pick, ram), pick.getrandbits(6))
            queue.write_avail(0, [pick.getrandbits(6) for _ in range(SIZE)])
            queue.set_used_event(pick.getrandbits(16))
            queue.set_avail_idx(pick.choice((1, SIZE, SIZE + 1, pick.getrandbits(16))))
        queue.kick(force=True)


def attack(path: Path, pick: random.Random) -> int:
    """One front-end with hostile rings, then another with a reset; how many rings broke."""
    broken = 0
    with ExitStack() as stack:
        frontend = stack.enter_context(Frontend.connect(path))
        frontend.negotiate(features=~PACKED if pick.random() < 0.5 else ~0)
        packed = bool(frontend.features & PACKED)
        rams = [stack.enter_context(guest_ram(20 + i)) for i in range(QUEUES)]
        queues = [DriverQueue(ram, SIZE, packed=packed) for ram in rams]
        for ram in rams:
            frontend.add_ram(ram)
        try:
            for _ in range(2):
                for i, queue in enumerate(queues):
                    frontend.attach(i, queue)
                for queue, ram in zip(queues, rams, strict=True):
                    scribble(pick, ram, queue)
                for i, queue in enumerate(queues):
                    poller = select.poll()
                    poller.register(queue.err_fd, select.POLLIN)
                    poller.poll(10)
                    broken += queue.take_error()
                    frontend.get_vring_base(i)
                frontend.reset_device()
                for queue in queues:
                    queue.reset()
        except Disconnected:
            pass  # also an answer
        finally:
            frontend.close()
            for queue in queues:
                # The device may have been told to write anywhere in this memory.
                with suppress(GuestRamError):
                    queue.close()
    return broken


@pytest.mark.parametrize("kind", ["null", "file"])
def test_hostile_rings_do_not_disturb_another_device(
    engine: Engine, folder: Path, seconds: float, kind: str
) -> None:
    victim = engine.serve_disk(kind, folder, "victim")
    busy = engine.serve_disk("file", folder, "busy")
    pick = random.Random(7)
    broken = 0

    def strike() -> None:
        nonlocal broken
        broken += attack(victim, pick)

    with Machine(busy) as machine:
        repeat(seconds, strike, least=10)
        machine.assert_alive()
    assert broken > 0
    with Machine(victim, keeps=kind == "file"):
        pass
