"""A virtio-scsi export in an event loop of its own, and a guest's driver in front of it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from vringd.block.backend import BlockBackend
from vringd.control.schema import ScsiDeviceOptions, UnixAddress, VhostUserScsiOptions
from vringd.control.scsi_export import ScsiExport
from vringd.control.scsi_units import ScsiUnits
from vringd.control.threads import ManagedThread
from vringd.core.iothread import IOThread
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend
from vringd.testing.memory import GuestRam, RegionSpec
from vringd.testing.scsi import ControlDriver, EventDriver, ScsiDriver
from vringd.vhost_user.server import VhostUserServer

from .loop_thread import LoopThread

T = TypeVar("T")

RING = 128


class ScsiHost:
    """IOThreads, disks and exports, until the end of `with`."""

    def __init__(self, folder: Path, disks: Sequence[BlockBackend], *, threads: int = 2) -> None:
        self.folder = folder
        self.disks = {disk.node_name: disk for disk in disks}
        self.units = ScsiUnits()
        self.threads: list[ManagedThread] = []
        self.exports: list[ScsiExport] = []
        self._count = threads
        self._servers: list[VhostUserServer] = []
        self._loop = LoopThread()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Run a coroutine in the event loop."""
        return self._loop.run(work, timeout)

    def __enter__(self) -> Self:
        self._loop.start()
        self.run(self._start())
        return self

    async def _start(self) -> None:
        for number in range(self._count):
            thread = ManagedThread(IOThread(f"t{number}"))
            thread.start()
            self.threads.append(thread)

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

    async def _stop(self) -> None:
        for server in self._servers:
            await server.close()
        for export in self.exports:
            await export.close()
        self.units.close()
        for disk in self.disks.values():
            disk.close()
        for thread in self.threads:
            await thread.stop()
        # pytest keeps this object for a while; what it refers to owns descriptors.
        self.threads.clear()
        self.exports.clear()
        self._servers.clear()
        self.disks.clear()

    def serve(
        self,
        devices: Sequence[ScsiDeviceOptions],
        *,
        name: str = "s0",
        num_queues: int = 2,
        **options: Any,
    ) -> ScsiExport:
        """An export over all IOThreads, its command queues dealt out in turn."""

        async def start() -> ScsiExport:
            export = ScsiExport(
                VhostUserScsiOptions(
                    id=name,
                    addr=UnixAddress(path="unused"),
                    devices=tuple(devices),
                    num_queues=num_queues,
                    **options,
                ),
                self.units,
                self.disks,
                [self.threads[i % len(self.threads)] for i in range(num_queues)],
            )
            self.exports.append(export)
            await export.open()
            server = VhostUserServer(export, path=self.folder / f"{name}.sock")
            self._servers.append(server)
            server.start()
            return export

        return self.run(start())


def _ram(number: int) -> GuestRam:
    """Guest memory apart from that of other numbers."""
    spec = RegionSpec(
        1 << 20,
        guest_addr=0x1_0000_0000 * (number + 1),
        user_addr=0x7F00_0000_0000 - (number << 32),
    )
    return GuestRam([spec])


class ScsiGuest:
    """A connected front-end with all queues running; `disks[i]` sends commands on queue i."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "s0",
        num_queues: int = 2,
        packed: bool = False,
        indirect: bool = False,
        features: int = ~0,
    ) -> None:
        # Each queue has memory of its own: what two IOThreads write one after the other because
        # the driver used a buffer again would be a race to a sanitizer, which does not see drivers.
        self.rams = [_ram(number) for number in range(2 + num_queues)]
        self.frontend = Frontend.connect(folder / f"{name}.sock")
        self.frontend.negotiate(features=features if packed else features & ~(1 << 34))
        for ram in self.rams:
            self.frontend.add_ram(ram)
        self.queues = [
            DriverQueue(ram, RING, packed=packed, max_indirect=RING) for ram in self.rams
        ]
        for index, queue in enumerate(self.queues):
            self.frontend.attach(index, queue)
        self.control = ControlDriver(self.queues[0])
        self.events = EventDriver(self.queues[1])
        self.disks = [ScsiDriver(queue, indirect=indirect) for queue in self.queues[2:]]

    def check_ram(self) -> None:
        """Nothing was written where it does not belong. Raises GuestRamError."""
        for ram in self.rams:
            ram.check()

    def quiesce(self) -> None:
        """Send TEST UNIT READY until there are no unit attentions any more."""
        for _ in range(16):
            if self.disks[0].run(bytes(6)).status == 0:
                return
        raise AssertionError("unit attentions without an end")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.frontend.close()
        for queue in self.queues:
            queue.close()
        for ram in self.rams:
            ram.close()
