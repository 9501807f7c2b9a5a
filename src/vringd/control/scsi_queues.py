"""Control and event queue of a virtio-scsi device, which have their place in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from vringd.control.loop_queue import LoopQueue
from vringd.core.virtqueue import Chain, Virtqueue
from vringd.devices.scsi_control import REQUEST_ROOM, ScsiControl
from vringd.devices.scsi_events import EventQueue

logger = logging.getLogger("vringd.scsi")


class ControlQueue:
    """Runs the requests of a control queue, each as a task of its own."""

    def __init__(self, control: ScsiControl, on_broken: Callable[[int, str], None]) -> None:
        self._control = control
        self._on_broken = on_broken
        self.served: LoopQueue | None = None
        self._running: set[asyncio.Task[None]] = set()

    def start(self, queue: Virtqueue) -> None:
        """Serve the queue from now on."""
        self.served = LoopQueue(queue, self._look)

    async def stop(self) -> None:
        """Answer what is in execution and let go of the queue."""
        served, self.served = self.served, None
        if served is not None:
            served.close()
            while self._running:
                await asyncio.wait(self._running)

    def _look(self) -> None:
        assert self.served is not None
        queue = self.served.queue
        while True:
            chain = queue.pop()
            if chain is not None:
                task = asyncio.get_running_loop().create_task(self._serve(queue, chain))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            elif queue.broken is not None:
                self._on_broken(queue.index, queue.broken)
                return
            elif not queue.enable_notification():
                return

    async def _serve(self, queue: Virtqueue, chain: Chain) -> None:
        written = 0
        try:
            response = await self._control.answer(chain.readable(REQUEST_ROOM))
            if response is not None and chain.writable_size() >= len(response):
                written = chain.write(response)
            else:
                self._on_broken(
                    queue.index, "a control request without a whole header or room for a response"
                )
        except Exception:
            logger.exception("internal error in a control request")
        queue.push(chain, written)
        if queue.publish():
            queue.notify()


class EventService:
    """Serves an event queue."""

    def __init__(self, events: EventQueue, on_broken: Callable[[int, str], None]) -> None:
        self._events = events
        self._on_broken = on_broken
        self.served: LoopQueue | None = None

    def start(self, queue: Virtqueue) -> None:
        """Serve the queue from now on."""
        self._events.queue = queue
        self.served = LoopQueue(queue, self._look)

    def stop(self) -> None:
        """Let go of the queue."""
        self._events.queue = None
        if self.served is not None:
            self.served.close()
            self.served = None

    def _look(self) -> None:
        assert self.served is not None
        queue = self.served.queue
        self._events.buffers_came()
        queue.enable_notification()
        if queue.broken is not None:
            self._on_broken(queue.index, queue.broken)
