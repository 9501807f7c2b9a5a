"""The ways of pinning that were published, on the CPUs that there are.

There is no virtual machine here: a job's thread stands for the vCPU that it was pinned to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vringd.bench.lab.setup import Cpus, cpu_list

PINNINGS: Final = ("none", "jobs", "one-to-one", "halves-one-to-one", "halves")


@dataclass(frozen=True)
class Placement:
    """Where IOThreads and jobs may run; job_cpus: one entry for each, or one for all, or none.

    note: in what this differs from the published way, or nothing.
    """

    server_cpus: Cpus
    thread_cpus: tuple[Cpus, ...]
    job_cpus: Cpus
    split: bool
    note: str

    def job_words(self) -> tuple[str, ...]:
        """fio's words for it."""
        if not self.job_cpus:
            return ()
        policy = ("--cpus_allowed_policy=split",) if self.split else ()
        return (f"--cpus_allowed={cpu_list(self.job_cpus)}", *policy)


def place(pinning: str, cpus: Cpus, threads: int) -> Placement:
    """Pin `threads` IOThreads and the jobs in one of the ways of `PINNINGS`."""
    if pinning in ("none", "jobs"):
        note = ""
        if pinning == "jobs":
            note = "a job's thread stands for its vCPU, so this is the same as nothing pinned"
        return Placement((), (), (), False, note)
    if pinning == "one-to-one":
        pins = tuple((cpus[i % len(cpus)],) for i in range(threads))
        return Placement((), pins, cpus, True, "")
    half = max(1, len(cpus) // 2)
    clients, servers = cpus[:half], cpus[half:] or cpus
    note = "" if len(cpus) > 1 else "there is one CPU for both halves"
    if pinning == "halves":
        return Placement(servers, (servers,) * threads, clients, False, note)
    if pinning == "halves-one-to-one":
        pins = tuple((servers[i % len(servers)],) for i in range(threads))
        return Placement(servers, pins, clients, True, note)
    raise ValueError(f"pinning {pinning!r} is not one of {', '.join(PINNINGS)}")


def measured_as(pinning: str) -> str:
    """Ways that come to the same here are measured once, under one name."""
    return "none" if pinning == "jobs" else pinning
