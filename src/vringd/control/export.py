"""An export: one device, its disk, and its queues spread over IOThreads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from vringd.block.backend import BlockBackend
from vringd.control.errors import OptionError
from vringd.control.schema import VhostUserBlkOptions
from vringd.control.threads import ManagedThread
from vringd.core.channel import Channel
from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.stats import QueueStats
from vringd.core.virtqueue import Virtqueue
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import F_CONFIG_WCE, F_EVENT_IDX, BlkSettings
from vringd.vhost_user.host import UNCHANGED, Unchanged

logger = logging.getLogger("vringd.export")

DEFAULT_SEG_MAX = 126  # fits a ring of 128 entries without indirect descriptors


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
        seg_max=options.seg_max or min(DEFAULT_SEG_MAX, options.queue_size - 2),
        writable=options.writable and not backend.read_only,
        writethrough=options.writethrough,
        packed=options.packed,
        in_order=options.in_order,
        physical_block_size=options.physical_block_size,
        opt_io_size=options.opt_io_size,
        serial=options.serial.encode(),
    )


class BlkExport:
    """Implements `vhost_user.host.QueueHost` for a virtio-blk device.

    threads: the IOThread of each queue. Every (export, IOThread) pair has a channel of its own.
    """

    def __init__(
        self,
        options: VhostUserBlkOptions,
        backend: BlockBackend,
        threads: Sequence[ManagedThread],
    ) -> None:
        self.options = options
        self.backend = backend
        self.threads = list(threads)
        self.device = BlkDevice(blk_settings(options, backend), backend.size)
        self.stats = [QueueStats() for _ in range(options.num_queues)]
        self.on_config_change: Callable[[], None] | None = None
        self.on_queue_broken: Callable[[int, str], None] | None = None
        self._channels: dict[str, Channel] = {}

    # ---- QueueHost ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.options.id

    @property
    def num_queues(self) -> int:
        return self.options.num_queues

    @property
    def max_queue_size(self) -> int:
        return self.options.queue_size

    @property
    def device_features(self) -> int:
        features = self.device.features
        if not self.options.event_idx:
            features &= ~(1 << F_EVENT_IDX)
        if not self.options.config_wce:
            features &= ~(1 << F_CONFIG_WCE)
        return features

    def set_driver_features(self, features: int) -> None:
        self.device.set_driver_features(features)

    def read_config(self, offset: int, size: int) -> bytes:
        return self.device.read_config(offset, size)

    def write_config(self, offset: int, data: bytes) -> None:
        self.device.write_config(offset, data)

    async def start_queue(self, queue: Virtqueue) -> None:
        thread = self.threads[queue.index]
        await thread.attach(
            queue, self.device, self._channels[thread.name], partial(self._broken, queue.index)
        )

    async def stop_queue(self, queue: Virtqueue) -> None:
        await self.threads[queue.index].detach(queue)

    async def update_queue(
        self,
        queue: Virtqueue,
        *,
        memory: GuestMemory | Unchanged = UNCHANGED,
        log: DirtyLog | Unchanged | None = UNCHANGED,
        log_addr: int | Unchanged | None = UNCHANGED,
        call_fd: int | Unchanged = UNCHANGED,
    ) -> None:
        await self.threads[queue.index].update(
            queue,
            memory=None if isinstance(memory, Unchanged) else memory,
            log=... if isinstance(log, Unchanged) else log,
            log_addr=... if isinstance(log_addr, Unchanged) else log_addr,
            call_fd=None if isinstance(call_fd, Unchanged) else call_fd,
        )

    def reset(self) -> None:
        self.device.reset()

    # ---- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start a channel in every IOThread of the mapping. Raises OSError or ValueError."""
        for thread in self.threads:
            if thread.name not in self._channels:
                channel = self.backend.open_channel(
                    io_uring=thread.uses_io_uring, workers=thread.workers
                )
                await thread.add_channel(channel)
                self._channels[thread.name] = channel

    async def close(self) -> None:
        """Stop the channels; no queue is attached any more."""
        by_name = {thread.name: thread for thread in self.threads}
        for name, channel in list(self._channels.items()):
            with contextlib.suppress(OSError):
                await by_name[name].remove_channel(channel)
            del self._channels[name]

    def _broken(self, index: int, reason: str) -> None:
        if self.on_queue_broken is not None:
            self.on_queue_broken(index, reason)

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
