"""The virtio-blk driver of a fake guest: requests over a `DriverQueue` (virtio 1.3, section 5.2).

Every piece of a request lies in an allocation of its own, filled with a pattern beforehand, so
that a device which takes neighbouring descriptors for one buffer, forgets the status byte or
writes into what it should only read is found out.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from vringd.testing.driver import DriverError, DriverQueue

SECTOR = 512
ID_BYTES = 20
UNMAP = 1  # flag of a write-zeroes range (5.2.6.2)
_POISON = 0xA5
_HEADER = struct.Struct("<IIQ")
_RANGE = struct.Struct("<QII")


class BlkType(IntEnum):
    """Request types (5.2.6)."""

    IN = 0
    OUT = 1
    FLUSH = 4
    GET_ID = 8
    GET_LIFETIME = 10
    DISCARD = 11
    WRITE_ZEROES = 13
    SECURE_ERASE = 14


class BlkStatus(IntEnum):
    """Status byte (5.2.6)."""

    OK = 0
    IOERR = 1
    UNSUPP = 2


class BlkError(Exception):
    """The device answered with a status other than OK; see `status`."""

    def __init__(self, kind: int, status: int) -> None:
        self.kind = kind
        self.status = status
        super().__init__(f"request type {kind} failed with status {status}")


@dataclass(frozen=True)
class Split:
    """How a request is cut into descriptors (VIRTIO_F_ANY_LAYOUT; 2.7.4).

    `out` are the sizes in bytes of the device-readable descriptors, which hold the 16-byte header
    and then the data; `in_` those of the device-writable ones, which hold the data and then the
    status byte. What the sizes leave over goes into one more descriptor, sizes beyond the end
    are ignored. None is the classic cut: header, data and status in descriptors of their own.
    """

    out: Sequence[int] | None = None
    in_: Sequence[int] | None = None


def cut(total: int, sizes: Sequence[int]) -> list[int]:
    """Cut `total` bytes into pieces of `sizes`, the rest being the last piece."""
    pieces = []
    for size in sizes:
        if total == 0:
            break
        pieces.append(min(size, total))
        total -= pieces[-1]
    if total:
        pieces.append(total)
    return pieces


@dataclass(frozen=True)
class BlkResult:
    """A finished request. `written` is the used length, `data` what was read on success."""

    token: int
    kind: int
    status: int
    data: bytes
    written: int

    def check(self) -> BlkResult:
        """Return self. Raises BlkError unless the status is OK."""
        if self.status != BlkStatus.OK:
            raise BlkError(self.kind, self.status)
        return self


@dataclass(frozen=True)
class _Pending:
    kind: int
    out: list[tuple[int, int]]
    in_: list[tuple[int, int]]
    sent: bytes


class BlkDriver:
    """virtio-blk requests, synchronous or `submit_*` and `complete`, for one thread at a time.

    `timeout` is in seconds and applies to each synchronous request. `indirect` puts every request
    into an indirect table. With `strict` a used length that does not cover the data and the status
    byte of a successful request is an error: the standard forbids a driver to believe what lies
    beyond (2.7.8.2).

    Methods raise BlkError for a status other than OK (not `complete`), TimeoutError, DriverError
    for what the device must not do, BufferError when the ring is full, MemoryError when guest
    memory is.
    """

    def __init__(
        self,
        queue: DriverQueue,
        *,
        timeout: float = 10.0,
        split: Split | None = None,
        indirect: bool = False,
        strict: bool = True,
    ) -> None:
        self.queue = queue
        self.ram = queue.ram
        self.timeout = timeout
        self.split = split or Split()
        self.indirect = indirect
        self.strict = strict
        self._pending: dict[int, _Pending] = {}
        self._finished: dict[int, BlkResult] = {}

    # Synchronous requests

    def read(self, sector: int, size: int, *, split: Split | None = None) -> bytes:
        """Read `size` bytes from `sector` (of 512 bytes) on."""
        return self._wait_for(self.submit_read(sector, size, split=split)).data

    def write(self, sector: int, data: bytes, *, split: Split | None = None) -> None:
        """Write `data` at `sector` (of 512 bytes)."""
        self._wait_for(self.submit_write(sector, data, split=split))

    def flush(self) -> None:
        """Make completed writes permanent."""
        self._wait_for(self.submit(BlkType.FLUSH))

    def discard(self, *ranges: tuple[int, int], split: Split | None = None) -> None:
        """Discard ranges of (first sector, number of sectors)."""
        data = pack_ranges(ranges)
        self._wait_for(self.submit(BlkType.DISCARD, data=data, split=split))

    def write_zeroes(
        self, *ranges: tuple[int, int], unmap: bool = False, split: Split | None = None
    ) -> None:
        """Zero ranges of (first sector, number of sectors); `unmap` allows deallocation."""
        data = pack_ranges(ranges, flags=UNMAP if unmap else 0)
        self._wait_for(self.submit(BlkType.WRITE_ZEROES, data=data, split=split))

    def get_id(self) -> str:
        """The device's serial: up to 20 ASCII characters, NUL-padded in the answer."""
        result = self._wait_for(self.submit(BlkType.GET_ID, read_size=ID_BYTES))
        return result.data.split(b"\0", 1)[0].decode("ascii")

    # Asynchronous requests

    def submit_read(self, sector: int, size: int, *, split: Split | None = None) -> int:
        """Start a read of `size` bytes; returns the token for `complete`."""
        return self.submit(BlkType.IN, sector, read_size=size, split=split)

    def submit_write(self, sector: int, data: bytes, *, split: Split | None = None) -> int:
        """Start a write; returns the token for `complete`."""
        return self.submit(BlkType.OUT, sector, data=data, split=split)

    def submit(
        self,
        kind: int,
        sector: int = 0,
        *,
        data: bytes = b"",
        read_size: int = 0,
        ioprio: int = 0,
        split: Split | None = None,
        indirect: bool | None = None,
        kick: bool = True,
    ) -> int:
        """Start any request, sensible or not; returns the token for `complete`.

        With `kick=False` it is only added: the caller publishes and kicks, or the next submission
        does.
        """
        split = split or self.split
        sent = _HEADER.pack(kind, ioprio, sector) + data
        out_cut = cut(len(sent), (_HEADER.size,) if split.out is None else split.out)
        classic_in = (read_size,) if read_size else ()
        in_cut = cut(read_size + 1, classic_in if split.in_ is None else split.in_)
        out: list[tuple[int, int]] = []
        in_: list[tuple[int, int]] = []
        try:
            at = 0
            for size in out_cut:
                out.append((self.ram.alloc(size), size))
                self.ram.write(out[-1][0], sent[at : at + size])
                at += size
            for size in in_cut:
                in_.append((self.ram.alloc(size), size))
                self.ram.fill(*in_[-1], _POISON)
            use_table = self.indirect if indirect is None else indirect
            token = self.queue.add(out, in_, indirect=use_table)
        except BaseException:
            self._free(out + in_)
            raise
        self._pending[token] = _Pending(kind, out, in_, sent)
        if kick:
            self.queue.publish()
            self.queue.kick()
        return token

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet seen to be finished."""
        return len(self._pending)

    def complete(self, token: int | None = None, timeout: float | None = None) -> BlkResult:
        """Wait for request `token`, or for whichever finishes first; `timeout` is in seconds.

        Raises KeyError for a token that is not in flight (LookupError: None, and nothing is),
        TimeoutError, DriverError.
        """
        if token is None and not (self._pending or self._finished):
            raise LookupError("no request is in flight")
        if token is not None and token not in self._pending and token not in self._finished:
            raise KeyError(f"no request with token {token} is in flight")
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while True:
            self.poll()
            if token is None and self._finished:
                return self._finished.pop(next(iter(self._finished)))
            if token is not None and token in self._finished:
                return self._finished.pop(token)
            if not self.queue.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(
                    f"no answer within {timeout} s; in flight: {sorted(self._pending)}"
                )

    def poll(self) -> int:
        """Take back what is finished, without waiting; returns how many requests."""
        count = 0
        while (used := self.queue.pop_used()) is not None:
            result = self._finish(*used)
            self._finished[result.token] = result
            count += 1
        return count

    # Internal

    def _wait_for(self, token: int) -> BlkResult:
        return self.complete(token).check()

    def _finish(self, token: int, written: int) -> BlkResult:
        request = self._pending.pop(token)
        received = b"".join(self.ram.read(*segment) for segment in request.in_)
        sent = b"".join(self.ram.read(*segment) for segment in request.out)
        self._free(request.out + request.in_)
        status = received[-1]
        if sent != request.sent:
            raise DriverError(f"request {token}: the device wrote into device-readable memory")
        if status == _POISON:
            raise DriverError(f"request {token}: the device did not write the status byte")
        if self.strict and status == BlkStatus.OK and written != len(received):
            raise DriverError(
                f"request {token}: used length {written}, but {len(received)} bytes were due"
            )
        data = received[:-1] if status == BlkStatus.OK else b""
        return BlkResult(token, request.kind, status, data, written)

    def _free(self, segments: list[tuple[int, int]]) -> None:
        for addr, _ in segments:
            self.ram.free(addr)


def pack_ranges(ranges: Sequence[tuple[int, int]], *, flags: int = 0) -> bytes:
    """Encode (first sector, number of sectors) ranges for discard and its kin (5.2.6)."""
    return b"".join(_RANGE.pack(sector, count, flags) for sector, count in ranges)
