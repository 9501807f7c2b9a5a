"""Queues change their IOThread under load and the driver notices nothing."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from vringd.core.memory import GuestMemory, MemoryRegion
from vringd.core.virtqueue import Virtqueue
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend
from vringd.testing.memory import GuestRam

from .engine import Device, Engine, open_disk
from .traffic import Traffic, guest_ram, repeat, running

QUEUES = 4


def shuffle_queues(engine: Engine, device: Device, seconds: float) -> None:
    """Move random queues to random IOThreads, with and without polling: 20 times at least."""
    pick = random.Random(1)

    def move() -> None:
        target = pick.choice(engine.threads)
        engine.run(device.move(pick.randrange(QUEUES), target))
        target.thread.set_polling(pick.choice((0, 32768)))

    repeat(seconds, move)
    while device.moves < 20:
        move()


def virtqueue(index: int, queue: DriverQueue, ram: GuestRam) -> Virtqueue:
    layout = queue.layout
    regions = [
        MemoryRegion(r.guest_addr, r.size, r.user_addr, r.fd, r.mmap_offset) for r in ram.regions
    ]
    return Virtqueue(
        index,
        size=queue.size,
        features=queue.features,
        memory=GuestMemory(regions),
        desc=layout.desc_user,
        avail=layout.avail_user,
        used=layout.used_user,
        base=queue.base,
        kick_fd=queue.kick_fd,
        call_fd=queue.call_fd,
        err_fd=queue.err_fd,
    )


@pytest.mark.parametrize("kind", ["null", "file", "threads"])
@pytest.mark.parametrize("event_idx", [False, True], ids=["flags", "event_idx"])
def test_every_request_survives_moves_between_threads(
    engine: Engine, folder: Path, seconds: float, kind: str, event_idx: bool
) -> None:
    packed = kind != "file"
    device = engine.add_device("e0", open_disk(kind, folder), num_queues=QUEUES)
    with ExitStack() as stack:
        rams = [stack.enter_context(guest_ram(i)) for i in range(QUEUES)]
        queues = [
            stack.enter_context(DriverQueue(ram, 64, packed=packed, event_idx=event_idx))
            for ram in rams
        ]
        rings = [virtqueue(i, queues[i], rams[i]) for i in range(QUEUES)]
        for ring in rings:
            engine.run(device.start_queue(ring))
        traffics = [Traffic(queue, part=i, keeps=kind != "null") for i, queue in enumerate(queues)]
        with running(traffics):
            shuffle_queues(engine, device, seconds / 2)
        for ring in rings:
            engine.run(device.stop_queue(ring))
        assert [ring.in_flight for ring in rings] == [0] * QUEUES
        assert [ring.broken for ring in rings] == [None] * QUEUES
        for ram in rams:
            ram.check()


def test_a_front_end_stops_and_starts_queues_that_are_moving(
    engine: Engine, folder: Path, seconds: float
) -> None:
    device = engine.add_device("e0", open_disk("file", folder), num_queues=QUEUES)
    engine.serve(device, folder / "e0.sock")
    pick = random.Random(2)
    with ExitStack() as stack:
        frontend = stack.enter_context(Frontend.connect(folder / "e0.sock"))
        frontend.negotiate(features=~(1 << 34))
        queues = []
        for i in range(QUEUES):
            ram = stack.enter_context(guest_ram(i))
            frontend.add_ram(ram)
            queues.append(stack.enter_context(DriverQueue(ram, 64)))
            frontend.attach(i, queues[i])
        traffics = [Traffic(queue, part=i, keeps=True) for i, queue in enumerate(queues)]

        def restart() -> None:
            index = pick.randrange(QUEUES)
            if pick.random() < 0.5:
                frontend.set_vring_enable(index, False)
                frontend.set_vring_enable(index, True)
            else:
                base = frontend.get_vring_base(index)
                frontend.attach(index, queues[index], base=base)
            engine.run(device.move(pick.randrange(QUEUES), pick.choice(engine.threads)))

        with running(traffics):
            repeat(seconds, restart)
        assert device.moves > 0
