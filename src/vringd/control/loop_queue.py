"""A virtqueue that the event loop serves itself: for queues with little to do."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.virtqueue import Virtqueue
from vringd.vhost_user.host import UNCHANGED, Unchanged

_POLL_SECONDS: Final = 0.005  # how often a ring without kick descriptor is looked at


class LoopQueue:
    """Calls on_kick whenever the driver may have made something available, and once at first.

    on_kick uses the queue's own verbs; before it returns it asks for kicks
    (`Virtqueue.enable_notification`) and looks again.
    """

    def __init__(self, queue: Virtqueue, on_kick: Callable[[], None]) -> None:
        self.queue = queue
        self._on_kick = on_kick
        self._loop = asyncio.get_running_loop()
        # The kick eventfd is shared with the front-end, so that a read of it could wait for ever.
        # An edge-triggered watch needs none: taking its event re-arms it.
        self._edges: select.epoll | None = None
        self._timer: asyncio.TimerHandle | None = None
        if queue.kick_fd >= 0:
            self._edges = select.epoll()
            self._edges.register(queue.kick_fd, select.EPOLLIN | select.EPOLLET)
            self._loop.add_reader(self._edges.fileno(), self._kicked)
        self._first = self._loop.call_soon(self._kicked)

    def _kicked(self) -> None:
        if self._edges is not None:
            self._edges.poll(0)
        else:
            self._timer = self._loop.call_later(_POLL_SECONDS, self._kicked)
        self._on_kick()

    def update(
        self,
        *,
        memory: GuestMemory | Unchanged = UNCHANGED,
        log: DirtyLog | Unchanged | None = UNCHANGED,
        log_addr: int | Unchanged | None = UNCHANGED,
        call_fd: int | Unchanged = UNCHANGED,
    ) -> None:
        """Change the set-up, as `QueueHost.update_queue` says."""
        self.queue.update(
            memory=None if isinstance(memory, Unchanged) else memory,
            log=... if isinstance(log, Unchanged) else log,
            log_addr=... if isinstance(log_addr, Unchanged) else log_addr,
            call_fd=None if isinstance(call_fd, Unchanged) else call_fd,
        )
        if not isinstance(call_fd, Unchanged):
            self.queue.notify()  # whatever was to be told through the old one

    def close(self) -> None:
        """Look at the queue no more."""
        self._first.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._edges is not None:
            self._loop.remove_reader(self._edges.fileno())
            self._edges.close()
