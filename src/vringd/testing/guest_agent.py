"""The host's side of the channel over which a test guest obeys commands."""

from __future__ import annotations

import base64
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vringd.testing.guest_image import AGENT_READY


@dataclass(frozen=True)
class GuestResult:
    """What a command in the guest ended with; `output` is stdout and stderr together."""

    status: int
    output: str


class AgentClosedError(ConnectionError):
    """The guest's end of the channel is gone."""


class GuestAgent:
    """A connection to the agent; `check` is called twice a second while waiting.

    `check` may raise to end the wait (because the guest has died, say).
    """

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._check = check
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._socket.settimeout(0.5)

    def wait_ready(self, timeout: float) -> None:
        """Waits for a (re)booted guest's agent; `TimeoutError` after `timeout` s."""
        self._read_past(f"{AGENT_READY}\n".encode(), time.monotonic() + timeout)

    def run(self, command: str, timeout: float) -> GuestResult:
        """Runs a shell command to its end; `TimeoutError` when it takes over `timeout` s.

        A command that was given up on still runs: the next one waits for it.
        """
        deadline = time.monotonic() + timeout
        mark = secrets.token_hex(8)
        encoded = base64.b64encode(command.encode()).decode()
        self._send(f"{mark} {encoded}\n".encode(), deadline)
        self._read_past(f"\n{mark} begins\n".encode(), deadline)
        output = self._read_past(f"\n{mark} ends ".encode(), deadline)
        status = self._read_past(b"\n", deadline)
        return GuestResult(int(status), output.decode(errors="replace"))

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes, deadline: float) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except TimeoutError:
                self._keep_waiting(deadline)
            except OSError as error:
                self._check()
                raise AgentClosedError(str(error)) from error

    def _read_past(self, end: bytes, deadline: float) -> bytes:
        """Reads up to and including `end`, and returns what came before it."""
        searched = 0
        while (at := self._buffer.find(end, searched)) < 0:
            searched = max(0, len(self._buffer) - len(end))
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                self._keep_waiting(deadline)
                continue
            except OSError as error:
                self._check()
                raise AgentClosedError(str(error)) from error
            if not data:
                self._check()
                raise AgentClosedError("QEMU closed the agent's channel")
            self._buffer += data
            if time.monotonic() > deadline:
                raise TimeoutError
        before = self._buffer[:at]
        self._buffer = self._buffer[at + len(end) :]
        return before

    def _keep_waiting(self, deadline: float) -> None:
        self._check()
        if time.monotonic() > deadline:
            raise TimeoutError
