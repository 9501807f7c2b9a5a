"""An export: one device, its disk, and its queues spread over IOThreads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from vringd.block.backend import BlockBackend
from vringd.control.channels import ChannelSet
from vringd.control.errors import OptionError
from vringd.control.schema import VhostUserBlkOptions
from vringd.control.threads import ManagedThread
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

    threads: the IOThread of each queue, at first; `move_queue` changes it. Every (export,
    IOThread) pair has a channel of its own.
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
        self._channels = ChannelSet(backend)
        self._running: dict[int, Virtqueue] = {}
        self._targets: dict[int, ManagedThread] = {}  # of the moves under way
        # A queue is started, stopped, updated or moved by one task at a time.
        self._turns = [asyncio.Lock() for _ in range(options.num_queues)]

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
        async with self._turns[queue.index]:
            await self._attach(queue, self.threads[queue.index])
            self._running[queue.index] = queue

    async def stop_queue(self, queue: Virtqueue) -> None:
        async with self._turns[queue.index]:
            # A queue that no IOThread took, in a move, is at rest already.
            if self._running.pop(queue.index, None) is not None:
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
        async with self._turns[queue.index]:
            await self.threads[queue.index].update(
                queue,
                memory=None if isinstance(memory, Unchanged) else memory,
                log=... if isinstance(log, Unchanged) else log,
                log_addr=... if isinstance(log_addr, Unchanged) else log_addr,
                call_fd=None if isinstance(call_fd, Unchanged) else call_fd,
            )

    def reset(self) -> None:
        self.device.reset()

    # ---- mapping -----------------------------------------------------------------------------

    async def move_queue(self, index: int, thread: ManagedThread) -> None:
        """Have another IOThread serve a queue from now on, running or not.

        What is in flight is finished in the old thread first; the guest notices nothing but that.
        Raises IndexError for a queue that the device does not have, OSError or ValueError when
        the new thread cannot take it: then the old one goes on.
        """
        if not 0 <= index < self.num_queues:
            raise IndexError(f"there is no queue {index}, the device has {self.num_queues}")
        # When the caller is cancelled the move goes on: a queue that is half handed over would
        # be neither here nor there.
        await asyncio.shield(asyncio.ensure_future(self._move_queue(index, thread)))

    async def _move_queue(self, index: int, thread: ManagedThread) -> None:
        async with self._turns[index]:
            old = self.threads[index]
            if thread is old:
                return
            self._targets[index] = thread
            try:
                await self._channels.open(thread)
                queue = self._running.get(index)
                if queue is not None:
                    await old.detach(queue)
                    try:
                        await self._attach(queue, thread)
                    except OSError:
                        await self._take_back(queue, old)
                        raise
                self.threads[index] = thread
            finally:
                del self._targets[index]
                await self._channels.keep_only(self.used_threads)

    async def set_mapping(self, threads: Sequence[ManagedThread]) -> None:
        """Move every queue to its IOThread in `threads`, one after the other."""
        if len(threads) != self.num_queues:
            raise ValueError(f"{len(threads)} IOThreads for {self.num_queues} queues")
        for index, thread in enumerate(threads):
            await self.move_queue(index, thread)

    async def _take_back(self, queue: Virtqueue, thread: ManagedThread) -> None:
        try:
            await self._attach(queue, thread)
        except OSError as error:
            del self._running[queue.index]
            self._broken(queue.index, f"no IOThread takes it: {error}")

    async def _attach(self, queue: Virtqueue, thread: ManagedThread) -> None:
        channel = await self._channels.open(thread)
        await thread.attach(queue, self.device, channel, partial(self._broken, queue.index))

    def used_threads(self) -> set[ManagedThread]:
        """The IOThreads that serve a queue, or are about to."""
        return {*self.threads, *self._targets.values()}

    # ---- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start a channel in every IOThread of the mapping. Raises OSError or ValueError."""
        for thread in self.threads:
            await self._channels.open(thread)

    async def close(self) -> None:
        """Stop the channels; no queue is attached any more."""
        await self._channels.keep_only(set)

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
