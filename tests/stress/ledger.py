"""What this process holds of the kernel: nothing may be left behind by a test."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections import Counter

Held = tuple[Counter[str], int, int]


def held(*, workers: bool = True) -> Held:
    """Descriptors by what they are, shared mappings of memory files, and threads.

    `workers=False` leaves out those of aio=threads, whose pools grow while they are used.
    """
    gc.collect()
    descriptors: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptors[os.readlink(f"/proc/self/fd/{name}").split(":")[0]] += 1
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:" in line for line in maps)
    return descriptors, shared, len(thread_names(workers))


def thread_names(workers: bool) -> list[str]:
    """Threads of this process but for io_uring's workers, which come and go by themselves."""
    ignored = ("iou-",) if workers else ("iou-", "vringd-worker")
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return [name for name in names if not name.startswith(ignored)]


def assert_no_more_than(before: Held, seconds: float = 5.0, *, workers: bool = True) -> None:
    """Threads that have been joined and sockets just closed may take a moment to go."""
    deadline = time.monotonic() + seconds
    while (now := held(workers=workers)) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    left = {
        "descriptors": dict(now[0] - before[0]),
        "mappings": max(0, now[1] - before[1]),
        "threads": max(0, now[2] - before[2]),
    }
    assert not any(left.values()), f"left behind: {left}"
