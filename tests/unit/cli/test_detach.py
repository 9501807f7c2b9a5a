"""`--daemonize`, each time in a process of its own, because it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

READY = """
import os, sys, signal
from vringd.cli.detach import detach
ready = detach()
open(sys.argv[1], "w").write(str(os.getpid()))
print("before", flush=True)
ready()
print("after", flush=True)
signal.pause()
"""

FAILS = """
import sys
from vringd.cli.detach import detach
detach()
print("it failed", file=sys.stderr)
sys.exit(1)
"""

KILLED = """
import os
from vringd.cli.detach import detach
detach()
os.kill(os.getpid(), 9)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60)


def test_the_parent_ends_when_the_child_is_ready(tmp_path: Path) -> None:
    result = run(READY, str(tmp_path / "pid"))
    assert (result.returncode, result.stdout) == (0, b"before\n")
    child = int((tmp_path / "pid").read_text())
    assert os.getsid(child) == child
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not _alive(child):
            return
        time.sleep(0.01)
    pytest.fail(f"process {child} is still there")


def test_a_child_that_fails_passes_its_status_and_message_on() -> None:
    result = run(FAILS)
    assert (result.returncode, result.stderr) == (1, b"it failed\n")


def test_a_child_that_is_killed_counts_as_failed() -> None:
    assert run(KILLED).returncode == 1


def _alive(process: int) -> bool:
    """Whether it runs; an orphan that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
