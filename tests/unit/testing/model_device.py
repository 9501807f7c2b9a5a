"""The device side of both ring formats, written for reading: the model that tests compare with.

It works on guest memory through `GuestRam.read` and `write`, keeps every counter unbounded and
takes only the residue when it touches memory, so the wrap-arounds that real code gets wrong do
not exist here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from vringd.testing.driver import DriverQueue

NEXT, WRITE, INDIRECT = 1, 2, 4
AVAIL, USED = 1 << 7, 1 << 15
EVENT_ENABLE, EVENT_DISABLE, EVENT_DESC = 0, 1, 2

Segment = tuple[int, int]


class ModelError(AssertionError):
    """The driver broke a rule of the ring."""


@dataclass(frozen=True)
class Chain:
    """A buffer as the device finds it: `count` ring entries, readable and writable segments."""

    id: int
    count: int
    out: tuple[Segment, ...]
    in_: tuple[Segment, ...]

    @property
    def writable(self) -> int:
        return sum(length for _, length in self.in_)


class _Model:
    def __init__(self, queue: DriverQueue) -> None:
        self.ram = queue.ram
        self.layout = queue.layout
        self.size = queue.size
        self.event_idx = queue.event_idx
        self.in_order = queue.in_order
        self.indirect = queue.indirect
        self.call_fd = queue.call_fd
        self.pending: list[Chain] = []  # popped and not yet pushed, in order

    def _u16(self, addr: int) -> int:
        return int.from_bytes(self.ram.read(addr, 2), "little")

    def _set_u16(self, addr: int, value: int) -> None:
        self.ram.write(addr, (value & 0xFFFF).to_bytes(2, "little"))

    def _desc(self, table: int, index: int) -> tuple[int, int, int, int]:
        addr, length, a, b = struct.unpack("<QIHH", self.ram.read(table + 16 * index, 16))
        return addr, length, a, b

    def _chain(self, id: int, count: int, segments: Sequence[tuple[int, int, int]]) -> Chain:
        kinds = [bool(flags & WRITE) for _, _, flags in segments]
        if kinds != sorted(kinds):
            raise ModelError(f"buffer {id}: a readable segment follows a writable one")
        for chain in self.pending:
            if chain.id == id:
                raise ModelError(f"buffer {id} is in flight already")
        out = tuple((addr, length) for addr, length, flags in segments if not flags & WRITE)
        in_ = tuple((addr, length) for addr, length, flags in segments if flags & WRITE)
        chain = Chain(id, count, out, in_)
        self.pending.append(chain)
        return chain

    def _take(self, chain: Chain) -> int:
        """Remove `chain` from the pending ones; returns how many this completes."""
        at = self.pending.index(chain)
        count = at + 1 if self.in_order else 1
        if self.in_order:
            del self.pending[:count]
        else:
            del self.pending[at]
        return count

    def _notify_if(self, due: bool) -> bool:
        if due:
            os.eventfd_write(self.call_fd, 1)
        return due


class SplitModel(_Model):
    """Section 2.7. All counters are unbounded."""

    def __init__(self, queue: DriverQueue) -> None:
        super().__init__(queue)
        self.next_avail = queue.base
        self.next_used = queue.base  # as written to used.idx
        self.unnotified = 0

    def pop(self) -> Chain | None:
        if self._u16(self.layout.avail + 2) == self.next_avail & 0xFFFF:
            return None
        head = self._u16(self.layout.avail + 4 + 2 * (self.next_avail % self.size))
        segments: list[tuple[int, int, int]] = []
        index, count = head, 0
        while True:
            count += 1
            if count > self.size:
                raise ModelError(f"buffer {head}: the chain loops")
            addr, length, flags, following = self._desc(self.layout.desc, index)
            if flags & INDIRECT:
                segments += self._table(addr, length, flags)
                break
            segments.append((addr, length, flags))
            if not flags & NEXT:
                break
            if self.in_order and following != (index + 1) % self.size:
                raise ModelError(f"descriptor {index}: next is {following} under IN_ORDER")
            index = following
        self.next_avail += 1
        return self._chain(head, count, segments)

    def _table(self, addr: int, length: int, flags: int) -> list[tuple[int, int, int]]:
        if not self.indirect or flags & NEXT or length % 16 or length == 0:
            raise ModelError(f"bad indirect descriptor: length {length}, flags {flags:#x}")
        segments, index = [], 0
        while True:
            d_addr, d_length, d_flags, following = self._desc(addr, index)
            if d_flags & INDIRECT:
                raise ModelError("an indirect table within an indirect table")
            segments.append((d_addr, d_length, d_flags))
            if not d_flags & NEXT:
                break
            if not index < following < length // 16:
                raise ModelError(f"indirect descriptor {index}: next is {following}")
            index = following
        return segments

    def push(self, chain: Chain, written: int) -> bool:
        """Use `chain` (and all before it under IN_ORDER); returns whether it notified."""
        count = self._take(chain)
        slot = self.layout.used + 4 + 8 * (self.next_used % self.size)
        self.ram.write(slot, struct.pack("<II", chain.id, written))
        self.next_used += count
        self._set_u16(self.layout.used + 2, self.next_used)
        if not self.event_idx:
            return self._notify_if(not self._u16(self.layout.avail) & 1)
        event = self._u16(self.layout.avail + 4 + 2 * self.size)
        entries = range(self.next_used - count, self.next_used)
        return self._notify_if(any(i & 0xFFFF == event for i in entries))

    def enable_kicks(self) -> bool:
        """Ask to be kicked for the next buffer; returns whether there already is one."""
        if self.event_idx:
            self._set_u16(self.layout.used + 4 + 8 * self.size, self.next_avail)
        else:
            self._set_u16(self.layout.used, 0)
        return self._u16(self.layout.avail + 2) != self.next_avail & 0xFFFF

    def disable_kicks(self) -> None:
        if not self.event_idx:
            self._set_u16(self.layout.used, 1)


class PackedModel(_Model):
    """Section 2.8. Positions count up for ever: lap = position // size, wrap = lap is even."""

    def __init__(self, queue: DriverQueue) -> None:
        super().__init__(queue)
        wrap = queue.base >> 15 & 1
        start = (queue.base & 0x7FFF) + (0 if wrap else self.size)
        self.next_avail = start
        self.next_used = start

    def _slot(self, position: int) -> int:
        return position % self.size

    def _wrap(self, position: int) -> bool:
        return position // self.size % 2 == 0

    def _event_position(self, addr: int) -> tuple[int, int]:
        off_wrap, flags = struct.unpack("<HH", self.ram.read(addr, 4))
        return (off_wrap & 0x7FFF) + (0 if off_wrap >> 15 else self.size), flags & 3

    def _is_avail(self, position: int) -> bool:
        flags = self._desc(self.layout.desc, self._slot(position))[3]
        wrap = self._wrap(position)
        return bool(flags & AVAIL) == wrap and bool(flags & USED) != wrap

    def pop(self) -> Chain | None:
        if not self._is_avail(self.next_avail):
            return None
        segments: list[tuple[int, int, int]] = []
        position = self.next_avail
        while True:
            if not self._is_avail(position):
                raise ModelError(f"slot {self._slot(position)}: not available within a chain")
            addr, length, id, flags = self._desc(self.layout.desc, self._slot(position))
            position += 1
            if position - self.next_avail > self.size:
                raise ModelError("the chain is longer than the ring")
            if flags & INDIRECT:
                if not self.indirect or flags & NEXT or position - self.next_avail > 1:
                    raise ModelError(f"bad indirect descriptor with flags {flags:#x}")
                for i in range(length // 16):
                    d_addr, d_length, _, d_flags = self._desc(addr, i)
                    if d_flags & ~WRITE:
                        raise ModelError(f"indirect descriptor {i} has flags {d_flags:#x}")
                    segments.append((d_addr, d_length, d_flags))
                break
            segments.append((addr, length, flags))
            if not flags & NEXT:
                break
        count = position - self.next_avail
        self.next_avail = position
        return self._chain(id, count, segments)

    def push(self, chain: Chain, written: int) -> bool:
        """Use `chain` (and all before it under IN_ORDER); returns whether it notified."""
        before = list(self.pending)
        number = self._take(chain)
        skipped = before[:number] if self.in_order else [chain]
        count = sum(c.count for c in skipped)
        flags = (AVAIL | USED if self._wrap(self.next_used) else 0) | (WRITE if written else 0)
        slot = self.layout.desc + 16 * self._slot(self.next_used)
        # The address is unused and the length reserved without WRITE: poison.
        length = written if written else 0xDEAD_BEEF
        self.ram.write(slot, struct.pack("<QIH", 0xBAD_ADD2_0000, length, chain.id))
        self._set_u16(slot + 14, flags)
        entries = range(self.next_used, self.next_used + count)
        self.next_used += count
        event, event_flags = self._event_position(self.layout.avail)
        if event_flags == EVENT_DESC and self.event_idx:
            return self._notify_if(any(p % (2 * self.size) == event for p in entries))
        return self._notify_if(event_flags != EVENT_DISABLE)

    def enable_kicks(self) -> bool:
        """Ask to be kicked for the next buffer; returns whether there already is one."""
        if self.event_idx:
            off_wrap = self._slot(self.next_avail) | self._wrap(self.next_avail) << 15
            self.ram.write(self.layout.used, struct.pack("<HH", off_wrap, EVENT_DESC))
        else:
            self.ram.write(self.layout.used, struct.pack("<HH", 0, EVENT_ENABLE))
        return self._is_avail(self.next_avail)

    def disable_kicks(self) -> None:
        self.ram.write(self.layout.used, struct.pack("<HH", 0, EVENT_DISABLE))


Model = SplitModel | PackedModel


def model_device(queue: DriverQueue) -> Model:
    """The model of a device that was just started on `queue`."""
    return PackedModel(queue) if queue.packed else SplitModel(queue)
