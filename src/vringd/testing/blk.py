"""The virtio-blk driver of a fake guest: requests over a `DriverQueue` (virtio 1.3, 5.2)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from vringd.testing.chains import POISON, ChainDriver, Split
from vringd.testing.driver import DriverError, DriverQueue

SECTOR = 512
ID_BYTES = 20
UNMAP = 1  # flag of a write-zeroes range (5.2.6.2)
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


class BlkDriver:
    """virtio-blk requests, synchronous or `submit_*` and `complete`, for one thread at a time.

    `timeout` is in seconds and applies to each synchronous request. `indirect` puts every request
    into an indirect table. `split` cuts requests, which by default are a header of 16 bytes and
    data, then data and the status byte, each in descriptors of their own. With `strict` a used
    length that does not cover the data and the status byte of a successful request is an error:
    the standard forbids a driver to believe what lies beyond (2.7.8.2).

    Methods raise BlkError for a status other than OK (not `complete`), and what `ChainDriver`
    raises.
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
        self.split = split or Split()
        self.indirect = indirect
        self.strict = strict
        self._chains = ChainDriver(queue, timeout=timeout)
        self._kinds: dict[int, int] = {}

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
        classic_in = (read_size,) if read_size else ()
        token = self._chains.send(
            _HEADER.pack(kind, ioprio, sector) + data,
            (_HEADER.size,) if split.out is None else split.out,
            read_size + 1,
            classic_in if split.in_ is None else split.in_,
            indirect=self.indirect if indirect is None else indirect,
            kick=kick,
        )
        self._kinds[token] = kind
        return token

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet seen to be finished."""
        return self._chains.in_flight

    def complete(self, token: int | None = None, timeout: float | None = None) -> BlkResult:
        """Wait for request `token`, or for whichever finishes first; `timeout` is in seconds. As
        `ChainDriver.receive`."""
        returned = self._chains.receive(token, timeout)
        token, received, written = returned.token, returned.received, returned.written
        kind = self._kinds.pop(token)
        status = received[-1]
        if status == POISON:
            raise DriverError(f"request {token}: the device did not write the status byte")
        if self.strict and status == BlkStatus.OK and written != len(received):
            raise DriverError(
                f"request {token}: used length {written}, but {len(received)} bytes were due"
            )
        data = received[:-1] if status == BlkStatus.OK else b""
        return BlkResult(token, kind, status, data, written)

    def poll(self) -> int:
        """Take back what is finished, without waiting; returns how many requests."""
        return self._chains.poll()

    def _wait_for(self, token: int) -> BlkResult:
        return self.complete(token).check()


def pack_ranges(ranges: Sequence[tuple[int, int]], *, flags: int = 0) -> bytes:
    """Encode (first sector, number of sectors) ranges for discard and its kin (5.2.6)."""
    return b"".join(_RANGE.pack(sector, count, flags) for sector, count in ranges)
