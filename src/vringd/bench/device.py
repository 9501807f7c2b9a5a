"""A device at the other end of a socket: connected, negotiated, its rings running."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from vringd.bench.errors import JobOptionError, ServerError
from vringd.bench.target import Target
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend, FrontendError
from vringd.testing.memory import GuestRam

_VERSION_1 = 1 << 32
_PACKED = 1 << 34
_EVENT_IDX = 1 << 29
_INDIRECT = 1 << 28


def ring_memory(queues: int, queue_size: int) -> int:
    """Bytes that the rings and their indirect tables take at most, with room between them."""
    return queues * (queue_size * (16 * 3 + 16 + 12) + 65536) + (1 << 20)


class VhostDevice(ABC):
    """The device, until the end of `with`. Raises ServerError for a server that refuses.

    memory: bytes of guest memory for the jobs' buffers; queues: how many rings they want.
    capacity: bytes of the disk; lun: how virtio-scsi's requests name it, None for virtio-blk.
    """

    first_queue: ClassVar[int] = 0
    """How many virtqueues stand before those for requests."""
    wanted_features: ClassVar[int] = 0
    lun: bytes | None = None

    capacity: int
    block_size: int
    read_only: bool
    has_discard: bool

    def __init__(self, target: Target, *, queues: int, memory: int) -> None:
        assert target.socket is not None
        self._target = target
        try:
            self._frontend = Frontend.connect(target.socket)
        except (OSError, FrontendError) as error:
            raise ServerError(
                f"{target.socket}: {error}; start the server first, and name its socket"
            ) from None
        self.queues: list[DriverQueue] = []
        self._others: list[DriverQueue] = []
        self.ram: GuestRam | None = None
        try:
            self._negotiate()
            self.num_queues = self._choose_queues(queues)
            self._start(memory)
            self.discover()
        except FrontendError as error:
            self.close()
            raise ServerError(f"{target.socket}: {error}") from None
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def count_queues(self) -> int:
        """How many request queues the device has."""

    @abstractmethod
    def discover(self) -> None:
        """Find out what the disk is like; the rings run. Raises ServerError."""

    def _negotiate(self) -> None:
        target = self._target
        wanted = _VERSION_1 | _INDIRECT | self.wanted_features
        wanted |= _EVENT_IDX if target.event_idx else 0
        wanted |= _PACKED if target.packed else 0
        self._frontend.negotiate(features=wanted)
        self.features = self._frontend.features
        if target.packed and not self.features & _PACKED:
            raise ServerError(
                f"{target.socket}: the server has no packed rings; leave out --packed"
            )
        self.indirect = bool(self.features & _INDIRECT)

    def _config(self, offset: int, size: int, whole: int) -> int:
        """A little-endian number of the configuration space, of which `whole` bytes are read:
        from the start, since QEMU's storage daemon takes no notice of the offset in GET_CONFIG."""
        config = self._frontend.get_config(0, whole)
        return int.from_bytes(config[offset : offset + size], "little")

    def _choose_queues(self, wanted: int) -> int:
        has = self.count_queues()
        if self._target.num_queues is None:
            return max(1, min(has, wanted))
        if self._target.num_queues > has:
            raise JobOptionError(
                f"--queues {self._target.num_queues}: the device has {has}; give it more, or ask"
                " for fewer"
            )
        return self._target.num_queues

    def _start(self, memory: int) -> None:
        target = self._target
        count = self.first_queue + self.num_queues
        size = (memory + ring_memory(count, target.queue_size) + 4095) // 4096 * 4096
        self.ram = GuestRam([size], populate=True)
        self._frontend.add_ram(self.ram)
        for index in range(count):
            try:
                queue = DriverQueue(
                    self.ram,
                    target.queue_size,
                    packed=target.packed,
                    event_idx=bool(self.features & _EVENT_IDX),
                    indirect=self.indirect,
                    max_indirect=3,
                    scramble=0,
                )
            except ValueError as error:
                raise JobOptionError(f"--queue-size {target.queue_size}: {error}") from None
            (self._others if index < self.first_queue else self.queues).append(queue)
            self._frontend.attach(index, queue)

    def is_gone(self) -> bool:
        """Whether the server has closed the connection, or died."""
        poller = select.poll()
        poller.register(self._frontend.fileno(), select.POLLRDHUP)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Disconnect; the rings must be at rest or the server gone."""
        self._frontend.close()
        for queue in (*self.queues, *self._others):
            queue.close()
        self.queues.clear()
        self._others.clear()
        if self.ram is not None:
            self.ram.close()
            self.ram = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
