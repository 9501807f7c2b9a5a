"""How far apart two cores are: the time a cache line takes there and back.

On a virtual machine the host moves the CPUs about: two cores may share a cache in one second
and sit on different dies in the next, and a queue that both sides poll is then several times
slower. So the distance is measured before and after each sample, and only samples taken at
the same distance are compared.
"""

from __future__ import annotations

import mmap
import os
import signal
import statistics
import time
from typing import Final

_ROUND_TRIPS: Final = 2000
_SPINS: Final = 2_000_000
_SAME: Final = 1.4
_PAUSE: Final = 0.25
_THERE: Final = 0
_BACK: Final = 16  # in 8-byte words: two cache lines further on


def round_trip_ns(here: int, there: int) -> float:
    """Nanoseconds for a cache line from core `here` to `there` and back.

    The tenth percentile of many trips, the two Python loops included, so that other
    programs on the cores hardly matter; 0.0 when the other side never answered. Forks, so
    the caller must have no other threads.
    """
    with mmap.mmap(-1, mmap.PAGESIZE) as area, memoryview(area).cast("Q") as words:
        child = os.fork()
        if child == 0:
            try:
                _echo(there, words)
            finally:
                os._exit(0)
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {here})
            return _time(words)
        finally:
            os.sched_setaffinity(0, before)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _echo(cpu: int, words: memoryview[int]) -> None:
    os.sched_setaffinity(0, {cpu})
    for number in range(1, _ROUND_TRIPS + 1):
        for _ in range(_SPINS):
            if words[_THERE] == number:
                break
        else:
            return
        words[_BACK] = number


def _time(words: memoryview[int]) -> float:
    trips = []
    for number in range(1, _ROUND_TRIPS + 1):
        start = time.perf_counter_ns()
        words[_THERE] = number
        for _ in range(_SPINS):
            if words[_BACK] == number:
                break
        else:
            return 0.0
        trips.append(time.perf_counter_ns() - start)
    return float(sorted(trips)[_ROUND_TRIPS // 10])


class Distance:
    """The usual distance of two cores in this run, and whether a sample was taken at it."""

    def __init__(self, here: int, there: int, patience: float) -> None:
        self._cores = (here, there)
        self._patience = patience
        self._seen: list[float] = []
        for _ in range(5):
            self.probe()
            time.sleep(_PAUSE / 2)

    @property
    def usual_ns(self) -> float:
        return statistics.median(self._seen) if self._seen else 0.0

    def probe(self) -> float:
        """Measure now, in nanoseconds; 0.0 when that failed."""
        found = round_trip_ns(*self._cores)
        if found:
            self._seen.append(found)
        return found

    def settle(self) -> float:
        """Wait, for no longer than the patience in seconds, for the usual distance."""
        deadline = time.monotonic() + self._patience
        found = self.probe()
        while not self.is_usual(found) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            found = self.probe()
        return found

    def is_usual(self, *distances: float) -> bool:
        """Whether all `distances` are about the usual one (a failed probe never is)."""
        usual = self.usual_ns
        return all(usual / _SAME <= found <= usual * _SAME and found > 0 for found in distances)
