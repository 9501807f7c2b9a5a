"""A device of the simplest kind, in the event loop: returns what it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from vringd.core.stats import QueueStats
from vringd.core.virtqueue import Chain, Virtqueue

VERSION_1 = 1 << 32
EVENT_IDX = 1 << 29
INDIRECT = 1 << 28
PACKED = 1 << 34
CONFIG_WRITABLE = 32  # the only byte of configuration space that can be written


class FakeDevice:
    """A `QueueHost` whose queues are polled by one task, and which writes down what happens.

    While `holding`, popped requests are kept back until `release`.
    """

    def __init__(self, num_queues: int = 4, max_queue_size: int = 256) -> None:
        self.name = "e0"
        self.num_queues = num_queues
        self.max_queue_size = max_queue_size
        self.stats = [QueueStats() for _ in range(num_queues)]
        self.device_features = VERSION_1 | EVENT_IDX | INDIRECT | PACKED | 0b110
        self.on_config_change: Callable[[], None] | None = None
        self.on_queue_broken: Callable[[int, str], None] | None = None
        self.driver_features = 0
        self.config = bytearray(range(60))
        self.resets = 0
        self.events: list[tuple[Any, ...]] = []
        self.queues: dict[int, Virtqueue] = {}
        self.holding = False
        self._poller: asyncio.Task[None] | None = None
        self._held: dict[int, list[Chain]] = {}
        self._polled: set[int] = set()

    def set_driver_features(self, features: int) -> None:
        self.driver_features = features

    def read_config(self, offset: int, size: int) -> bytes:
        if offset + size > 256:
            raise ValueError(f"configuration space ends before {offset + size}")
        return bytes(self.config).ljust(256, b"\0")[offset : offset + size]

    def write_config(self, offset: int, data: bytes) -> None:
        if (offset, len(data)) != (CONFIG_WRITABLE, 1):
            raise ValueError(f"{len(data)} bytes at offset {offset} are not writable")
        self.config[offset : offset + 1] = data

    async def start_queue(self, queue: Virtqueue) -> None:
        assert queue.index not in self.queues
        self.events.append(("start", queue.index))
        self.queues[queue.index] = queue
        self._held[queue.index] = []
        self._polled.add(queue.index)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll_all())

    async def stop_queue(self, queue: Virtqueue) -> None:
        assert self.queues[queue.index] is queue
        self._polled.discard(queue.index)
        while self.holding and self._held[queue.index]:
            await asyncio.sleep(0.001)
        self._complete(queue, self._held.pop(queue.index))
        del self.queues[queue.index]
        if not self.queues and self._poller is not None:
            self._poller.cancel()
            self._poller = None
        self.events.append(("stop", queue.index))

    async def update_queue(self, queue: Virtqueue, **changes: Any) -> None:
        assert self.queues[queue.index] is queue
        await asyncio.sleep(0)
        self.events.append(("update", queue.index, changes))

    def reset(self) -> None:
        self.resets += 1

    def break_queue(self, index: int, reason: str) -> None:
        """What a data plane does that met a bad ring."""
        if self.on_queue_broken is not None:
            self.on_queue_broken(index, reason)

    def change_config(self, offset: int, data: bytes) -> None:
        """A resize, for instance."""
        self.config[offset : offset + len(data)] = data
        if self.on_config_change is not None:
            self.on_config_change()

    def updates(self, index: int, what: str) -> list[Any]:
        """The values that a property of a running queue was given."""
        return [
            event[2][what]
            for event in self.events
            if event[:2] == ("update", index) and what in event[2]
        ]

    async def _poll_all(self) -> None:
        while True:
            for index in list(self._polled):
                self._poll(self.queues[index])
            await asyncio.sleep(0.001)

    def _poll(self, queue: Virtqueue) -> None:
        held = self._held[queue.index]
        while (chain := queue.pop()) is not None:
            held.append(chain)
        if queue.broken is not None:
            self._polled.discard(queue.index)
            self.break_queue(queue.index, queue.broken)
        elif not self.holding:
            self._complete(queue, held)

    def _complete(self, queue: Virtqueue, chains: list[Chain]) -> None:
        for chain in chains:
            queue.push(chain, chain.write(chain.readable()))
        if chains and queue.publish():
            queue.notify()
        chains.clear()
