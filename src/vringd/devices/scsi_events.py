"""The event queue of virtio-scsi: what a driver is told without asking (virtio 1.3, 5.6.6.3)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from vringd.core.virtqueue import Virtqueue
from vringd.devices.scsi_config import EVENT_SIZE, encode_reported_lun

_EVENT: Final = struct.Struct("<I8sI")
_MISSED: Final = 0x80000000


class Event(IntEnum):
    """Kinds of events."""

    NO_EVENT = 0
    TRANSPORT_RESET = 1
    PARAM_CHANGE = 3


class ResetReason(IntEnum):
    """Of TRANSPORT_RESET."""

    RESCAN = 1  # a unit has come
    REMOVED = 2


def change_reason(code: int, qualifier: int) -> int:
    """Of PARAM_CHANGE: an additional sense code and its qualifier, as a unit attention has."""
    return code | qualifier << 8


CAPACITY_CHANGED: Final = change_reason(0x2A, 0x09)
MODE_CHANGED: Final = change_reason(0x2A, 0x01)


class EventQueue:
    """Puts events into the buffers that a driver provides.

    An event for which there is no buffer is dropped, and the next one says so: if nothing else
    comes before, one without content, as soon as there is a buffer. queue: set while it runs.
    """

    def __init__(self) -> None:
        self.queue: Virtqueue | None = None
        self._missed = False

    def forget(self) -> None:
        """The driver starts anew: it looks for itself."""
        self._missed = False

    def send(self, event: Event, target: int, lun: int, reason: int) -> None:
        """Tell the driver of an event about a unit."""
        if not self._put(event, encode_reported_lun(target, lun), reason):
            self._missed = True

    def buffers_came(self) -> None:
        """The driver has provided buffers."""
        if self._missed:
            self._put(Event.NO_EVENT, bytes(8), 0)

    def _put(self, event: Event, address: bytes, reason: int) -> bool:
        if self.queue is None:
            return False
        chain = self.queue.pop()
        if chain is None and self.queue.enable_notification():
            chain = self.queue.pop()
        if chain is None:
            return False
        data = _EVENT.pack(event | (_MISSED if self._missed else 0), address, reason)
        # A buffer that is too small is lost with its event (5.6.6.3.2 forbids such buffers).
        written = chain.write(data)
        self.queue.push(chain, written)
        self._missed = written < EVENT_SIZE
        if self.queue.publish():
            self.queue.notify()
        return True
