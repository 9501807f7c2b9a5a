"""Drivers in threads of their own that verify everything which they read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from vringd.testing.blk import SECTOR, BlkDriver
from vringd.testing.chains import Split
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam, RegionSpec

SLOT_SECTORS = 32  # of the disk, for each request that a driver keeps in flight
DEPTH = 8
SECTORS_PER_DRIVER = SLOT_SECTORS * DEPTH


def guest_ram(number: int, size: int = 1 << 20) -> GuestRam:
    """Memory of its own for each driver: the allocator of `GuestRam` is for one thread.

    Ranges of different numbers are apart, so one front-end may share them all.
    """
    region = RegionSpec(
        size, guest_addr=0x1_0000_0000 * (number + 1), user_addr=0x7F00_0000_0000 - (number << 32)
    )
    return GuestRam([region])


class Traffic:
    """A thread that reads and writes its own part of the disk until `stop`.

    With `keeps` the disk returns what was written to it, else zeros. Any wrong byte or status,
    lost notification, or wait of more than `timeout` seconds is a `failure`, which `stop` raises.
    """

    def __init__(
        self,
        queue: DriverQueue,
        *,
        part: int,
        keeps: bool,
        depth: int = DEPTH,
        timeout: float = 20.0,
    ) -> None:
        self.driver = BlkDriver(queue, timeout=timeout)
        self.done = 0
        self.failure: BaseException | None = None
        self._first = part * SECTORS_PER_DRIVER
        self._keeps = keeps
        self._depth = depth
        self._random = random.Random(part)
        self._disk = [bytes(SLOT_SECTORS * SECTOR) for _ in range(depth)]
        self._running: dict[int, tuple[int, int, bytes | None, int]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"driver{part}")

    def start(self) -> None:
        """Begin; the queue is the thread's from now on."""
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to take back what is in flight and to stop."""
        self._ending.set()

    def stop(self) -> None:
        """End the thread and raise what went wrong."""
        self.end()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def advances(self, by: int = 1, seconds: float = 20.0) -> bool:
        """Wait for `by` more requests; whether they came."""
        goal, deadline = self.done + by, time.monotonic() + seconds
        while self.done < goal and self.failure is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.done >= goal

    def _run(self) -> None:
        try:
            idle = set(range(self._depth))
            while not self._ending.is_set() or self._running:
                while idle and not self._ending.is_set():
                    self._submit(idle.pop())
                if self._running:
                    idle.add(self._complete())
        except BaseException as error:
            self.failure = error

    def _submit(self, slot: int) -> None:
        pick = self._random
        count = pick.randint(1, SLOT_SECTORS)
        first = pick.randint(0, SLOT_SECTORS - count)
        sector = self._first + slot * SLOT_SECTORS + first
        split = Split(*([pick.randint(1, 3000)] for _ in range(2))) if pick.random() < 0.3 else None
        kind, data, size = 0, b"", count * SECTOR
        if pick.random() < 0.5:
            kind, data, size = 1, pick.randbytes(count * SECTOR), 0
        token = self.driver.submit(
            kind, sector, data=data, read_size=size, split=split, indirect=pick.random() < 0.5
        )
        self._running[token] = slot, first * SECTOR, data or None, size

    def _complete(self) -> int:
        result = self.driver.complete().check()
        slot, at, data, size = self._running.pop(result.token)
        disk = self._disk[slot]
        if data is None:
            if result.data != disk[at : at + size]:
                raise AssertionError(f"request {result.token}: {size} bytes read are wrong")
        elif self._keeps:
            self._disk[slot] = disk[:at] + data + disk[at + len(data) :]
        self.done += 1
        return slot


@contextmanager
def running(traffics: Sequence[Traffic]) -> Iterator[None]:
    """Traffic for the time of the block; each must get on and end without a failure."""
    started = []
    try:
        for traffic in traffics:
            traffic.start()
            started.append(traffic)
        yield
        for traffic in traffics:
            assert traffic.advances(), traffic.failure or "no request completes any more"
    finally:
        for traffic in started:
            traffic.end()
        with ExitStack() as stack:  # each is stopped, whatever another raises
            for traffic in started:
                stack.callback(traffic.stop)


def repeat(seconds: float, action: Callable[[], None], *, least: int = 20) -> int:
    """Call `action` again and again for that long, and at least so often; how many times."""
    deadline = time.monotonic() + seconds
    count = 0
    while count < least or time.monotonic() < deadline:
        action()
        count += 1
    return count
