"""Devices of a test guest that a vhost-user server implements."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

Properties = dict[str, object]


@dataclass(frozen=True)
class VhostUserDevice(abc.ABC):
    """What all kinds have in common; use one of the subclasses.

    `socket` is the server's Unix socket. With `reconnect_ms` QEMU connects again that many
    milliseconds after it lost the server. `name` is the device's QEMU id, unique in a guest.
    `extra` holds more properties of the QEMU device, as ``-device NAME,help`` lists them.
    """

    name: str
    socket: Path
    num_queues: int = 1
    queue_size: int = 128
    packed: bool = False
    reconnect_ms: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    driver: ClassVar[str]

    @property
    def chardev_name(self) -> str:
        return f"{self.name}-chardev"

    def chardev_argument(self) -> str:
        """The value of QEMU's ``-chardev`` option."""
        text = f"socket,id={self.chardev_name},path={escaped(str(self.socket))}"
        return text if self.reconnect_ms is None else f"{text},reconnect-ms={self.reconnect_ms}"

    def chardev_backend(self) -> Properties:
        """The arguments of QMP's ``chardev-add``."""
        data: Properties = {
            "addr": {"type": "unix", "data": {"path": str(self.socket)}},
            "server": False,
        }
        if self.reconnect_ms is not None:
            data["reconnect-ms"] = self.reconnect_ms
        return {"id": self.chardev_name, "backend": {"type": "socket", "data": data}}

    def properties(self) -> Properties:
        """The properties of QEMU's device, ``driver`` first."""
        result: Properties = {"driver": self.driver, "id": self.name, "chardev": self.chardev_name}
        result.update(self._queue_properties())
        if self.packed:
            result["packed"] = True
        result.update(self.extra)
        return result

    @abc.abstractmethod
    def _queue_properties(self) -> Properties:
        """The properties that say how many queues the device has, and how large."""


@dataclass(frozen=True)
class VhostUserBlk(VhostUserDevice):
    """A virtio-blk disk: ``/dev/vda``, ``vdb``, ... in the order of the guest's devices."""

    driver: ClassVar[str] = "vhost-user-blk-pci"

    def _queue_properties(self) -> Properties:
        return {"num-queues": self.num_queues, "queue-size": self.queue_size}


@dataclass(frozen=True)
class VhostUserScsi(VhostUserDevice):
    """A virtio-scsi adapter; `num_queues` counts command queues only."""

    driver: ClassVar[str] = "vhost-user-scsi-pci"

    def _queue_properties(self) -> Properties:
        return {"num_queues": self.num_queues, "virtqueue_size": self.queue_size}


@dataclass(frozen=True)
class VhostUserFs(VhostUserDevice):
    """A virtiofs file system, mounted by its `tag`; `num_queues` counts request queues only."""

    tag: str = "vringd"

    driver: ClassVar[str] = "vhost-user-fs-pci"

    def _queue_properties(self) -> Properties:
        return {
            "tag": self.tag,
            "num-request-queues": self.num_queues,
            "queue-size": self.queue_size,
        }


def escaped(value: str) -> str:
    """A value for QEMU's key=value options, where a comma is written twice."""
    return value.replace(",", ",,")
