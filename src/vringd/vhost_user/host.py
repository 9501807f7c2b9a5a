"""What a session needs of the device that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.stats import QueueStats
from vringd.core.virtqueue import Virtqueue


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Leaves a property of a running queue as it is."""


class QueueHost(Protocol):
    """A device as its vhost-user session sees it.

    All methods are called in the event loop, for one queue never two at a time. Coroutines
    return when the data plane has really done it; a session waits for them as long as it takes.
    """

    @property
    def name(self) -> str:
        """For log lines, e.g. the id of the export."""

    @property
    def num_queues(self) -> int:
        """How many virtqueues the device has, 1 to 256."""

    @property
    def max_queue_size(self) -> int:
        """The largest queue size in entries, a power of two."""

    @property
    def device_features(self) -> int:
        """Virtio feature bits of the device and its rings, without those of vhost itself."""

    @property
    def stats(self) -> Sequence[QueueStats]:
        """The counters of each queue; they go on over restarts and front-ends."""

    on_config_change: Callable[[], None] | None
    """Set while a front-end is connected; the host calls it in the event loop whenever the
    configuration space has changed for another reason than `write_config`."""

    on_queue_broken: Callable[[int, str], None] | None
    """Set while a front-end is connected; the host calls it in the event loop with the index of
    a queue that met a bad ring or broken memory, and a sentence that says what. The session
    then stops every queue of the device."""

    def set_driver_features(self, features: int) -> None:
        """Take the bits that the driver acknowledged, a subset of `device_features`."""

    def read_config(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes of configuration space, zeros behind its end.

        Raises ValueError when the range does not end within 256 bytes.
        """

    def write_config(self, offset: int, data: bytes) -> None:
        """Store what the driver wrote. Raises ValueError for fields that are not writable."""

    async def start_queue(self, queue: Virtqueue) -> None:
        """Hand the queue to its IOThread, which processes it from now on."""

    async def stop_queue(self, queue: Virtqueue) -> None:
        """Complete every request in flight and take the queue back; `queue.base` is valid then."""

    async def update_queue(
        self,
        queue: Virtqueue,
        *,
        memory: GuestMemory | Unchanged = UNCHANGED,
        log: DirtyLog | Unchanged | None = UNCHANGED,
        log_addr: int | Unchanged | None = UNCHANGED,
        call_fd: int | Unchanged = UNCHANGED,
    ) -> None:
        """Change a running queue without a drain.

        New memory only ever adds regions. Descriptors are duplicated; -1 stands for none. When
        it returns, the IOThread has stopped using what was replaced.
        """

    def reset(self) -> None:
        """Give the device's own state, such as written configuration, its initial values."""
