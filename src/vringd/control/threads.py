"""IOThreads as the control plane uses them: coroutines that end when the thread has done it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from types import EllipsisType

from vringd.block.backend import DEFAULT_WORKERS, WorkerLimits
from vringd.core.channel import Channel, Question, QueueHandler
from vringd.core.iothread import IOThread
from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.virtqueue import Virtqueue

logger = logging.getLogger("vringd.iothread")

SLOW_SECONDS = 10.0


class IOThreadError(OSError):
    """The thread could not do what was asked; errno says why."""


class ManagedThread:
    """One IOThread, its answers turned into futures of the running event loop.

    workers: how many threads each channel of it may use for blocking calls (thread-pool-min and
    thread-pool-max).

    Waiting never blocks the loop; a wait of more than SLOW_SECONDS is reported on the log and
    goes on, since a drain is as slow as the slowest disk.
    """

    def __init__(self, thread: IOThread, *, workers: WorkerLimits = DEFAULT_WORKERS) -> None:
        self.thread = thread
        self.workers = workers
        self.on_broken: dict[int, Callable[[str], None]] = {}
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._told_buffers = False
        self._failed = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        return self.thread.name

    @property
    def uses_io_uring(self) -> bool:
        return self.thread.engine == "io_uring"

    def start(self) -> None:
        """Start the thread. Raises OSError."""
        self.thread.start()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.thread.event_fd, self._take_events)

    def _take_events(self) -> None:
        for kind, token, status, queue in self.thread.events():
            if kind == "broken":
                assert queue is not None
                report = self.on_broken.get(id(queue))
                if report is not None:
                    report(queue.broken or "broken")
            elif kind == "failed":
                self._fail(status)
            else:
                future = self._waiting.pop(token, None)
                if future is not None and not future.done():
                    future.set_result(status)

    def _fail(self, status: int) -> None:
        logger.critical("IOThread %s ended by itself: %s", self.name, os.strerror(-status))
        self._failed = status
        for future in self._waiting.values():
            if not future.done():
                future.set_result(status)
        self._waiting.clear()
        for report in list(self.on_broken.values()):
            report(f"its IOThread {self.name} ended by itself")

    async def _answer(self, token: int, what: str) -> None:
        if self._failed:
            raise IOThreadError(
                -self._failed, f"IOThread {self.name} cannot {what}: it has ended by itself"
            )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        while True:
            done, _ = await asyncio.wait({future}, timeout=SLOW_SECONDS)
            if done:
                break
            logger.warning("IOThread %s: still waiting to %s", self.name, what)
        if future.result() != 0:
            number = -future.result()
            raise IOThreadError(
                number, f"IOThread {self.name} cannot {what}: {os.strerror(number)}"
            )

    async def add_channel(self, channel: Channel) -> None:
        """Start a channel in the thread. Raises IOThreadError."""
        await self._answer(self.thread.add_channel(channel), "start a channel")

    async def remove_channel(self, channel: Channel) -> None:
        """Stop a channel that no queue uses any more."""
        if self._failed:
            return  # the thread took the channel with it
        await self._answer(self.thread.remove_channel(channel), "stop a channel")

    async def attach(
        self,
        queue: Virtqueue,
        handler: QueueHandler,
        channel: Channel,
        on_broken: Callable[[str], None],
    ) -> None:
        """Have the thread serve queue; on_broken is called if its ring proves bad."""
        self.on_broken[id(queue)] = on_broken
        try:
            await self._answer(
                self.thread.attach(queue, handler, channel), f"attach queue {queue.index}"
            )
        except IOThreadError:
            del self.on_broken[id(queue)]
            raise
        if self.thread.buffer_error and not self._told_buffers:
            self._told_buffers = True
            logger.warning(
                "IOThread %s: cannot register all guest memory (%s); requests go without",
                self.name,
                os.strerror(self.thread.buffer_error),
            )

    async def detach(self, queue: Virtqueue) -> None:
        """Drain queue and take it back."""
        if self._failed:
            self.on_broken.pop(id(queue), None)
            return  # nobody uses it any more
        await self._answer(self.thread.detach(queue), f"drain queue {queue.index}")
        self.on_broken.pop(id(queue), None)

    async def update(
        self,
        queue: Virtqueue,
        *,
        memory: GuestMemory | None = None,
        log: DirtyLog | EllipsisType | None = ...,
        log_addr: int | EllipsisType | None = ...,
        call_fd: int | None = None,
    ) -> None:
        """Change a queue that is being served. Raises ValueError if its ring would be lost."""
        token = self.thread.update(
            queue, memory=memory, log=log, log_addr=log_addr, call_fd=call_fd
        )
        await self._answer(token, f"update queue {queue.index}")

    async def ask(self, question: Question) -> None:
        """Have the thread answer a question."""
        await self._answer(self.thread.ask(question), "answer a question")

    async def stop(self) -> None:
        """End the thread, which has neither queues nor channels any more."""
        if not self._failed:
            await self._answer(self.thread.stop(), "stop")
        await asyncio.get_running_loop().run_in_executor(None, self.thread.join)
        assert self._loop is not None
        self._loop.remove_reader(self.thread.event_fd)
