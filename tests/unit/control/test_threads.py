"""What becomes of those who use an IOThread that ends by itself."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from vringd.control.threads import IOThreadError, ManagedThread
from vringd.core.channel import Channel, Question


class Dying:
    """An IOThread that answers nothing and can be let die."""

    name = "t0"
    engine = "io_uring"
    buffer_error = 0

    def __init__(self) -> None:
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.joined = False
        self._tokens = 0
        self._events: list[tuple[str, int, int, None]] = []

    def start(self) -> None:
        pass

    def _ask(self, *arguments: object) -> int:
        self._tokens += 1
        return self._tokens

    attach = detach = add_channel = remove_channel = stop = ask = _ask

    def join(self) -> None:
        self.joined = True

    def die(self) -> None:
        self._events.append(("failed", 0, -errno.EBADF, None))
        os.eventfd_write(self.event_fd, 1)

    def events(self) -> list[tuple[str, int, int, None]]:
        os.eventfd_read(self.event_fd)
        found, self._events = self._events, []
        return found


@pytest.fixture
def dying() -> Iterator[Dying]:
    thread = Dying()
    yield thread
    os.close(thread.event_fd)


async def test_nobody_waits_for_an_iothread_that_ended(dying: Dying) -> None:
    managed = ManagedThread(cast(Any, dying))
    managed.start()
    queue = cast(Any, type("Queue", (), {"index": 3})())
    broken: list[str] = []
    managed.on_broken[id(queue)] = broken.append
    waiting = asyncio.ensure_future(managed.ask(Question()))
    await asyncio.sleep(0)
    dying.die()
    with pytest.raises(IOThreadError, match="t0 cannot answer a question: Bad file"):
        await waiting
    assert broken == ["its IOThread t0 ended by itself"]
    with pytest.raises(IOThreadError, match="t0 cannot start a channel: it has ended by itself"):
        await managed.add_channel(Channel())
    await managed.detach(queue)
    await managed.remove_channel(Channel())
    await managed.stop()
    assert dying.joined
