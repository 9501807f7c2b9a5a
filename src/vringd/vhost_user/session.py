"""One front-end, from its connection to its end.

Messages are handled strictly in order; a queue that breaks takes its turn between two of them.
Specification: "Communication", "REPLY_ACK".
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import MutableMapping
from typing import Any

from vringd.vhost_user import rules
from vringd.vhost_user.connection import Connection, Message
from vringd.vhost_user.errors import FrontendFault, ProtocolError, RefusedError
from vringd.vhost_user.host import QueueHost
from vringd.vhost_user.messages import Messages
from vringd.vhost_user.rings import Rings
from vringd.vhost_user.wire import U64, ProtocolFeature, request_name

logger = logging.getLogger("vringd.vhost_user")

DRAIN_REPORT_SECONDS = 30.0
"""How long the data plane may take for one request before a log line says so."""

MAX_REFUSALS = 32
"""Refused messages after which a front-end loses its connection, and the log its flood."""


class SessionLog(logging.LoggerAdapter[logging.Logger]):
    """Says in every line which export and which front-end it is about."""

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        extra = self.extra or {}
        return f"export {extra['export']}: front-end (pid {extra['pid']}): {msg}", kwargs


class Session:
    """Serves one connected socket, which it owns, until either side ends the connection."""

    def __init__(
        self, host: QueueHost, sock: socket.socket, drain_report: float = DRAIN_REPORT_SECONDS
    ) -> None:
        self._host = host
        self._connection = Connection(sock)
        self._log = SessionLog(logger, {"export": host.name, "pid": self._connection.peer_pid})
        self._rings = Rings(host, self._log, drain_report)
        self._messages = Messages(host, self._rings, self._log)
        self._turn = asyncio.Lock()
        self._breaking: set[asyncio.Task[None]] = set()
        self._config_changed = False
        self._closing = False
        self._refusals = 0

    async def run(self) -> None:
        """Serve until the connection ends; all queues are drained and all is unmapped then.

        Raises nothing that a front-end could cause.
        """
        self._log.info("connected")
        self._host.on_config_change = self._on_config_change
        self._host.on_queue_broken = self._on_queue_broken
        try:
            while (message := await self._connection.receive()) is not None:
                async with self._turn:
                    with message.descriptors:
                        await self._handle(message)
        except FrontendFault as fault:
            if not self._closing:
                self._log.warning("%s; the connection is closed", str(fault))
        except OSError as error:
            if not self._closing:
                self._log.warning("the connection failed: %s", str(error))
        except Exception:
            self._log.exception("internal error; the connection is closed")
        finally:
            await self._end()
            self._log.info("disconnected")

    def close(self) -> None:
        """Make `run` end soon: after the message at hand and a drain."""
        self._closing = True
        self._connection.shut_down()

    async def _handle(self, message: Message) -> None:
        replies = False
        try:
            request, rule = rules.check(message, self._messages.protocol)
            replies = rule.replies
            reply = await self._messages.handle(request, message)
        except RefusedError as error:
            text = f"{request_name(message.request)}: {error}"
            if replies or not self._acknowledges(message):
                raise ProtocolError(text) from error
            self._refusals += 1
            if self._refusals == MAX_REFUSALS:
                raise ProtocolError(f"{text}; {MAX_REFUSALS} messages were refused") from error
            self._log.warning("%s", text)
            await self._connection.reply(message.request, U64.pack(1))
            return
        if reply is not None:
            await self._connection.reply(message.request, reply.payload, reply.fds)
        elif self._acknowledges(message):
            await self._connection.reply(message.request, U64.pack(0))
        self._tell_config_change()

    def _acknowledges(self, message: Message) -> bool:
        return message.need_reply and ProtocolFeature.REPLY_ACK in self._messages.protocol

    # ---- what the host tells ----

    def _on_config_change(self) -> None:
        self._config_changed = True
        self._tell_config_change()

    def _tell_config_change(self) -> None:
        """Send what is due, unless the device is suspended: it must then keep quiet."""
        channel = self._messages.channel
        if self._config_changed and channel is not None and self._rings.started:
            self._config_changed = False
            if ProtocolFeature.CONFIG in self._messages.protocol:
                channel.config_changed()

    def _on_queue_broken(self, index: int, reason: str) -> None:
        if self._rings.broken is not None:
            return
        self._log.error(
            "queue %d is broken: %s; the device does nothing until it is reset", index, reason
        )
        self._rings.broken = f"queue {index}: {reason}"
        self._rings.signal_errors()
        self._on_config_change()
        task = asyncio.get_running_loop().create_task(self._stop_broken())
        self._breaking.add(task)
        task.add_done_callback(self._breaking.discard)

    async def _stop_broken(self) -> None:
        async with self._turn:
            # A reset may have had its turn first.
            if self._rings.broken is not None:
                await self._rings.stop_all()

    # ---- the end ----

    async def _end(self) -> None:
        self._host.on_config_change = None
        self._host.on_queue_broken = None
        self._connection.shut_down()
        try:
            async with self._turn:
                await self._rings.close()
        except Exception:
            self._log.exception("internal error while stopping the queues")
        if self._messages.channel is not None:
            self._messages.channel.close()
        self._connection.close()
