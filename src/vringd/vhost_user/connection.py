"""Whole vhost-user messages, with their descriptors, on a unix stream socket.

Specification: "Message Specification", "Header".
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from vringd.vhost_user.descriptors import ReceivedDescriptors
from vringd.vhost_user.errors import ProtocolError
from vringd.vhost_user.wire import (
    FLAG_NEED_REPLY,
    FLAG_REPLY,
    HEADER,
    MAX_PAYLOAD,
    VERSION,
    VERSION_MASK,
    request_name,
)

MAX_DESCRIPTORS = 64
"""Received with one message; above what any message may carry, so that a plain error results."""

_FD = struct.Struct("=i")
_ANCILLARY_SIZE = socket.CMSG_SPACE(MAX_DESCRIPTORS * _FD.size)


@dataclass(frozen=True, slots=True)
class Message:
    """One message from the front-end; whoever gets it must close `descriptors`."""

    request: int
    need_reply: bool
    payload: bytes
    descriptors: ReceivedDescriptors


class Connection:
    """The message stream of one front-end. Owns the socket, which must not block."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    @property
    def peer_pid(self) -> int:
        """Process id of the peer when it connected, 0 if it lives in another PID namespace."""
        layout = struct.Struct("=iII")
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
        return int(layout.unpack(credentials)[0])

    async def receive(self) -> Message | None:
        """The next message, or None when the peer has closed the connection between two.

        Raises ProtocolError for a bad header or a connection that ends within a message,
        OSError when the socket fails.
        """
        descriptors = ReceivedDescriptors()
        try:
            header = await self._read(HEADER.size, descriptors)
            if not header:
                return None
            request, flags, size = HEADER.unpack(header)
            name = request_name(request)
            if flags & VERSION_MASK != VERSION:
                raise ProtocolError(f"{name}: protocol version {flags & VERSION_MASK}, not 1")
            if flags & FLAG_REPLY:
                raise ProtocolError(f"{name}: a reply where a request was expected")
            if size > MAX_PAYLOAD:
                raise ProtocolError(f"{name}: {size} bytes of payload, more than {MAX_PAYLOAD}")
            payload = await self._read(size, descriptors) if size else b""
            if len(payload) != size:
                raise ProtocolError(f"{name}: the connection ended inside the message")
            return Message(request, bool(flags & FLAG_NEED_REPLY), payload, descriptors)
        except BaseException:
            descriptors.close()
            raise

    async def reply(self, request: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Send a reply; waits while the peer does not read. Raises OSError when it is gone."""
        data = memoryview(HEADER.pack(request, VERSION | FLAG_REPLY, len(payload)) + payload)
        # The descriptors travel with the first byte, and only once.
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while data:
            try:
                data = data[self._socket.sendmsg([data], ancillary) :]
            except BlockingIOError:
                await self._ready(writing=True)
            else:
                ancillary = []

    def shut_down(self) -> None:
        """Make `receive` return and `reply` fail, also for a caller that waits right now."""
        with contextlib.suppress(OSError):  # the peer may be faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    async def _read(self, size: int, descriptors: ReceivedDescriptors) -> bytes:
        """`size` bytes, or no more than came before the end of the stream.

        Raises ProtocolError when the end comes within a header-sized or longer read that has
        begun, or when descriptors were lost.
        """
        parts = b""
        while len(parts) < size:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    size - len(parts), _ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await self._ready(writing=False)
                continue
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    whole = len(content) - len(content) % _FD.size
                    descriptors.adopt([fd for (fd,) in _FD.iter_unpack(content[:whole])])
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError(
                    f"a message with more than {MAX_DESCRIPTORS} descriptors, or more than this "
                    "process may open"
                )
            if not data:
                if parts:
                    raise ProtocolError("the connection ended inside a message")
                break
            parts += data
        return parts

    async def _ready(self, *, writing: bool) -> None:
        """Wait until the socket may be read or written."""
        fd = self._socket.fileno()
        future: asyncio.Future[None] = self._loop.create_future()
        add, remove = (
            (self._loop.add_writer, self._loop.remove_writer)
            if writing
            else (self._loop.add_reader, self._loop.remove_reader)
        )
        add(fd, _wake, future)
        try:
            await future
        finally:
            remove(fd)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
