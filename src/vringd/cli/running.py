"""Runs a daemon from checked options until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from vringd.control.pidfile import PidFile
from vringd.control.schema import ServeOptions
from vringd.control.systemd import notify


class Runnable(Protocol):
    """What is needed of `control.daemon.Daemon`."""

    async def start(self) -> None: ...
    async def run_until_signal(self) -> None: ...
    async def stop(self) -> None: ...


def make_daemon(options: ServeOptions) -> Runnable:
    """The real daemon; imported late because it loads the data plane."""
    from vringd.control.daemon import Daemon

    return Daemon(options)


def run_daemon(
    options: ServeOptions,
    *,
    pidfile: str | None = None,
    when_ready: Callable[[], None] = lambda: None,
) -> None:
    """Returns when a signal has ended the daemon and everything is cleaned up.

    `when_ready` is called when the sockets and the pid file exist. Raises VringdError if
    the daemon cannot start; nothing is left behind then.
    """
    with contextlib.ExitStack() as stack:
        pid = stack.enter_context(PidFile(pidfile)) if pidfile else None
        asyncio.run(_serve(make_daemon(options), pid, when_ready))


async def _serve(daemon: Runnable, pid: PidFile | None, when_ready: Callable[[], None]) -> None:
    await daemon.start()
    try:
        if pid is not None:
            pid.publish()
        when_ready()
        notify("READY=1")
    except BaseException:
        await daemon.stop()
        raise
    await daemon.run_until_signal()
