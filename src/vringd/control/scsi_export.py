"""A virtio-scsi export: one device, its units, and its command queues spread over IOThreads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from vringd.block.backend import BlockBackend
from vringd.control.device_export import DeviceExport, seg_max
from vringd.control.errors import OptionError, ResourceError
from vringd.control.mapped_queues import MappedQueues
from vringd.control.schema import ScsiDeviceOptions, VhostUserScsiOptions
from vringd.control.scsi_paths import AttachedUnit, ScsiPaths
from vringd.control.scsi_queues import ControlQueue, EventService
from vringd.control.scsi_units import ScsiUnits
from vringd.control.threads import ManagedThread
from vringd.core.channel import Question
from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.virtqueue import Virtqueue
from vringd.devices.scsi import ScsiDevice, TaskQuestion
from vringd.devices.scsi_config import (
    CONTROL_QUEUE,
    EVENT_QUEUE,
    F_CHANGE,
    F_HOTPLUG,
    FIRST_COMMAND_QUEUE,
    ScsiSettings,
)
from vringd.devices.scsi_control import ScsiControl
from vringd.devices.scsi_events import (
    CAPACITY_CHANGED,
    MODE_CHANGED,
    Event,
    EventQueue,
    ResetReason,
)
from vringd.scsi.unit import ScsiNexus
from vringd.vhost_user.host import UNCHANGED, Unchanged

logger = logging.getLogger("vringd.export")


def scsi_settings(options: VhostUserScsiOptions) -> ScsiSettings:
    """What the guest will be told of the device."""
    return ScsiSettings(
        num_queues=options.num_queues,
        seg_max=seg_max(options),
        cmd_per_lun=min(options.cmd_per_lun, options.queue_size),
        packed=options.packed,
        in_order=options.in_order,
    )


class ScsiExport(DeviceExport[VhostUserScsiOptions, ScsiDevice]):
    """Implements `vhost_user.host.QueueHost` for a virtio-scsi device, and
    `devices.scsi_control.TaskManager` for its control queue.

    threads: the IOThread of each command queue, at first. units: of the daemon. backends: by node
    name.
    """

    def __init__(
        self,
        options: VhostUserScsiOptions,
        units: ScsiUnits,
        backends: dict[str, BlockBackend],
        threads: Sequence[ManagedThread],
    ) -> None:
        device = ScsiDevice(scsi_settings(options))
        super().__init__(options, device, FIRST_COMMAND_QUEUE + options.num_queues)
        self.events = EventQueue()
        self._units = units
        self._backends = backends
        self._paths = ScsiPaths(self.device)
        self._queues = MappedQueues(threads, self._paths, self._broken, first=FIRST_COMMAND_QUEUE)
        self._control = ControlQueue(ScsiControl(self), self._broken)
        self._event_service = EventService(self.events, self._broken)
        self.move_queue = self._queues.move
        self.set_mapping = self._queues.set_mapping
        self.used_threads = self._queues.used_threads

    # ---- QueueHost ---------------------------------------------------------------------------

    async def start_queue(self, queue: Virtqueue) -> None:
        if queue.index == CONTROL_QUEUE:
            self._control.start(queue)
        elif queue.index == EVENT_QUEUE:
            self._event_service.start(queue)
        else:
            await self._queues.start(queue)

    async def stop_queue(self, queue: Virtqueue) -> None:
        if queue.index == CONTROL_QUEUE:
            await self._control.stop()
        elif queue.index == EVENT_QUEUE:
            self._event_service.stop()
        else:
            await self._queues.stop(queue)

    async def update_queue(
        self,
        queue: Virtqueue,
        *,
        memory: GuestMemory | Unchanged = UNCHANGED,
        log: DirtyLog | Unchanged | None = UNCHANGED,
        log_addr: int | Unchanged | None = UNCHANGED,
        call_fd: int | Unchanged = UNCHANGED,
    ) -> None:
        if queue.index < FIRST_COMMAND_QUEUE:
            served = (self._control, self._event_service)[queue.index].served
            assert served is not None
            served.update(memory=memory, log=log, log_addr=log_addr, call_fd=call_fd)
        else:
            await self._queues.update(
                queue, memory=memory, log=log, log_addr=log_addr, call_fd=call_fd
            )

    def reset(self) -> None:
        """The driver has reset the device: initiator ports lose their nexuses with all units and
        come back as new ones (virtio 1.3, 2.4; SAM-6 6.3)."""
        self.device.reset()
        self.events.forget()
        for unit in self._paths.units.values():
            unit.nexus.lose(power_on=True)

    # ---- TaskManager -------------------------------------------------------------------------

    def unit_at(self, target: int, lun: int) -> AttachedUnit | None:
        return self._paths.units.get((target, lun))

    def units_of(self, target: int) -> list[AttachedUnit]:
        return [unit for unit in self._paths.units.values() if unit.target == target]

    async def settle(self) -> None:
        async with self._queues.at_rest():
            await self._settle()

    async def _settle(self) -> None:
        await asyncio.gather(*(thread.ask(Question()) for thread in self._paths.lanes))

    async def ask(
        self, nexus: ScsiNexus, make: Callable[[int], TaskQuestion]
    ) -> list[TaskQuestion]:
        async with contextlib.AsyncExitStack() as asking:
            async with self._queues.at_rest():
                await self._settle()
                # Only here it is certain which IOThreads may have taken commands.
                lanes = asking.enter_context(self._paths.kept(nexus, self._queues.used_threads()))
                questions = {thread: make(lane) for thread, lane in lanes.items()}
                answers = [
                    asyncio.ensure_future(thread.ask(question))
                    for thread, question in questions.items()
                ]
                await asyncio.sleep(0)  # they have been asked: each task has made its first step
            # An answer may take as long as a disk, which keeps no queue from being stopped.
            try:
                await asyncio.gather(*answers)
            finally:
                await asyncio.wait(answers)
        await self._paths.keep_only(self._queues.used_threads)
        return list(questions.values())

    # ---- what happens to it ------------------------------------------------------------------

    @property
    def threads(self) -> list[ManagedThread]:
        """The IOThread of each command queue."""
        return self._queues.threads

    def _tell(self, feature: int, event: Event, unit: AttachedUnit, reason: int) -> None:
        if self.device.driver_features >> feature & 1:
            self.events.send(event, unit.target, unit.lun, reason)

    async def add_device(self, options: ScsiDeviceOptions, position: int = 0) -> AttachedUnit:
        """Make a device reachable and tell the driver; position: its target if the options name
        none. Raises OptionError, ResourceError, OSError or ValueError; nothing has changed then."""
        target = position if options.target is None else options.target
        if (target, options.lun) in self._paths.units:
            raise OptionError(f"target={target},lun={options.lun} is in use; choose another")
        backend = None if options.node_name is None else self._backends[options.node_name]
        shared = self._units.open(options, backend)
        # Counted as a user before anything is waited for, and until the last moment.
        shared.on_mode_change.append(self._tell_mode_changes)
        try:
            unit = AttachedUnit(options, target, shared, self.options.initiator_name)
            await self._paths.add(unit)
        except BaseException:
            shared.on_mode_change.remove(self._tell_mode_changes)
            raise
        self._tell(F_HOTPLUG, Event.TRANSPORT_RESET, unit, ResetReason.RESCAN)
        return unit

    async def remove_device(self, target: int, lun: int) -> None:
        """Take a device away: its commands end as aborted, and the driver is told. Raises
        KeyError if there is none."""
        unit = self._paths.units[target, lun]
        await self._paths.remove(unit, self.settle)
        unit.shared.on_mode_change.remove(self._tell_mode_changes)
        self._tell(F_HOTPLUG, Event.TRANSPORT_RESET, unit, ResetReason.REMOVED)

    def _tell_mode_changes(self) -> None:
        for unit in self._paths.units.values():
            changes = unit.nexus.mode_changes
            if changes != unit.told_mode_changes:
                unit.told_mode_changes = changes
                self._tell(F_CHANGE, Event.PARAM_CHANGE, unit, MODE_CHANGED)

    def refresh_size(self) -> bool:
        """Look at the sizes of the disks again and tell the guest what changed; whether anything
        did. Raises OSError."""
        changed = False
        for unit in self._paths.units.values():
            unit.shared.refresh_size()
            capacity = unit.shared.unit.capacity
            if capacity == unit.told_capacity:
                continue
            logger.info(
                "export %s: the size of target %d LUN %d changed from %d to %d bytes",
                self.name,
                unit.target,
                unit.lun,
                unit.told_capacity,
                capacity,
            )
            unit.told_capacity = capacity
            self._tell(F_CHANGE, Event.PARAM_CHANGE, unit, CAPACITY_CHANGED)
            changed = True
        return changed

    # ---- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open all devices, and a path to them in every IOThread of the mapping. Raises
        OptionError, ResourceError, OSError or ValueError."""
        for position, options in enumerate(self.options.devices):
            try:
                await self.add_device(options, position)
            except (OptionError, ValueError) as error:
                raise OptionError(f"devices.{position}: {error}") from error
            except ResourceError as error:
                raise ResourceError(f"devices.{position}: {error}") from error
        await self._queues.open()

    async def close(self) -> None:
        """Let go of the devices; no queue is attached any more."""
        await self._queues.close()
        for unit in self._paths.units.values():
            unit.shared.on_mode_change.remove(self._tell_mode_changes)
        await self._paths.close()
