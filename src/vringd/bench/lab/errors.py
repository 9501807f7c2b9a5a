"""What can go wrong with a measurement, in words for the person who runs it."""

from __future__ import annotations

from pathlib import Path

from vringd.bench.errors import BenchError


class UsageError(BenchError):
    """An option is wrong or a program is missing; nothing was measured."""


class SampleError(BenchError):
    """One measurement failed: a server or a client died, hung or reported an error."""


def log_tail(path: Path, lines: int = 15) -> str:
    """The last `lines` lines of a log, indented; says so when it is empty or absent."""
    try:
        text = path.read_text(errors="replace").rstrip()
    except OSError:
        text = ""
    if not text:
        return "    (it printed nothing)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
