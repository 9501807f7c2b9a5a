"""A virtio-blk export: one device, its disk, and its queues spread over IOThreads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from vringd.block.backend import BlockBackend
from vringd.control.channels import ChannelSet
from vringd.control.device_export import DeviceExport, seg_max
from vringd.control.errors import OptionError
from vringd.control.mapped_queues import MappedQueues
from vringd.control.schema import VhostUserBlkOptions
from vringd.control.threads import ManagedThread
from vringd.core.channel import Channel, QueueHandler
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import F_CONFIG_WCE, BlkSettings

logger = logging.getLogger("vringd.export")


def blk_settings(options: VhostUserBlkOptions, backend: BlockBackend) -> BlkSettings:
    """What the guest will be told. Raises OptionError where options and disk disagree."""
    limits = backend.limits
    block = options.logical_block_size or limits.block_size
    if block < limits.block_size:
        raise OptionError(
            f"{options.origin}: logical-block-size={block} is less than the {limits.block_size}"
            f" bytes that node {backend.node_name!r} can address; use"
            f" logical-block-size={limits.block_size}, or cache.direct=off for the node"
        )
    if backend.size % block:
        logger.warning(
            "export %s: the disk's last %d bytes are less than a block of %d and not shown",
            options.id,
            backend.size % block,
            block,
        )
    return BlkSettings(
        limits=replace(limits, block_size=block),
        num_queues=options.num_queues,
        seg_max=seg_max(options),
        writable=options.writable and not backend.read_only,
        writethrough=options.writethrough,
        packed=options.packed,
        in_order=options.in_order,
        physical_block_size=options.physical_block_size,
        opt_io_size=options.opt_io_size,
        serial=options.serial.encode(),
    )


class DiskPaths:
    """A device and, for each IOThread in use, its own path to the device's one disk."""

    def __init__(self, device: BlkDevice, backend: BlockBackend) -> None:
        self._device = device
        self._channels = ChannelSet(backend)

    async def open(self, thread: ManagedThread) -> tuple[QueueHandler, Channel]:
        return self._device, await self._channels.open(thread)

    async def keep_only(self, used: Callable[[], set[ManagedThread]]) -> None:
        await self._channels.keep_only(used)


class BlkExport(DeviceExport[VhostUserBlkOptions, BlkDevice]):
    """Implements `vhost_user.host.QueueHost` for a virtio-blk device.

    threads: the IOThread of each queue, at first; `move_queue` changes it.
    """

    def __init__(
        self,
        options: VhostUserBlkOptions,
        backend: BlockBackend,
        threads: Sequence[ManagedThread],
    ) -> None:
        device = BlkDevice(blk_settings(options, backend), backend.size)
        super().__init__(options, device, options.num_queues)
        self.backend = backend
        self._queues = MappedQueues(threads, DiskPaths(self.device, backend), self._broken)
        self.start_queue = self._queues.start
        self.stop_queue = self._queues.stop
        self.update_queue = self._queues.update
        self.move_queue = self._queues.move
        self.set_mapping = self._queues.set_mapping
        self.used_threads = self._queues.used_threads
        self.open = self._queues.open
        self.close = self._queues.close

    # ---- QueueHost ---------------------------------------------------------------------------

    @property
    def device_features(self) -> int:
        features = super().device_features
        return features if self.options.config_wce else features & ~(1 << F_CONFIG_WCE)

    def reset(self) -> None:
        self.device.reset()

    # ---- what happens to it ------------------------------------------------------------------

    @property
    def threads(self) -> list[ManagedThread]:
        """The IOThread of each queue."""
        return self._queues.threads

    def refresh_size(self) -> bool:
        """Look at the disk's size again and tell the guest if it changed; whether it did."""
        before = self.device.capacity
        self.device.set_capacity(self.backend.refresh_size())
        if self.device.capacity == before:
            return False
        logger.info(
            "export %s: the disk's size changed from %d to %d bytes",
            self.name,
            before,
            self.device.capacity,
        )
        if self.on_config_change is not None:
            self.on_config_change()
        return True
