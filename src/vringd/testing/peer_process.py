"""Programs that keep running: servers, and QEMU."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from vringd.testing.peers import PeerFailedError, peer_command

POLL_SECONDS = 0.01


def socket_is_listening(path: Path) -> bool:
    """Whether some process listens on the Unix socket `path`.

    Reads the kernel's table instead of connecting: a vhost-user server would take a
    connection for a front-end.
    """
    accepts_connections = 0x10000  # __SO_ACCEPTCON, the Flags column of /proc/net/unix
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        columns = line.split(maxsplit=7)
        if (
            len(columns) == 8
            and columns[7] == str(path)
            and int(columns[3], 16) & accepts_connections
        ):
            return True
    return False


class BackgroundProcess:
    """A running `command` whose output goes to the file `log`; a context manager that ends it.

    `program` names it in messages.
    """

    def __init__(
        self, program: str, command: Sequence[str], *, log: Path, pass_fds: Sequence[int] = ()
    ) -> None:
        self.program = program
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status (negative: the signal that ended it), or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Everything it printed so far."""
        return self.log.read_text(errors="replace")

    def check_running(self) -> None:
        """Raises `PeerFailedError` with the program's output when it has ended."""
        if self.status is not None:
            raise PeerFailedError(
                f"{self.program} ended with status {self.status}:\n{self.output()[-4000:]}"
            )

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
        """Waits for `condition`; `PeerFailedError` after `timeout` s or when the program ends."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.check_running()
            if time.monotonic() > deadline:
                raise PeerFailedError(
                    f"{self.program}: no {what} after {timeout} s:\n{self.output()[-4000:]}"
                )
            time.sleep(POLL_SECONDS)

    def wait_for_socket(self, path: Path, timeout: float = 10.0) -> None:
        """Waits until the program (or anyone) listens on `path`."""
        self.wait_until(lambda: socket_is_listening(path), f"socket {path}", timeout)

    def wait(self, timeout: float = 10.0) -> int:
        """Waits for the program to end by itself and returns its exit status."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise PeerFailedError(
                f"{self.program}: still running after {timeout} s:\n{self.output()[-4000:]}"
            ) from None

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when the program has ended."""
        self._process.send_signal(number)

    def stop(self, timeout: float = 5.0) -> int:
        """Ends the program with SIGTERM, after `timeout` s with SIGKILL; returns its status."""
        if self.status is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Ends the program with SIGKILL and returns its status."""
        self._process.kill()
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class PeerProcess(BackgroundProcess):
    """A running packaged program.

    Start it from a thread that outlives it (see :mod:`vringd.testing.peers`).
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        share: Sequence[Path] = (),
        log: Path,
        pass_fds: Sequence[int] = (),
    ) -> None:
        command = peer_command(program, *arguments, share=share)
        super().__init__(program, command, log=log, pass_fds=pass_fds)
