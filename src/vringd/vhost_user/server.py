"""The socket of one device: serves one front-end after the other."""

from __future__ import annotations

import asyncio
import os
import socket
from types import TracebackType
from typing import Self

from vringd.vhost_user.host import QueueHost
from vringd.vhost_user.listener import BoundPath, adopt
from vringd.vhost_user.session import DRAIN_REPORT_SECONDS, Session, logger

_ACCEPT_PAUSE = 1.0


class VhostUserServer:
    """Serves `host` to whoever connects, one front-end at a time.

    A device has one set of queues, so a second front-end waits, unserved, until the first one
    has gone and its queues are drained; the log says so.

    Give either `path`, at which a socket is created, or `fd`, an inherited listening or
    connected one, which the server then owns. A connected socket serves a single front-end.
    Raises SocketError at once when there cannot be such a socket. Used as an asynchronous
    context manager, it serves within the block.
    """

    def __init__(
        self,
        host: QueueHost,
        *,
        path: str | os.PathLike[str] | None = None,
        fd: int | None = None,
        drain_report: float = DRAIN_REPORT_SECONDS,
    ) -> None:
        if (path is None) == (fd is None):
            raise ValueError("exactly one of path and fd is needed")
        self._host = host
        self._drain_report = drain_report
        self._bound: BoundPath | None = None
        self._connected: socket.socket | None = None
        self._listener: socket.socket | None = None
        if path is not None:
            self._bound = BoundPath(path)
            self._listener = self._bound.socket
        else:
            assert fd is not None
            sock, listening = adopt(fd)
            if listening:
                self._listener = sock
            else:
                self._connected = sock
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Begin to serve, in the running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def wait(self) -> None:
        """Return when there is nothing more to serve: after `close`, or when the front-end of an
        already connected socket has gone."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Drop the front-end, drain its queues, and remove the socket. Again does nothing."""
        self._closing = True
        if self._session is not None:
            self._session.close()
        elif self._task is not None:
            self._task.cancel()
        await self.wait()
        if self._connected is not None:
            self._connected.close()
        if self._bound is not None:
            self._bound.close()
        elif self._listener is not None:
            self._listener.close()

    @property
    def connected(self) -> bool:
        """Whether a front-end is being served."""
        return self._session is not None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _serve(self) -> None:
        if self._connected is not None:
            sock, self._connected = self._connected, None
            await self._serve_one(sock)
            return
        assert self._listener is not None
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while not self._closing:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                # Most likely out of descriptors, which may pass; a busy loop would not help.
                logger.error(
                    "export %s: cannot accept a front-end: %s", self._host.name, str(error)
                )
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            loop.add_reader(self._listener, self._report_waiting)
            try:
                await self._serve_one(sock)
            finally:
                loop.remove_reader(self._listener)

    async def _serve_one(self, sock: socket.socket) -> None:
        self._session = Session(self._host, sock, self._drain_report)
        try:
            await self._session.run()
        finally:
            self._session = None

    def _report_waiting(self) -> None:
        """Once for each front-end served, whoever waits then."""
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener)
        logger.info(
            "export %s: another front-end waits until the present one has gone", self._host.name
        )
