"""What exports of all kinds of devices have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from vringd.control.schema import DeviceOptions
from vringd.core.stats import QueueStats
from vringd.devices.ring_features import F_EVENT_IDX

_DEFAULT_SEG_MAX = 126  # fits a ring of 128 entries without indirect descriptors


class Device(Protocol):
    """What is in front of the rings: features and configuration space."""

    @property
    def features(self) -> int: ...
    def set_driver_features(self, features: int) -> None: ...
    def read_config(self, offset: int, size: int) -> bytes: ...
    def write_config(self, offset: int, data: bytes) -> None: ...


AnyDevice = TypeVar("AnyDevice", bound=Device)
AnyOptions = TypeVar("AnyOptions", bound=DeviceOptions)


def seg_max(options: DeviceOptions) -> int:
    """Data segments of a request that the guest is told of."""
    return options.seg_max or min(_DEFAULT_SEG_MAX, options.queue_size - 2)


class DeviceExport(Generic[AnyOptions, AnyDevice]):
    """The part of `vhost_user.host.QueueHost` that does not concern running queues.

    num_queues: of the device, all kinds of queues together.
    """

    def __init__(self, options: AnyOptions, device: AnyDevice, num_queues: int) -> None:
        self.options = options
        self.device = device
        self.stats = [QueueStats() for _ in range(num_queues)]
        self.on_config_change: Callable[[], None] | None = None
        self.on_queue_broken: Callable[[int, str], None] | None = None

    @property
    def name(self) -> str:
        return self.options.id

    @property
    def num_queues(self) -> int:
        return len(self.stats)

    @property
    def max_queue_size(self) -> int:
        return self.options.queue_size

    @property
    def device_features(self) -> int:
        features = self.device.features
        return features if self.options.event_idx else features & ~(1 << F_EVENT_IDX)

    def set_driver_features(self, features: int) -> None:
        self.device.set_driver_features(features)

    def read_config(self, offset: int, size: int) -> bytes:
        return self.device.read_config(offset, size)

    def write_config(self, offset: int, data: bytes) -> None:
        self.device.write_config(offset, data)

    def _broken(self, index: int, reason: str) -> None:
        if self.on_queue_broken is not None:
            self.on_queue_broken(index, reason)
