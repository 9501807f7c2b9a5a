"""Logging for migration is switched on and off under load, and is exact while it is on."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vringd.devices.blk_config import WCE_OFFSET
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend, RingSpec
from vringd.testing.ring_layout import RingLayout, part_sizes

from .engine import Engine
from .machine import Machine

Extent = tuple[int, int]
LOG_PAGE = 4096


class WatchedQueue(DriverQueue):
    """Remembers where the device may have written since `logging_begins`, and where it must have
    marked: everything that was added after `logging_is_on` and has come back."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._flying: dict[int, list[Extent]] = {}
        self._possible: set[int] = set()
        self._certain: set[int] = set()
        self._first = 0
        self._last = -1

    def add(self, out: Iterable[Extent] = (), in_: Iterable[Extent] = (), **how: object) -> int:
        extents = list(in_)
        with self._lock:
            token = super().add(out, extents, **how)  # type: ignore[arg-type]
            self._last = token
            self._flying[token] = extents
            self._possible |= pages(extents)
        return token

    def pop_used(self) -> Extent | None:
        used = super().pop_used()
        if used is not None:
            with self._lock:
                extents = self._flying.pop(used[0])
                if used[0] >= self._first:
                    self._certain |= pages(extents)
        return used

    def logging_begins(self) -> None:
        with self._lock:
            self._possible = set().union(*map(pages, self._flying.values()))

    def logging_is_on(self) -> None:
        with self._lock:
            self._first = self._last + 1
            self._certain = set()

    def verdict(self) -> tuple[set[int], set[int]]:
        """Pages that must, and that may be marked."""
        with self._lock:
            return set(self._certain), set(self._possible)


def pages(extents: Iterable[Extent]) -> set[int]:
    """Numbers of the pages that extents of (guest address, bytes) touch."""
    return {
        page
        for start, size in extents
        for page in range(start // LOG_PAGE, (start + size - 1) // LOG_PAGE + 1)
    }


def device_parts(layout: RingLayout) -> set[int]:
    """Pages of the ring that the device writes: the used ring; packed: all but the driver's."""
    sizes = part_sizes(layout.size, packed=layout.packed)
    parts = [(layout.used, sizes[2])]
    if layout.packed:
        parts.append((layout.desc, sizes[0]))
    return pages(parts)


class Bitmap:
    """The log as the front-end sees it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("dirty-log", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)

    def clear(self) -> None:
        self.map[:] = bytes(self.size)

    def marked(self) -> set[int]:
        data = self.map[:]
        return {
            8 * at + bit
            for at, byte in enumerate(data)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        }

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


@contextmanager
def logged(machine: Machine) -> Iterator[Bitmap]:
    """A log for all of the machine's memory, given to the back-end; logging is off."""
    frontend: Frontend = machine.frontend
    end = max(region.end for ram in machine.rams for region in ram.regions)
    bitmap = Bitmap(-(-end // (8 * LOG_PAGE)))
    try:
        for index, ring in frontend.rings.items():
            layout = machine.queues[index].layout
            ring.spec = RingSpec(
                index,
                layout.size,
                layout.desc_user,
                layout.avail_user,
                layout.used_user,
                log_addr=layout.used,
            )
        frontend.set_log_base(bitmap.fd, bitmap.size)
        yield bitmap
    finally:
        bitmap.close()


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
def test_the_log_is_exact_while_it_is_on_and_untouched_while_it_is_off(
    engine: Engine, folder: Path, seconds: float, packed: bool
) -> None:
    path = engine.serve_disk("file", folder)
    with (
        Machine(path, packed=packed, queue_type=WatchedQueue) as machine,
        logged(machine) as bitmap,
    ):
        # The cache mode is the driver's choice and no business of whoever switches the log.
        machine.frontend.set_config(WCE_OFFSET, b"\0")
        watched = [queue for queue in machine.queues if isinstance(queue, WatchedQueue)]
        ring_pages = set().union(*(device_parts(queue.layout) for queue in watched))
        for _ in range(4):
            for queue in watched:
                queue.logging_begins()
            bitmap.clear()
            machine.frontend.set_logging(True)
            assert machine.frontend.get_config(WCE_OFFSET, 1) == b"\0"
            for queue in watched:
                queue.logging_is_on()
            machine.assert_alive()
            time.sleep(seconds / 8)
            verdicts = [queue.verdict() for queue in watched]
            machine.frontend.set_logging(False)
            off = bitmap.marked()
            possible = set().union(*(queue.verdict()[1] for queue in watched))
            missing = set().union(*(certain for certain, _ in verdicts)) - off
            assert not missing, f"written by the device and not marked: {sorted(missing)}"
            surplus = off - possible - ring_pages
            assert not surplus, f"marked, but never the device's to write: {sorted(surplus)}"
            assert {queue.layout.used // LOG_PAGE for queue in watched} <= off
            machine.assert_alive()
            assert bitmap.marked() == off, "marked although logging is off"
