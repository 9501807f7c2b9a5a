"""A server in an event loop of its own thread, so that tests can be blocking front-ends."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from vringd.testing.frontend import Frontend
from vringd.vhost_user.server import VhostUserServer

from ..loop_thread import LoopThread
from .fake_device import FakeDevice

T = TypeVar("T")


class ServerThread:
    """Serves a `FakeDevice` on a socket pair, a path or a descriptor, until the end of `with`."""

    def __init__(self, device: FakeDevice, **options: Any) -> None:
        self.device = device
        self._options = options
        self._loop = LoopThread()

    def __enter__(self) -> Self:
        self._loop.start()
        try:
            self.server = self.run(self._start())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self.server.close())
        finally:
            self._loop.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop."""
        return self._loop.run(work, timeout=20)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the server's loop."""

        async def work() -> T:
            return function(*arguments)

        return self.run(work())

    async def _start(self) -> VhostUserServer:
        server = VhostUserServer(self.device, **self._options)
        server.start()
        return server


@contextlib.contextmanager
def pair(device: FakeDevice, **options: Any):  # type: ignore[no-untyped-def]
    """A server and a front-end at the two ends of a socket pair."""
    ours, theirs = socket.socketpair()
    with (
        ServerThread(device, fd=theirs.detach(), **options) as server,
        Frontend(ours) as frontend,
    ):
        yield server, frontend


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for something that another thread does; whether it came."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def open_fds() -> dict[str, str]:
    """This process's descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found
