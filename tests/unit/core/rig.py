"""The engine put together for a test: memory, a virtqueue and an IOThread around a fake driver."""

from __future__ import annotations

import select
import time
from types import EllipsisType, TracebackType
from typing import Self

import pytest

from vringd.block.backend import BlockBackend
from vringd.core.channel import Channel, QueueHandler
from vringd.core.inflight import InflightBuffer
from vringd.core.iothread import IOThread
from vringd.core.memory import DirtyLog, GuestMemory, MemoryRegion
from vringd.core.poller import io_uring_available
from vringd.core.stats import QueueStats
from vringd.core.virtqueue import Virtqueue
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam, RamRegion

F_VERSION_1 = 1 << 32

ENGINES = pytest.mark.parametrize(
    "io_uring",
    [
        pytest.param(
            True,
            id="io_uring",
            marks=pytest.mark.skipif(
                not io_uring_available(),
                reason="io_uring is forbidden here (seccomp or kernel.io_uring_disabled)",
            ),
        ),
        pytest.param(False, id="epoll"),
    ],
)
LAYOUTS = pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])


def map_region(region: RamRegion) -> MemoryRegion:
    """The back-end's own mapping of a region of a fake guest."""
    return MemoryRegion(
        region.guest_addr, region.size, region.user_addr, region.fd, region.mmap_offset
    )


def map_ram(ram: GuestRam) -> GuestMemory:
    """All of a fake guest's memory as the back-end sees it."""
    return GuestMemory([map_region(region) for region in ram.regions])


def make_queue(
    driver: DriverQueue,
    memory: GuestMemory | None = None,
    *,
    index: int = 0,
    base: int | None = None,
    kick: bool = True,
    log: DirtyLog | None = None,
    log_addr: int | None = None,
    inflight: InflightBuffer | None = None,
    stats: QueueStats | None = None,
) -> Virtqueue:
    """The device side of `driver`; without `kick` it has to poll."""
    layout = driver.layout
    return Virtqueue(
        index,
        size=driver.size,
        features=driver.features | F_VERSION_1,
        memory=memory or map_ram(driver.ram),
        desc=layout.desc_user,
        avail=layout.avail_user,
        used=layout.used_user,
        base=driver.base if base is None else base,
        kick_fd=driver.kick_fd if kick else -1,
        call_fd=driver.call_fd,
        err_fd=driver.err_fd,
        log=log,
        log_addr=log_addr,
        inflight=inflight,
        stats=stats,
    )


class Worker:
    """A started IOThread whose requests are waited for; ended with everything that it has."""

    def __init__(
        self, *, io_uring: bool = True, poll_max_ns: int = 32768, name: str = "test-io"
    ) -> None:
        self.thread = IOThread(name, use_io_uring=io_uring, poll_max_ns=poll_max_ns)
        self.broken: list[Virtqueue] = []
        self._queues: list[Virtqueue] = []
        self._channels: list[Channel] = []
        self._answers: dict[int, int] = {}

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for queue in list(self._queues):
            self.detach(queue)
        for channel in list(self._channels):
            self.remove_channel(channel)
        self.wait(self.thread.stop())
        self.thread.join()

    def take_events(self, timeout: float) -> None:
        """Take what the thread has to say, waiting for something up to `timeout` seconds."""
        poll = select.poll()
        poll.register(self.thread.event_fd, select.POLLIN)
        poll.poll(timeout * 1000)
        for kind, token, status, queue in self.thread.events():
            if kind == "broken":
                assert queue is not None
                self.broken.append(queue)
            else:
                assert kind != "failed", f"the thread ended by itself: {status}"
                self._answers[token] = status

    def answer(self, token: int, timeout: float = 20.0) -> int:
        """The status of request `token`. TimeoutError."""
        deadline = time.monotonic() + timeout
        while token not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer to request {token} of the IOThread")
            self.take_events(left)
        return self._answers.pop(token)

    def wait(self, token: int, timeout: float = 20.0) -> None:
        """Wait until request `token` was done, which must succeed."""
        assert self.answer(token, timeout) == 0

    def wait_broken(self, queue: Virtqueue, timeout: float = 5.0) -> str:
        """Wait for the report that `queue`'s ring is broken; the reason."""
        deadline = time.monotonic() + timeout
        while queue not in self.broken and time.monotonic() < deadline:
            self.take_events(deadline - time.monotonic())
        assert queue in self.broken, "the broken ring was not reported"
        assert queue.broken is not None
        return queue.broken

    def add_channel(self, channel: Channel) -> Channel:
        self.wait(self.thread.add_channel(channel))
        self._channels.append(channel)
        return channel

    def remove_channel(self, channel: Channel) -> None:
        self.wait(self.thread.remove_channel(channel))
        self._channels.remove(channel)

    def attach(self, queue: Virtqueue, handler: QueueHandler, channel: Channel) -> None:
        self.wait(self.thread.attach(queue, handler, channel))
        self._queues.append(queue)

    def serve(
        self, queue: Virtqueue, disk: BlockBackend, device: BlkDevice | None = None
    ) -> Virtqueue:
        """Attach `queue` with a channel of its own to `disk`, and a device if there is none yet."""
        if device is None:
            device = BlkDevice(BlkSettings(disk.limits), disk.size)
        channel = disk.open_channel(io_uring=self.thread.engine == "io_uring")
        self.attach(queue, device, self.add_channel(channel))
        return queue

    def detach(self, queue: Virtqueue) -> None:
        self._queues.remove(queue)
        self.wait(self.thread.detach(queue))

    def update(
        self,
        queue: Virtqueue,
        *,
        memory: GuestMemory | None = None,
        log: DirtyLog | EllipsisType | None = ...,
        call_fd: int | None = None,
        enabled: bool | None = None,
    ) -> None:
        self.wait(
            self.thread.update(queue, memory=memory, log=log, call_fd=call_fd, enabled=enabled)
        )
