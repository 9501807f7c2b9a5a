"""A small synchronous QMP client, for QEMU, qemu-storage-daemon and vringd alike."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class QmpError(RuntimeError):
    """The server answered a command with an error; `error_class` is QMP's class."""

    def __init__(self, command: str, error_class: str, description: str) -> None:
        super().__init__(f"{command}: {description}")
        self.error_class = error_class


class QmpClient:
    """One connection to a QMP server on the Unix socket `path`; a context manager.

    `timeout` (seconds) bounds the connection and every answer; when it is exceeded a
    `TimeoutError` is raised. `ConnectionError` means that the server went away.
    """

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        self._timeout = timeout
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(path))
            self.greeting = self._receive(time.monotonic() + timeout)
            self.command("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def command(self, name: str, /, **arguments: object) -> Any:
        """Runs a command and returns its ``return`` value; `QmpError` when it fails.

        Underscores in argument names are sent as ``-``; a trailing one is dropped (``id_``).
        """
        sent = {key.rstrip("_").replace("_", "-"): value for key, value in arguments.items()}
        return self.command_raw(name, sent)

    def command_raw(self, name: str, arguments: dict[str, object]) -> Any:
        """As :meth:`command`, with the argument names sent as they are."""
        request: dict[str, object] = {"execute": name}
        if arguments:
            request["arguments"] = arguments
        self._socket.settimeout(self._timeout)
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._receive(deadline)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                error = answer["error"]
                raise QmpError(name, error["class"], error["desc"])
            self._events.append(answer)

    def wait_event(self, name: str, timeout: float = 30.0) -> dict[str, Any]:
        """The oldest unread event `name`; waits for one up to `timeout` s (`TimeoutError`).

        Other events stay unread. The result has the keys ``event``, ``data``, ``timestamp``.
        """
        deadline = time.monotonic() + timeout
        while True:
            for index, event in enumerate(self._events):
                if event.get("event") == name:
                    return self._events.pop(index)
            self._events.append(self._receive(deadline))

    def close(self) -> None:
        """Closes the connection; the server keeps running."""
        self._socket.close()

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no QMP message in time")
            self._socket.settimeout(left)
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the QMP server closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
