"""Commands that run in the background of a test guest."""

from __future__ import annotations

import shlex
from typing import Protocol

from vringd.testing.guest_agent import GuestResult


class Shell(Protocol):
    """The part of a guest that a job needs."""

    def output(self, command: str, timeout: float = ...) -> str: ...

    def wait_for(self, command: str, timeout: float = ...) -> str: ...

    def run(self, command: str, timeout: float = ...) -> GuestResult: ...


class GuestJob:
    """A shell command in the background; its output is kept in the guest's ``/run``."""

    def __init__(self, guest: Shell, number: int) -> None:
        self._guest = guest
        self._number = number
        self._base = f"/run/job-{number}"

    def start(self, command: str) -> None:
        """Starts the command; called once."""
        # The status appears in one step, and only when the output is complete.
        script = (
            f"({command}\n) >{self._base}.output 2>&1\n"
            f"echo $? >{self._base}.new; mv {self._base}.new {self._base}.status"
        )
        self._guest.output(f"setsid sh -c {shlex.quote(script)} </dev/null >/dev/null 2>&1 &")

    def moved_to(self, guest: Shell) -> GuestJob:
        """The same job, after the machine it runs on has been migrated to `guest`."""
        return GuestJob(guest, self._number)

    def is_running(self) -> bool:
        """Whether the command has not ended yet."""
        return self._guest.run(f"test -e {self._base}.status").status != 0

    def wait(self, timeout: float = 60.0) -> GuestResult:
        """Waits for the end; `GuestTimeoutError` after `timeout` s."""
        status = int(self._guest.wait_for(f"cat {self._base}.status", timeout))
        return GuestResult(status, self.output_so_far())

    def output_so_far(self) -> str:
        """What the command has printed until now."""
        return self._guest.run(f"cat {self._base}.output").output
