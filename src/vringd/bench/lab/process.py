"""Starting a pinned program whose output goes to a file, and ending it for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from vringd.bench.lab.errors import SampleError


def start(
    argv: Sequence[str],
    cpus: Collection[int],
    log: Path,
    *,
    nice: int = 0,
    stdout: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own; both outputs go to `log`.

    cpus: where it may run, none: wherever the caller may; nice: its priority; stdout: takes
    standard output apart. Raises SampleError when it cannot be started.
    """
    before = os.sched_getaffinity(0)
    with log.open("wb") as errors, (stdout or log).open("ab") as output:
        try:
            if cpus:
                os.sched_setaffinity(0, cpus)
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors if stdout is not None else output,
                start_new_session=True,
            )
        except OSError as error:
            raise SampleError(f"cannot start {argv[0]}: {error.strerror}") from error
        finally:
            os.sched_setaffinity(0, before)
    if nice:
        _set_priority(process.pid, nice)
    return process


def _set_priority(pid: int, nice: int) -> None:
    # Before the program has threads: they inherit it. A new session is also a new autogroup
    # (where the kernel has them), and then only the group's own priority counts.
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        Path(f"/proc/{pid}/autogroup").write_text(f"{nice}\n")


def stop(process: subprocess.Popen[bytes], grace: float = 5.0) -> bool:
    """End `process` and its session: SIGTERM, then SIGKILL after `grace` seconds.

    Returns False when SIGKILL was needed.
    """
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
        return number == signal.SIGTERM
    return False


def describe_exit(status: int) -> str:
    """A wait status as words: ``exit status 1`` or ``signal SIGSEGV``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
