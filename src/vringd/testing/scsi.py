"""The virtio-scsi driver of a fake guest: commands, task management, events (virtio 1.3, 5.6)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from vringd.devices.scsi_config import CDB_SIZE, EVENT_SIZE, SENSE_SIZE, encode_lun
from vringd.testing.chains import POISON, ChainDriver, Split
from vringd.testing.driver import DriverError, DriverQueue

_HEADER: Final = struct.Struct("<8sQBBB")
_RESPONSE: Final = struct.Struct("<IIHBB")
_EVENT: Final = struct.Struct("<I8sI")
TMF: Final = struct.Struct("<II8sQ")


class Response(IntEnum):
    """What the device says to a request (5.6.6.1.1, 5.6.6.2)."""

    OK = 0
    FUNCTION_COMPLETE = 0
    OVERRUN = 1
    ABORTED = 2
    BAD_TARGET = 3
    RESET = 4
    BUSY = 5
    FAILURE = 9
    FUNCTION_SUCCEEDED = 10
    FUNCTION_REJECTED = 11
    INCORRECT_LUN = 12


class Sense(NamedTuple):
    """Sense key, additional sense code and its qualifier."""

    key: int
    code: int
    qualifier: int


class ScsiError(Exception):
    """A command did not end with OK and GOOD; see `result`."""

    def __init__(self, result: ScsiResult) -> None:
        self.result = result
        super().__init__(
            f"response {result.response!r}, status {result.status:#x}, sense {result.sense}"
        )


@dataclass(frozen=True)
class ScsiResult:
    """A finished command. `data`: all of Data-In, with POISON where nothing was put; `residual`
    in bytes; `sense_data` as received."""

    token: int
    response: Response
    status: int
    residual: int
    sense_data: bytes
    data: bytes
    written: int

    @property
    def sense(self) -> Sense | None:
        """Of sense data in either format (SPC-5, 4.4)."""
        if not self.sense_data:
            return None
        if self.sense_data[0] & 0x7F in (0x72, 0x73):
            return Sense(self.sense_data[1] & 15, self.sense_data[2], self.sense_data[3])
        return Sense(self.sense_data[2] & 15, self.sense_data[12], self.sense_data[13])

    def check(self) -> ScsiResult:
        """Return self. Raises ScsiError unless it went well."""
        if self.response != Response.OK or self.status != 0:
            raise ScsiError(self)
        return self


class ScsiDriver:
    """Commands on one command queue, for one thread at a time.

    `unit` is the (target, LUN) of commands that name none. `cdb_size` and `sense_size` are what
    the driver has written to the configuration space. Methods raise what `ChainDriver` raises.
    """

    def __init__(
        self,
        queue: DriverQueue,
        *,
        unit: tuple[int, int] = (0, 0),
        timeout: float = 10.0,
        split: Split | None = None,
        indirect: bool = False,
        cdb_size: int = CDB_SIZE,
        sense_size: int = SENSE_SIZE,
    ) -> None:
        self.queue = queue
        self.unit = unit
        self.split = split or Split()
        self.indirect = indirect
        self.cdb_size = cdb_size
        self.sense_size = sense_size
        self._chains = ChainDriver(queue, timeout=timeout)
        self._sense_sizes: dict[int, int] = {}
        self._next_tag = 1

    def submit(
        self,
        cdb: bytes,
        *,
        data_in: int = 0,
        data_out: bytes = b"",
        lun: bytes | None = None,
        tag: int | None = None,
        attribute: int = 0,
        split: Split | None = None,
        kick: bool = True,
    ) -> int:
        """Start a command; returns the token for `complete`. lun: the eight bytes of an address,
        default: `unit`. tag: default: one that no other command has had."""
        if tag is None:
            tag, self._next_tag = self._next_tag, self._next_tag + 1
        address = encode_lun(*self.unit) if lun is None else lun
        header = _HEADER.pack(address, tag, attribute, 0, 0) + cdb.ljust(self.cdb_size, b"\0")
        split = split or self.split
        response = _RESPONSE.size + self.sense_size
        token = self._chains.send(
            header + data_out,
            (len(header),) if split.out is None else split.out,
            response + data_in,
            (response,) if split.in_ is None else split.in_,
            indirect=self.indirect,
            kick=kick,
        )
        self._sense_sizes[token] = self.sense_size
        return token

    def complete(self, token: int | None = None, timeout: float | None = None) -> ScsiResult:
        """Wait for a command, or for whichever ends first. As `ChainDriver.receive`."""
        returned = self._chains.receive(token, timeout)
        sense_size = self._sense_sizes.pop(returned.token)
        head = returned.received[: _RESPONSE.size]
        sense_end = _RESPONSE.size + sense_size
        sense_length, residual, qualifier, status, response = _RESPONSE.unpack(head)
        if head == bytes([POISON]) * _RESPONSE.size:
            raise DriverError(f"command {returned.token}: the device did not write a response")
        if qualifier or sense_length > sense_size:
            raise DriverError(f"command {returned.token}: a malformed response")
        if returned.written < sense_end:
            raise DriverError(
                f"command {returned.token}: used length {returned.written} for a response of"
                f" {sense_end} bytes"
            )
        return ScsiResult(
            returned.token,
            Response(response),
            status,
            residual,
            returned.received[_RESPONSE.size :][:sense_length],
            returned.received[sense_end:],
            returned.written,
        )

    def run(
        self,
        cdb: bytes,
        *,
        data_in: int = 0,
        data_out: bytes = b"",
        lun: bytes | None = None,
        split: Split | None = None,
    ) -> ScsiResult:
        """A command from its beginning to its end."""
        return self.complete(
            self.submit(cdb, data_in=data_in, data_out=data_out, lun=lun, split=split)
        )

    def writable(self, token: int) -> list[tuple[int, int]]:
        """As `ChainDriver.writable`."""
        return self._chains.writable(token)

    @property
    def in_flight(self) -> int:
        """Commands submitted and not yet seen to have ended."""
        return self._chains.in_flight

    def poll(self) -> int:
        """Take back what has ended, without waiting; returns how many commands."""
        return self._chains.poll()


class ControlDriver:
    """Requests on the control queue."""

    def __init__(self, queue: DriverQueue, *, timeout: float = 10.0) -> None:
        self._chains = ChainDriver(queue, timeout=timeout)

    def submit(self, request: bytes, room: int = 1) -> int:
        """Start any request, sensible or not; returns the token for `receive`."""
        return self._chains.send(request, (), room, ())

    def receive(self, token: int, timeout: float | None = None) -> bytes:
        """Wait for the response to a request."""
        return self._chains.receive(token, timeout).received

    def start(self, function: int, target: int = 0, lun: int = 0, *, tag: int = 0) -> int:
        """Start a task management function; returns the token for `result`."""
        return self.submit(TMF.pack(0, function, encode_lun(target, lun), tag))

    def result(self, token: int, timeout: float | None = None) -> Response:
        """Wait for the end of a function."""
        return Response(self.receive(token, timeout)[0])

    def manage(self, function: int, target: int = 0, lun: int = 0, *, tag: int = 0) -> Response:
        """A task management function from its beginning to its end."""
        return self.result(self.start(function, target, lun, tag=tag))

    def is_pending(self, token: int) -> bool:
        """Whether the request has no answer yet."""
        try:
            self._chains.receive(token, 0.0)
        except TimeoutError:
            return True
        raise DriverError(f"request {token} was answered")


class EventReport(NamedTuple):
    """An event, with the bit that tells of missed ones apart."""

    event: int
    lun: bytes
    reason: int
    missed: bool


class EventDriver:
    """Buffers on the event queue."""

    def __init__(self, queue: DriverQueue, *, timeout: float = 10.0) -> None:
        self._chains = ChainDriver(queue, timeout=timeout)

    def provide(self, count: int, sizes: Sequence[int] = ()) -> None:
        """Give the device count more buffers; sizes: how each is cut."""
        for _ in range(count):
            self._chains.send(b"", (), EVENT_SIZE, sizes)

    def receive(self, timeout: float | None = None) -> EventReport:
        """Wait for an event."""
        returned = self._chains.receive(timeout=timeout)
        if returned.written != EVENT_SIZE:
            raise DriverError(f"an event of {returned.written} bytes")
        event, lun, reason = _EVENT.unpack(returned.received)
        return EventReport(event & 0x7FFFFFFF, lun, reason, bool(event >> 31))
