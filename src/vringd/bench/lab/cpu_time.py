"""Who used the CPU, and when.

Run times come from ``/proc/PID/task/TID/schedstat`` (nanoseconds, every thread of a process
and of its children); where the kernel has no such file, from utime+stime of
``/proc/PID/task/TID/stat``, whose resolution is a clock tick. What *other* programs took is
the busy and stolen time of the cores in ``/proc/stat`` less what server and client took.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Shares of one core (1.0 = a core kept busy) over a stretch of `seconds`."""

    seconds: float
    server: float
    client: float
    foreign: float


class ProcessClock:
    """The run time of a process and its descendants; threads that ended stay counted."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, int] = {}

    def total_ns(self) -> int:
        """Nanoseconds of CPU used so far by every thread ever seen."""
        pending = [self._pid]
        while pending:
            tasks = Path(f"/proc/{pending.pop()}/task")
            try:
                threads = os.listdir(tasks)
            except OSError:
                continue
            for tid in threads:
                try:
                    self._seen[int(tid)] = _thread_ns(tasks / tid)
                    pending += [int(pid) for pid in (tasks / tid / "children").read_text().split()]
                except OSError:
                    continue
        return sum(self._seen.values())


def _thread_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except FileNotFoundError:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_NS


def busy_ns(cpus: Collection[int]) -> int:
    """Time in nanoseconds that `cpus` together did not spend idle, steal included."""
    names = {f"cpu{cpu}" for cpu in cpus}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total * _TICK_NS


@dataclass(frozen=True)
class _Row:
    at: float
    server: float
    client: float
    busy: float


class Sampler:
    """Reads the clocks on a thread of its own until stopped.

    `cpus` are the cores that server and client may use. Times are ``time.time()`` seconds,
    so that a client's own report of when it started can be used.
    """

    _PERIOD: Final = 0.05

    def __init__(self, server: int, client: int, cpus: Collection[int]) -> None:
        self._server = ProcessClock(server)
        self._client = ProcessClock(client)
        self._cpus = frozenset(cpus)
        self._rows: list[_Row] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, start: float, end: float) -> Usage:
        """Usage from `start` to `end`, by interpolation; the sampler must have stopped.

        Raises `ValueError` when the samples do not reach over a tenth of a second of it.
        """
        start = max(start, self._rows[0].at)
        end = min(end, self._rows[-1].at)
        seconds = end - start
        if seconds < 0.1:
            raise ValueError(f"only {seconds:.3f} s of the run were sampled")
        first, last = self._at(start), self._at(end)
        server = (last.server - first.server) / seconds / 1e9
        client = (last.client - first.client) / seconds / 1e9
        busy = (last.busy - first.busy) / seconds / 1e9
        return Usage(seconds, server, client, max(0.0, busy - server - client))

    def _at(self, when: float) -> _Row:
        after = next(i for i, row in enumerate(self._rows) if row.at >= when)
        if after == 0:
            return self._rows[0]
        low, high = self._rows[after - 1], self._rows[after]
        part = (when - low.at) / (high.at - low.at)
        return _Row(
            when,
            low.server + part * (high.server - low.server),
            low.client + part * (high.client - low.client),
            low.busy + part * (high.busy - low.busy),
        )

    def _run(self) -> None:
        while True:
            row = _Row(
                time.time(),
                self._server.total_ns(),
                self._client.total_ns(),
                busy_ns(self._cpus),
            )
            if not self._rows or row.at > self._rows[-1].at:
                self._rows.append(row)
            if self._stop.wait(self._PERIOD):
                return
