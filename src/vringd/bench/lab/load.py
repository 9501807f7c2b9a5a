"""The load: `vringd bench` as a process of its own, and what it reports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vringd.bench.errors import JobOptionError
from vringd.bench.jobfile import read_words
from vringd.bench.lab import process
from vringd.bench.lab.cpu_time import Sampler, Usage
from vringd.bench.lab.errors import SampleError, UsageError, log_tail
from vringd.bench.lab.servers import Server
from vringd.bench.lab.setup import Cpus, Kind, Place
from vringd.bench.options import make_job
from vringd.bench.spec import DIRECTIONS, JobSpec

_PATIENCE_SECONDS: Final = 20.0
_EDGE_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Job:
    """What a client does: fio's words, and how it drives the device (`vringd bench`'s options).

    cpus: where the client may run; jobs may be pinned further by `cpus_allowed`.
    """

    words: tuple[str, ...]
    wait: str = "eventfd"
    queue_size: int = 256
    options: tuple[str, ...] = ()
    cpus: Cpus = ()

    def specs(self) -> list[JobSpec]:
        """The jobs. Raises UsageError if they cannot run for a known time."""
        try:
            specs = [make_job(name, options)[0] for name, options in read_words(self.words)]
        except JobOptionError as error:
            raise UsageError(str(error)) from None
        if not specs:
            raise UsageError("no job: give options such as --rw=randread")
        for spec in specs:
            if not spec.runtime or not spec.time_based:
                raise UsageError(
                    f"job {spec.name}: give it --time_based and --runtime: all servers are"
                    " measured for the same time"
                )
            if spec.stonewall:
                raise UsageError(f"job {spec.name}: stonewall: jobs run at the same time here")
        return specs


@dataclass(frozen=True)
class Load:
    """What a client measured. Rates are per second, latencies nanoseconds (0: not measured);
    usage covers the same stretch of time."""

    iops: float
    requests: int
    read_bytes: float
    write_bytes: float
    p50_ns: float
    p99_ns: float
    context_switches: int
    usage: Usage


def bench_argv(job: Job, socket: Path, queues: int, kind: Kind = "blk") -> list[str]:
    """The client's command line; its JSON goes to standard output."""
    return [
        *(sys.executable, "-m", "vringd", "bench", "--socket", str(socket)),
        *("--device", kind, "--queues", str(queues)),
        *("--queue-size", str(job.queue_size), "--wait", job.wait),
        *(*job.options, "--eta=never", "--output-format=json", *job.words),
    ]


def run_load(job: Job, server: Server, place: Place, cpus: Cpus) -> Load:
    """Run a client to its end; cpus: those whose use by others is looked at.

    Raises SampleError if the client or the server fails.
    """
    specs = job.specs()
    ramp = max(spec.ramp_time for spec in specs)
    document, sampler = run_client(
        bench_argv(job, place.socket, server.setup.queues, server.setup.kind),
        server,
        place,
        job.cpus,
        cpus,
        ramp + max(spec.runtime for spec in specs) + _PATIENCE_SECONDS,
    )
    return read_load(document, sampler, ramp)


def run_client(
    argv: list[str], server: Server, place: Place, pinned: Cpus, cpus: Cpus, limit: float
) -> tuple[str, Sampler]:
    """Run a client that prints a report; returns that, and who used the CPUs meanwhile."""
    log, output = place.folder / "client.log", place.folder / "client.json"
    output.unlink(missing_ok=True)
    client = process.start(argv, pinned, log, nice=place.nice, stdout=output)
    sampler = Sampler(server.pid, client.pid, cpus)
    try:
        wait_for(client, server, log, limit)
    finally:
        process.stop(client)
        sampler.stop()
    return output.read_text(errors="replace"), sampler


def read_load(text: str, sampler: Sampler, ramp: float) -> Load:
    """From a report in the shape of fio's JSON. Raises SampleError for anything else."""
    try:
        jobs: list[dict[str, Any]] = json.loads(text[text.index("{") :])["jobs"]
    except (ValueError, KeyError):
        raise SampleError(f"the client printed no report: {text[-500:]!r}") from None
    requests = sum(_sum(jobs, name, "total_ios") for name in DIRECTIONS)
    if not requests or any(job["error"] for job in jobs):
        raise SampleError("the client ended without a request done")
    runtime = min(
        max(job[name].get("runtime", 0) for name in DIRECTIONS if name in job) for job in jobs
    )
    start = max(job["job_start"] for job in jobs) / 1000 + ramp
    end = min(job["job_start"] for job in jobs) / 1000 + ramp + runtime / 1000
    try:
        usage = sampler.between(start + _EDGE_SECONDS, end - _EDGE_SECONDS)
    except ValueError as error:
        raise SampleError(str(error)) from error
    return Load(
        iops=sum(_sum(jobs, name, "iops") for name in DIRECTIONS),
        requests=round(requests),
        read_bytes=_sum(jobs, "read", "bw_bytes"),
        write_bytes=_sum(jobs, "write", "bw_bytes"),
        p50_ns=_percentile(jobs, "50.000000"),
        p99_ns=_percentile(jobs, "99.000000"),
        context_switches=sum(int(job["ctx"]) for job in jobs),
        usage=usage,
    )


def _sum(jobs: list[dict[str, Any]], direction: str, name: str) -> float:
    return sum(float(job[direction][name]) for job in jobs if direction in job)


def _percentile(jobs: list[dict[str, Any]], percent: str) -> float:
    """The mean over jobs and directions, weighted by their requests."""
    total = weight = 0.0
    for job in jobs:
        for direction in (job[name] for name in DIRECTIONS if name in job):
            found = direction.get("clat_ns", {}).get("percentile", {}).get(percent)
            if found:
                total += found * direction["total_ios"]
                weight += direction["total_ios"]
    return total / weight if weight else 0.0


def wait_for(client: subprocess.Popen[bytes], server: Server, log: Path, limit: float) -> None:
    """Until the client has ended well. Raises SampleError otherwise, or after limit seconds."""
    deadline = time.monotonic() + limit
    while client.poll() is None:
        server.check()
        if time.monotonic() > deadline:
            raise SampleError(
                f"the client did not end within {limit:g} s (a lost request or notification?);\n"
                f"    {server.family.name}'s last words:\n{server.last_words()}"
            )
        time.sleep(0.02)
    server.check()
    if client.returncode:
        words = process.describe_exit(client.returncode)
        raise SampleError(
            f"the client failed ({words}):\n{log_tail(log)}\n"
            f"    {server.family.name}'s last words:\n{server.last_words()}"
        )
