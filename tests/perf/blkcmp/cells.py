"""Cells: what is measured, and how a person names it.

A cell's name is ``BACKEND/JOBS/CLIENT/DEPTH`` for load (``null/2/polling/128``),
``idle/SECONDS`` and ``scale/THREADS`` for the two special measurements. ``--cells`` takes
shell patterns over these names.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from blkcmp.errors import UsageError

BACKENDS: Final = ("null", "file", "direct")
CLIENTS: Final = ("eventfd", "polling", "qemu-img")
SCALE_QUEUES: Final = 4
SCALE_DEPTH: Final = 32
SCALE_CPU_NS: Final = 5000

Kind = Literal["load", "idle", "scale"]


@dataclass(frozen=True)
class Cell:
    """One combination to measure.

    `jobs` is both the number of client threads and of virtqueues; `depth` counts requests
    in flight per queue; `threads` is the number of IOThreads in the server; `cpu_ns` is the
    CPU time that the null back-end burns per request; `seconds` is the measured time.
    """

    kind: Kind
    backend: str
    jobs: int
    client: str
    depth: int
    seconds: float
    threads: int = 1
    cpu_ns: int = 0

    @property
    def name(self) -> str:
        if self.kind == "idle":
            return f"idle/{self.seconds:g}"
        if self.kind == "scale":
            return f"scale/{self.threads}"
        return f"{self.backend}/{self.jobs}/{self.client}/{self.depth}"


def matrix(
    backends: Sequence[str],
    jobs: Sequence[int],
    clients: Sequence[str],
    depths: Sequence[int],
    seconds: float,
) -> list[Cell]:
    """Every load cell; qemu-img drives one queue only, so it has no cells with more jobs."""
    return [
        Cell("load", backend, count, client, depth, seconds)
        for backend in backends
        for count in jobs
        for client in clients
        for depth in depths
        if client != "qemu-img" or count == 1
    ]


def idle_cell(seconds: float) -> Cell:
    """A connected client that sends nothing for `seconds`."""
    return Cell("idle", "null", 1, "eventfd", 1, seconds)


def scale_cells(seconds: float) -> list[Cell]:
    """Four queues on a back-end that costs CPU, served by one IOThread and by two."""
    return [
        Cell("scale", "null", SCALE_QUEUES, "eventfd", SCALE_DEPTH, seconds, count, SCALE_CPU_NS)
        for count in (1, 2)
    ]


def select(cells: Iterable[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells whose name matches a pattern, in their own order; all without patterns.

    Raises `UsageError` for a pattern that matches nothing.
    """
    everything = list(cells)
    if not patterns:
        return everything
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in everything):
            names = " ".join(cell.name for cell in everything)
            raise UsageError(f"--cells: {pattern!r} matches none of: {names}")
    return [
        cell
        for cell in everything
        if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]
