"""Messages from this process to the front-end, over the socket that it has sent for them.

Specification: "Back-end communication", "Back-end message types".
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from vringd.vhost_user.descriptors import Descriptor
from vringd.vhost_user.errors import RefusedError
from vringd.vhost_user.wire import (
    FLAG_NEED_REPLY,
    FLAG_REPLY,
    HEADER,
    U64,
    VERSION,
    BackendRequest,
)

if TYPE_CHECKING:
    Log = logging.LoggerAdapter[logging.Logger]

_REPLY_SIZE = HEADER.size + U64.size


class BackendChannel:
    """The channel to one front-end; never waits for it.

    A message that does not fit into the socket now goes out when the front-end reads; a
    configuration change that happens meanwhile needs no second message.
    """

    def __init__(self, descriptor: Descriptor, *, acknowledged: bool, log: Log) -> None:
        """Owns the descriptor. Raises RefusedError unless it is a unix stream socket."""
        try:
            sock = socket.socket(fileno=descriptor.fd)
        except OSError as error:
            descriptor.close()
            raise RefusedError("the back-end channel is not a socket") from error
        descriptor.release()  # the socket object owns it now
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
            sock.close()
            raise RefusedError("the back-end channel is not a unix stream socket")
        self._socket = sock
        self._log = log
        self._acknowledged = acknowledged
        self._loop = asyncio.get_running_loop()
        self._outgoing = b""
        self._incoming = b""
        self._changed = False
        self._loop.add_reader(sock, self._readable)

    def config_changed(self) -> None:
        """Send CONFIG_CHANGE_MSG, or remember to."""
        self._changed = True
        self._send()

    def close(self) -> None:
        """Close the channel; further messages go nowhere."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _send(self) -> None:
        while self._socket.fileno() >= 0 and (self._outgoing or self._changed):
            if not self._outgoing:
                flags = VERSION | (FLAG_NEED_REPLY if self._acknowledged else 0)
                self._outgoing = HEADER.pack(BackendRequest.CONFIG_CHANGE_MSG, flags, 0)
                self._changed = False
            try:
                # The flag, not the socket's mode: the front-end shares the latter.
                sent = self._socket.send(self._outgoing, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._writable)
                return
            except OSError as error:
                self._end(f"failed: {error}")
                return
            self._outgoing = self._outgoing[sent:]

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self._send()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_REPLY_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"failed: {error}")
            return
        if not data:
            self.close()
            return
        self._incoming += data
        while len(self._incoming) >= _REPLY_SIZE:
            reply, self._incoming = (
                self._incoming[:_REPLY_SIZE],
                self._incoming[_REPLY_SIZE:],
            )
            _, flags, size = HEADER.unpack_from(reply)
            if not flags & FLAG_REPLY or size != U64.size:
                self._end("carries something that is not an acknowledgement")
                return
            if U64.unpack_from(reply, HEADER.size)[0] != 0:
                self._log.warning("did not take a change of the configuration")

    def _end(self, why: str) -> None:
        self._log.warning("the back-end channel %s; it is closed", why)
        self.close()
