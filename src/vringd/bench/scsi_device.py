"""A virtio-scsi device of a server, and one of its disks (virtio 1.3, 5.6; SBC-4, SPC-5)."""

from __future__ import annotations

import struct
import time
from typing import Final

from vringd.bench.device import VhostDevice
from vringd.bench.errors import JobOptionError, ServerError

# struct virtio_scsi_config (5.6.4): num_queues stands first.
_CONFIG_BYTES: Final = 36
_REQUEST: Final = struct.Struct("<8sQBBB32s")
_RESPONSE: Final = struct.Struct("<IIHBB96s")
_DATA_ROOM: Final = 512
_TRIES: Final = 20
_SECONDS: Final = 5.0
_RESPONSES: Final = {
    1: "OVERRUN",
    2: "ABORTED",
    3: "BAD TARGET",
    4: "RESET",
    5: "BUSY",
    6: "TRANSPORT FAILURE",
    7: "TARGET FAILURE",
    8: "NEXUS FAILURE",
    9: "FAILURE",
}
_STATUSES: Final = {
    0x02: "CHECK CONDITION",
    0x08: "BUSY",
    0x18: "RESERVATION CONFLICT",
    0x28: "TASK SET FULL",
    0x40: "TASK ABORTED",
}


def lun_bytes(target: int, lun: int) -> bytes:
    """How requests name a unit (5.6.6.1): one, the target, and a LUN in flat space form."""
    return bytes((1, target, 0x40 | lun >> 8, lun & 0xFF, 0, 0, 0, 0))


def describe_status(found: int) -> str:
    """Words for what `status_of` (requests.pxd) returns."""
    response, status = found & 0xFF, found >> 8 & 0xFF
    key, code, qualifier = found >> 16 & 0xFF, found >> 24 & 0xFF, found >> 32 & 0xFF
    if response == 0xFF:
        return "no response at all"
    if response:
        return f"the response {_RESPONSES.get(response, response)}"
    words = f"the status {_STATUSES.get(status, hex(status))}"
    if key or code:
        words += f", sense {key:X}/{code:02X}/{qualifier:02X}"
    return words


class ScsiDevice(VhostDevice):
    """The device and the disk `target.scsi_unit` (target, LUN) of it."""

    first_queue = 2  # control and event

    def count_queues(self) -> int:
        # Some servers leave the configuration space to the VMM: then the protocol tells.
        told = self._config(0, 4, _CONFIG_BYTES)
        return told or self._frontend.get_queue_num() - self.first_queue

    def discover(self) -> None:
        target, lun = self._target.scsi_unit
        self._name = f"{self._target.socket}: target {target} LUN {lun}"
        self.lun = lun_bytes(target, lun)
        self._ready()
        found = self._command(bytes((0x9E, 0x10, *[0] * 11, 32, 0, 0)), 32)  # READ CAPACITY (16)
        last, self.block_size = struct.unpack_from(">QI", found)
        if self.block_size < 512 or self.block_size & (self.block_size - 1):
            raise ServerError(f"{self._name}: a logical block of {self.block_size} bytes")
        self.capacity = (last + 1) * self.block_size
        self.has_discard = bool(found[14] & 0x80)  # LBPME
        # MODE SENSE (6), all pages: the write-protect bit of the header.
        self.read_only = bool(self._command(bytes((0x1A, 0, 0x3F, 0, 4, 0)), 4)[2] & 0x80)

    def _ready(self) -> None:
        """TEST UNIT READY, until all unit attentions have been told."""
        for _ in range(_TRIES):
            response, status, sense = self._send(bytes(6), 0)[:3]
            if response == 3:
                raise JobOptionError(
                    f"{self._name}: there is no such disk; choose another with --lun"
                )
            if response == 0 and status == 0:
                return
            if response or status != 0x02 or sense[2] & 15 != 6:
                self._refuse("TEST UNIT READY", response, status, sense)
        raise ServerError(f"{self._name}: unit attentions without an end")

    def _command(self, cdb: bytes, size: int) -> bytes:
        response, status, sense, data = self._send(cdb, size)
        if response or status:
            self._refuse(f"the command {cdb[0]:02X}h", response, status, sense)
        return data

    def _refuse(self, what: str, response: int, status: int, sense: bytes) -> None:
        found = response | status << 8
        if sense[0] & 0x7F == 0x70:
            found |= (sense[2] & 15) << 16 | sense[12] << 24 | sense[13] << 32
        raise ServerError(f"{self._name}: {what} ended with {describe_status(found)}")

    def _send(self, cdb: bytes, size: int) -> tuple[int, int, bytes, bytes]:
        """One command with `size` bytes of Data-In: response, status, sense, data."""
        assert self.ram is not None
        assert self.lun is not None
        queue = self.queues[0]
        at = self.ram.alloc(_REQUEST.size + _RESPONSE.size + _DATA_ROOM, 64)
        response_at = at + _REQUEST.size
        data_at = response_at + _RESPONSE.size
        try:
            self.ram.write(at, _REQUEST.pack(self.lun, at, 0, 0, 0, cdb))
            self.ram.write(response_at, b"\xff" * _RESPONSE.size + bytes(_DATA_ROOM))
            writable = [(response_at, _RESPONSE.size)]
            if size:
                writable.append((data_at, size))
            queue.add([(at, _REQUEST.size)], writable)
            queue.publish()
            queue.kick()
            self._await_used()
            answer = self.ram.read(response_at, _RESPONSE.size)
            _, _, _, status, response, sense = _RESPONSE.unpack(answer)
            return response, status, sense, self.ram.read(data_at, size)
        finally:
            self.ram.free(at)

    def _await_used(self) -> None:
        queue = self.queues[0]
        deadline = time.monotonic() + _SECONDS
        while queue.pop_used() is None:
            if time.monotonic() > deadline or self.is_gone():
                raise ServerError(f"{self._name}: the server does not answer a command")
            queue.wait(0.1)
