"""The queues of an export that IOThreads serve: which one serves which, and how they move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol

from vringd.control.threads import ManagedThread
from vringd.core.channel import Channel, QueueHandler
from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.virtqueue import Virtqueue
from vringd.vhost_user.host import UNCHANGED, Unchanged


class Paths(Protocol):
    """What the queues of an export are attached with, for each IOThread that serves some."""

    async def open(self, thread: ManagedThread) -> tuple[QueueHandler, Channel]:
        """Handler and channel for queues in that thread, made when first asked for. Raises
        OSError or ValueError when they cannot be had."""

    async def keep_only(self, used: Callable[[], set[ManagedThread]]) -> None:
        """Let go of those for all other threads; no queue uses them any more."""


class MappedQueues:
    """Implements the part of `vhost_user.host.QueueHost` that concerns running queues.

    threads: the IOThread of each queue, at first; `move` changes it. first: how many queues the
    device has in front of these, which are no part of the mapping. on_broken: called with a
    queue's index in the device and what is wrong with its ring.
    """

    def __init__(
        self,
        threads: Sequence[ManagedThread],
        paths: Paths,
        on_broken: Callable[[int, str], None],
        *,
        first: int = 0,
    ) -> None:
        self.threads = list(threads)
        self._paths = paths
        self._on_broken = on_broken
        self._first = first
        self._running: dict[int, Virtqueue] = {}
        self._targets: dict[int, ManagedThread] = {}  # of the moves under way
        # A queue is started, stopped, updated or moved by one task at a time.
        self._turns = [asyncio.Lock() for _ in self.threads]

    def _number(self, queue: Virtqueue) -> int:
        return queue.index - self._first

    async def start(self, queue: Virtqueue) -> None:
        """Hand the queue to its IOThread."""
        number = self._number(queue)
        async with self._turns[number]:
            await self._attach(queue, self.threads[number])
            self._running[number] = queue

    async def stop(self, queue: Virtqueue) -> None:
        """Drain the queue and take it back."""
        number = self._number(queue)
        async with self._turns[number]:
            # A queue that no IOThread took, in a move, is at rest already.
            if self._running.pop(number, None) is not None:
                await self.threads[number].detach(queue)

    async def update(
        self,
        queue: Virtqueue,
        *,
        memory: GuestMemory | Unchanged = UNCHANGED,
        log: DirtyLog | Unchanged | None = UNCHANGED,
        log_addr: int | Unchanged | None = UNCHANGED,
        call_fd: int | Unchanged = UNCHANGED,
    ) -> None:
        """Change the set-up of a running queue."""
        number = self._number(queue)
        async with self._turns[number]:
            await self.threads[number].update(
                queue,
                memory=None if isinstance(memory, Unchanged) else memory,
                log=... if isinstance(log, Unchanged) else log,
                log_addr=... if isinstance(log_addr, Unchanged) else log_addr,
                call_fd=None if isinstance(call_fd, Unchanged) else call_fd,
            )

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """While this lasts, no queue starts, stops or moves."""
        async with contextlib.AsyncExitStack() as stack:
            for turn in self._turns:
                await stack.enter_async_context(turn)
            yield

    # ---- mapping -----------------------------------------------------------------------------

    async def move(self, number: int, thread: ManagedThread) -> None:
        """Have another IOThread serve a queue from now on, running or not.

        What is in flight is finished in the old thread first; the guest notices nothing but that.
        Raises IndexError for a queue that is not there, OSError or ValueError when the new thread
        cannot take it: then the old one goes on.
        """
        if not 0 <= number < len(self.threads):
            raise IndexError(f"there is no queue {number}, the device has {len(self.threads)}")
        # When the caller is cancelled the move goes on: a queue that is half handed over would
        # be neither here nor there.
        await asyncio.shield(asyncio.ensure_future(self._move(number, thread)))

    async def _move(self, number: int, thread: ManagedThread) -> None:
        async with self._turns[number]:
            old = self.threads[number]
            if thread is old:
                return
            self._targets[number] = thread
            try:
                await self._paths.open(thread)
                queue = self._running.get(number)
                if queue is not None:
                    await old.detach(queue)
                    try:
                        await self._attach(queue, thread)
                    except OSError:
                        await self._take_back(queue, old)
                        raise
                self.threads[number] = thread
            finally:
                del self._targets[number]
                await self._paths.keep_only(self.used_threads)

    async def set_mapping(self, threads: Sequence[ManagedThread]) -> None:
        """Move every queue to its IOThread in `threads`, one after the other."""
        if len(threads) != len(self.threads):
            raise ValueError(f"{len(threads)} IOThreads for {len(self.threads)} queues")
        for number, thread in enumerate(threads):
            await self.move(number, thread)

    async def _take_back(self, queue: Virtqueue, thread: ManagedThread) -> None:
        try:
            await self._attach(queue, thread)
        except OSError as error:
            del self._running[self._number(queue)]
            self._on_broken(queue.index, f"no IOThread takes it: {error}")

    async def _attach(self, queue: Virtqueue, thread: ManagedThread) -> None:
        handler, channel = await self._paths.open(thread)
        await thread.attach(queue, handler, channel, partial(self._on_broken, queue.index))

    def used_threads(self) -> set[ManagedThread]:
        """The IOThreads that serve a queue, or are about to."""
        return {*self.threads, *self._targets.values()}

    # ---- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the paths of every IOThread of the mapping. Raises OSError or ValueError."""
        for thread in self.threads:
            await self._paths.open(thread)

    async def close(self) -> None:
        """Close them; no queue is attached any more."""
        await self._paths.keep_only(set)
