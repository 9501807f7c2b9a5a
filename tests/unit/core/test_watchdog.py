"""A front-end that makes signals wait holds up neither an IOThread nor the control plane."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from vringd.block.null import NullBackend
from vringd.core.watchdog import signal_eventfd
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.blk import BlkDriver
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .rig import ENGINES, LAYOUTS, Worker, make_queue

FULL = 2**64 - 2


def make_blocking_and_full(fd: int) -> None:
    """What the other end of a shared eventfd can do at any time."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    os.eventfd_write(fd, FULL)


@contextmanager
def crowd_of_writers(fd: int, count: int = 8) -> Iterator[None]:
    """Threads that wait in a write: whoever makes room lets one of them in."""
    threads = [threading.Thread(target=os.eventfd_write, args=(fd, FULL)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        while any(thread.is_alive() for thread in threads):
            with suppress(BlockingIOError):
                os.preadv(fd, [bytearray(8)], -1, os.RWF_NOWAIT)
            time.sleep(0.001)


@ENGINES
@LAYOUTS
def test_a_full_call_eventfd_breaks_its_own_queue_only(
    ram: GuestRam, io_uring: bool, packed: bool
) -> None:
    disk = NullBackend("null", size=1 << 20)
    with (
        DriverQueue(ram, 16, packed=packed) as hostile,
        DriverQueue(ram, 16, packed=packed) as honest,
        Worker(io_uring=io_uring) as worker,
    ):
        queues = [make_queue(hostile), make_queue(honest)]
        device = BlkDevice(BlkSettings(disk.limits), disk.size)
        channel = worker.add_channel(disk.open_channel(io_uring=io_uring))
        for queue in queues:
            worker.attach(queue, device, channel)
        BlkDriver(honest).flush()
        make_blocking_and_full(hostile.call_fd)
        BlkDriver(hostile).submit_read(0, 512)
        with crowd_of_writers(hostile.call_fd):
            begin = time.monotonic()
            for _ in range(3):
                BlkDriver(honest).flush()
            assert time.monotonic() - begin < 10
            assert worker.wait_broken(queues[0]) == "the front-end let the call eventfd run full"
        assert queues[1].broken is None


def test_signal_of_the_control_plane_ends() -> None:
    fd = os.eventfd(0)
    try:
        make_blocking_and_full(fd)
        with crowd_of_writers(fd):
            thread = threading.Thread(target=signal_eventfd, args=(fd,), daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
    finally:
        os.close(fd)


def test_signal_adds_one() -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        signal_eventfd(fd)
        assert os.eventfd_read(fd) == 1
    finally:
        os.close(fd)


def test_full_eventfd_that_does_not_block_is_left_alone() -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        os.eventfd_write(fd, FULL)
        signal_eventfd(fd)
        assert os.eventfd_read(fd) == FULL
    finally:
        os.close(fd)


def test_descriptor_that_cannot_be_written_is_an_error() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            signal_eventfd(fd)
    finally:
        os.close(fd)
