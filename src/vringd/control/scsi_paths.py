"""The units of a virtio-scsi export, and every IOThread's own way to each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from vringd.control.channels import ChannelSet
from vringd.control.schema import ScsiDeviceOptions
from vringd.control.scsi_units import SharedUnit
from vringd.control.threads import ManagedThread
from vringd.core.channel import Channel, QueueHandler
from vringd.devices.scsi import ScsiDevice, ScsiPath
from vringd.devices.scsi_control import wait_for_end
from vringd.scsi.unit import ScsiNexus


class AttachedUnit:
    """A unit at its address in an export (`devices.scsi_control.ManagedUnit`)."""

    def __init__(
        self, options: ScsiDeviceOptions, target: int, shared: SharedUnit, initiator: str
    ) -> None:
        self.options = options
        self.target = target
        self.lun = options.lun
        self.shared = shared
        # Each target is a port of its own, with a relative identifier (SAM-6, 4.6.5).
        self.nexus: ScsiNexus = shared.unit.open_nexus(initiator, port=target + 1)
        self.channels = ChannelSet(shared.backend)
        self.told_capacity = shared.unit.capacity
        self.told_mode_changes = 0

    @property
    def turn(self) -> asyncio.Lock:
        return self.shared.turn


class ScsiPaths:
    """Implements `mapped_queues.Paths`: a lane in every nexus, a channel to every disk, for each
    IOThread in use. Units come and go meanwhile."""

    def __init__(self, device: ScsiDevice) -> None:
        self._device = device
        self.units: dict[tuple[int, int], AttachedUnit] = {}
        self._paths: dict[ManagedThread, ScsiPath] = {}
        self._turn = asyncio.Lock()
        # Questions without an answer yet, by what they look at: lanes of threads, and a nexus.
        self._asked: Counter[ManagedThread | int] = Counter()
        self._answered = asyncio.Event()

    @property
    def lanes(self) -> dict[ManagedThread, int]:
        """The IOThreads that may be running commands, with their numbers."""
        return {thread: path.lane for thread, path in self._paths.items()}

    @contextlib.contextmanager
    def kept(
        self, nexus: ScsiNexus, used: set[ManagedThread]
    ) -> Iterator[dict[ManagedThread, int]]:
        """The lanes of the threads in use; while this lasts neither they nor those of nexus are
        closed. Call `keep_only` again afterwards."""
        lanes = {thread: lane for thread, lane in self.lanes.items() if thread in used}
        holds: list[ManagedThread | int] = [*lanes, id(nexus)]
        self._asked.update(holds)
        try:
            yield lanes
        finally:
            self._asked.subtract(holds)
            self._asked = +self._asked
            self._answered.set()

    async def open(self, thread: ManagedThread) -> tuple[QueueHandler, Channel]:
        async with self._turn:
            path = self._paths.get(thread)
            if path is None:
                path = await self._make_path(thread)
                self._paths[thread] = path
            return self._device, path

    async def _make_path(self, thread: ManagedThread) -> ScsiPath:
        used = {path.lane for path in self._paths.values()}
        lane = next(number for number in range(len(used) + 1) if number not in used)
        opened: list[AttachedUnit] = []
        channels = []
        try:
            for unit in self.units.values():
                channels.append(await unit.channels.open(thread))
                unit.nexus.open_lane(lane, channels[-1])
                opened.append(unit)
        except BaseException:
            for unit in opened:
                unit.nexus.close_lane(lane)
            for unit in self.units.values():
                await unit.channels.keep_only(lambda: set(self._paths))
            raise
        return ScsiPath(lane, channels)

    async def keep_only(self, used: Callable[[], set[ManagedThread]]) -> None:
        async with self._turn:
            for thread in list(self._paths):
                if thread in used() or self._asked[thread]:
                    continue
                path = self._paths.pop(thread)
                for unit in self.units.values():
                    # Nothing is in execution there: the thread's queues are drained.
                    unit.nexus.close_lane(path.lane)
            for unit in self.units.values():
                await unit.channels.keep_only(lambda: set(self._paths))

    async def add(self, unit: AttachedUnit) -> None:
        """Make a unit reachable. Raises ValueError if its address is in use, OSError or ValueError
        if its disk cannot be reached; then it is closed."""
        async with self._turn:
            try:
                for thread, path in self._paths.items():
                    unit.nexus.open_lane(path.lane, await unit.channels.open(thread))
                self._device.add_unit(unit.target, unit.lun, unit.nexus)
            except BaseException:
                await self._close(unit)
                raise
            self.units[unit.target, unit.lun] = unit

    async def remove(self, unit: AttachedUnit, settle: Callable[[], Awaitable[None]]) -> None:
        """Make a unit unreachable, end its tasks, and let go of its disk. settle: as
        `devices.scsi_control.TaskManager` has it."""
        del self.units[unit.target, unit.lun]
        self._device.remove_unit(unit.target, unit.lun)
        async with unit.turn:
            await settle()  # after this no IOThread is on its way into the unit
            await wait_for_end([(unit.nexus, unit.nexus.lose())])
            async with self._turn:
                # A question may still look at the lanes. No new one comes: the unit is not found.
                while self._asked[id(unit.nexus)]:
                    self._answered.clear()
                    await self._answered.wait()
                await self._close(unit)

    async def _close(self, unit: AttachedUnit) -> None:
        """The unit's tasks have ended; let go of it."""
        for path in self._paths.values():
            try:
                unit.nexus.close_lane(path.lane)
            except ValueError:
                continue  # it was not opened yet
        await unit.channels.keep_only(set)
        unit.nexus.close()

    async def close(self) -> None:
        """Let go of all units; no queue is attached any more."""
        await self.keep_only(set)
        for unit in self.units.values():
            unit.nexus.close()
        self.units.clear()
