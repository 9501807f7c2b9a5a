"""A thread of another process, run one machine instruction at a time (ptrace(2))."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SINGLESTEP, _ATTACH, _DETACH = 9, 16, 17
_WALL = 0x40000000  # also for threads

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Gone(Exception):
    """The thread has ended."""


def _ptrace(request: int, tid: int, data: int = 0) -> None:
    if _libc.ptrace(request, tid, None, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def _wait(tid: int) -> None:
    _, status = os.waitpid(tid, _WALL)
    if not os.WIFSTOPPED(status):
        raise Gone


def find_thread(pid: int, name: str, seconds: float = 20.0) -> int:
    """Its id, once it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().strip() == name:
                return int(task.name)
        time.sleep(0.0005)
    raise TimeoutError(f"process {pid} has no thread {name!r}")


class Stepper:
    """A stopped thread; all calls must come from the thread that has attached."""

    def __init__(self, tid: int) -> None:
        self._tid = tid

    def step(self) -> None:
        """Run one instruction, or one system call as long as it takes. Raises Gone."""
        try:
            _ptrace(_SINGLESTEP, self._tid)
        except ProcessLookupError:
            raise Gone from None
        _wait(self._tid)


@contextmanager
def stepping(tid: int) -> Iterator[Stepper]:
    """Stop a thread for the block. It may be killed therein; its end is waited for then."""
    _ptrace(_ATTACH, tid)
    _wait(tid)
    try:
        yield Stepper(tid)
    finally:
        try:
            _ptrace(_DETACH, tid)
        except ProcessLookupError:  # killed: it stays until its tracer has seen that
            try:
                while True:
                    _wait(tid)
            except (Gone, ChildProcessError):
                pass


def may_step() -> bool:
    """Whether ptrace is allowed here, of a child at least."""
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(1)
    try:
        with stepping(child) as stepper:
            stepper.step()
        return True
    except OSError:
        return False
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
