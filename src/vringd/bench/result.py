"""What a run has measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vringd.bench.native import bucket_bounds
from vringd.bench.spec import DIRECTIONS, JobSpec


@dataclass
class LatencyHistogram:
    """Latencies in nanoseconds; buckets are exact to 1.6 % (see `bucket_bounds`)."""

    count: int = 0
    least: int = 0
    most: int = 0
    total: float = 0.0
    squares: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def stddev(self) -> float:
        if self.count < 2:
            return 0.0
        variance = (self.squares - self.total * self.mean) / (self.count - 1)
        return math.sqrt(max(0.0, variance))

    def percentile(self, percent: float) -> int:
        """The latency that `percent` of the requests did not exceed; 0 without requests."""
        rank = max(1, math.ceil(percent / 100 * self.count))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                begin, end = bucket_bounds(bucket)
                return min(max((begin + end - 1) // 2, self.least), self.most)
        return 0

    def add(self, other: LatencyHistogram) -> None:
        """Take the latencies of another histogram in."""
        if not other.count:
            return
        self.least = min(self.least, other.least) if self.count else other.least
        self.most = max(self.most, other.most)
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        for bucket, number in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + number


@dataclass
class DirectionResult:
    """Reads, writes or trims. slat: submission of the request's batch; clat: from its end to the
    moment when the request was taken back."""

    ios: int = 0
    bytes: int = 0
    runtime: float = 0.0  # seconds
    slat: LatencyHistogram = field(default_factory=LatencyHistogram)
    clat: LatencyHistogram = field(default_factory=LatencyHistogram)

    @property
    def iops(self) -> float:
        return self.ios / self.runtime if self.runtime else 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / self.runtime if self.runtime else 0.0

    def add(self, other: DirectionResult) -> None:
        self.ios += other.ios
        self.bytes += other.bytes
        self.runtime = max(self.runtime, other.runtime)
        self.slat.add(other.slat)
        self.clat.add(other.clat)


@dataclass
class JobResult:
    """One job, or all jobs of a group. cpu figures are of the client: seconds."""

    spec: JobSpec
    group: int
    jobs: int = 1
    queues: frozenset[int] = frozenset()
    directions: dict[str, DirectionResult] = field(
        default_factory=lambda: {name: DirectionResult() for name in DIRECTIONS}
    )
    begun: float = 0.0  # when its thread was started, seconds since the epoch
    runtime: float = 0.0
    user: float = 0.0
    system: float = 0.0
    switches: int = 0

    @property
    def ios(self) -> int:
        return sum(direction.ios for direction in self.directions.values())

    def add(self, other: JobResult) -> None:
        """Take another job of the same group in."""
        self.jobs += other.jobs
        self.queues |= other.queues
        for name, direction in self.directions.items():
            direction.add(other.directions[name])
        self.begun = min(self.begun, other.begun) if self.begun else other.begun
        self.runtime = max(self.runtime, other.runtime)
        self.user += other.user
        self.system += other.system
        self.switches += other.switches


@dataclass
class RunResult:
    """All jobs of a run, in order; `reported` has groups merged where asked for."""

    jobs: list[JobResult]
    capacity: int
    num_queues: int
    begun: float  # seconds since the epoch
    interrupted: bool = False

    @property
    def reported(self) -> list[JobResult]:
        """One entry for each job, or for each group with group_reporting."""
        found: list[JobResult] = []
        for job in self.jobs:
            last = found[-1] if found else None
            if last is not None and last.group == job.group and job.spec.group_reporting:
                last.add(job)
            else:
                found.append(_copy(job))
        return found

    @property
    def iops(self) -> float:
        """All requests per second, over all jobs that ran at the same time."""
        return sum(d.iops for job in self.jobs for d in job.directions.values())


def _copy(job: JobResult) -> JobResult:
    fresh = JobResult(job.spec, job.group, jobs=0)
    fresh.add(job)
    return fresh


def job_result(
    spec: JobSpec, group: int, queue: int, begun: float, native: dict[str, Any]
) -> JobResult:
    """From what a native job tells."""
    runtime = max(0, native["end_ns"] - native["begin_ns"]) / 1e9
    result = JobResult(
        spec,
        group,
        queues=frozenset({queue}),
        begun=begun,
        runtime=runtime,
        user=native["user_us"] / 1e6,
        system=native["system_us"] / 1e6,
        switches=native["switches"],
    )
    for name in DIRECTIONS:
        tally = native[name]
        result.directions[name] = DirectionResult(
            tally["ios"],
            tally["bytes"],
            runtime if tally["ios"] else 0.0,
            LatencyHistogram(**tally["submission"]),
            LatencyHistogram(**tally["completion"]),
        )
    return result


def total(results: Iterable[JobResult], direction: str) -> DirectionResult:
    """The sum over jobs of one direction."""
    whole = DirectionResult()
    for result in results:
        whole.add(result.directions[direction])
    return whole
