"""A daemon without its options: an event loop in a thread of its own, IOThreads, devices."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from vringd.block.backend import BlockBackend
from vringd.block.file import FileBackend
from vringd.block.null import NullBackend
from vringd.control.blk_export import BlkExport
from vringd.control.schema import UnixAddress, VhostUserBlkOptions
from vringd.control.threads import ManagedThread
from vringd.core.iothread import IOThread
from vringd.vhost_user.server import VhostUserServer

from ..loop_thread import LoopThread

T = TypeVar("T")

DISK_BYTES = 8 << 20


class Device(BlkExport):
    """An export that counts the moves of its queues."""

    def __init__(
        self,
        name: str,
        backend: BlockBackend,
        threads: Sequence[ManagedThread],
        *,
        num_queues: int = 4,
        packed: bool = True,
    ) -> None:
        options = VhostUserBlkOptions(
            id=name,
            node_name=backend.node_name,
            addr=UnixAddress(path="unused"),
            writable=True,
            num_queues=num_queues,
            queue_size=256,
            packed=packed,
        )
        super().__init__(options, backend, [threads[i % len(threads)] for i in range(num_queues)])
        self.moves = 0

    async def move(self, index: int, target: ManagedThread) -> None:
        """Have another IOThread serve a queue, and count that."""
        self.moves += self.threads[index] is not target
        await self.move_queue(index, target)


class Engine:
    """`count` IOThreads with the poller "io_uring" or "epoll", until the end of `with`."""

    def __init__(self, count: int, poller: str) -> None:
        self.poller = poller
        self._count = count
        self._loop = LoopThread()
        self.threads: list[ManagedThread] = []
        self.devices: list[Device] = []
        self.servers: list[VhostUserServer] = []

    def __enter__(self) -> Self:
        self._loop.start()
        self.run(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self._stop())
        finally:
            self._loop.stop()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Run a coroutine in the event loop."""
        return self._loop.run(work, timeout)

    async def _start(self) -> None:
        for i in range(self._count):
            thread = ManagedThread(IOThread(f"t{i}", use_io_uring=self.poller == "io_uring"))
            thread.start()
            self.threads.append(thread)

    async def _stop(self) -> None:
        for server in self.servers:
            await server.close()
        for device in self.devices:
            await device.close()
            device.backend.close()
        for thread in self.threads:
            await thread.stop()
        # pytest keeps this object for a while; what it refers to owns descriptors.
        self.servers.clear()
        self.devices.clear()
        self.threads.clear()

    def add_device(self, name: str, backend: BlockBackend, **options: Any) -> Device:
        """A device over all IOThreads, its queues dealt out in turn."""

        async def add() -> Device:
            device = Device(name, backend, self.threads, **options)
            self.devices.append(device)
            await device.open()
            return device

        return self.run(add())

    def serve(self, device: Device, path: Path) -> VhostUserServer:
        """Listen for the device's front-ends."""

        async def start() -> VhostUserServer:
            server = VhostUserServer(device, path=path)
            self.servers.append(server)
            server.start()
            return server

        return self.run(start())

    def serve_disk(
        self, kind: str, folder: Path, name: str = "e0", *, num_queues: int = 4, **options: Any
    ) -> Path:
        """A device on a disk of its own (see `open_disk`), served; the path of its socket."""
        disk = open_disk(kind, folder, name, **options)
        path = folder / f"{name}.sock"
        self.serve(self.add_device(name, disk, num_queues=num_queues), path)
        return path


def open_disk(kind: str, folder: Path, name: str = "disk", **options: Any) -> BlockBackend:
    """A back-end of DISK_BYTES: "null" reads zeros and keeps nothing, "file" and "threads" (the
    same with worker threads) keep what is written."""
    if kind == "null":
        return NullBackend(name, size=DISK_BYTES, read_zeroes=True, **options)
    image = folder / f"{name}.img"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    return FileBackend(name, str(image), aio="threads" if kind == "threads" else None, **options)
