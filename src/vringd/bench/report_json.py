"""Results in the shape of fio's JSON output (format version "normal"), so that its readers work."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from vringd import __version__
from vringd.bench.native import bucket_bounds
from vringd.bench.result import DirectionResult, JobResult, LatencyHistogram, RunResult
from vringd.bench.spec import DIRECTIONS

PERCENTILES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)

_MICROSECONDS = (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)
_MILLISECONDS = (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000)


def report(result: RunResult, global_options: dict[str, str], extra: dict[str, Any]) -> Any:
    """The whole document; `extra` is told under "vringd", which fio does not have."""
    return {
        "fio version": f"vringd-bench-{__version__}",
        "timestamp": int(result.begun),
        "timestamp_ms": int(result.begun * 1000),
        "time": time.ctime(result.begun),
        "global options": global_options,
        "jobs": [_job(job) for job in result.reported],
        "vringd": {
            "capacity": result.capacity,
            "num_queues": result.num_queues,
            "interrupted": result.interrupted,
            **extra,
        },
    }


def _job(job: JobResult) -> dict[str, Any]:
    cpu = max(1e-9, job.runtime * job.jobs)
    completion = LatencyHistogram()
    for direction in job.directions.values():
        completion.add(direction.clat)
    return {
        "jobname": job.spec.name,
        "groupid": job.group,
        "job_start": round(job.begun * 1000),
        "error": 0,  # a run with an error has no report
        "eta": 0,
        "elapsed": round(job.runtime),
        "job options": {"name": job.spec.name, **job.spec.options},
        **{name: _direction(job.directions[name]) for name in DIRECTIONS},
        "job_runtime": round(job.runtime * 1000) * job.jobs,
        "usr_cpu": 100 * job.user / cpu,
        "sys_cpu": 100 * job.system / cpu,
        "ctx": job.switches,
        "iodepth_level": _depths(job.spec.iodepth),
        "latency_ns": _shares(completion, _MICROSECONDS, 1),
        "latency_us": _shares(completion, _MICROSECONDS, 1000),
        "latency_ms": {
            **_shares(completion, _MILLISECONDS, 1_000_000),
            ">=2000": _share_between(completion, 2_000_000_000, 1 << 62),
        },
        "latency_depth": job.spec.iodepth,
        "queues": sorted(job.queues),
    }


def _direction(direction: DirectionResult) -> dict[str, Any]:
    return {
        "io_bytes": direction.bytes,
        "io_kbytes": direction.bytes >> 10,
        "bw_bytes": round(direction.bandwidth),
        "bw": round(direction.bandwidth / 1024),
        "iops": direction.iops,
        "runtime": round(direction.runtime * 1000),
        "total_ios": direction.ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": _latency(direction.slat, percentiles=False),
        "clat_ns": _latency(direction.clat, percentiles=True),
        "lat_ns": _latency(_sum(direction), percentiles=False),
        "bw_mean": direction.bandwidth / 1024,
        "iops_mean": direction.iops,
    }


def _sum(direction: DirectionResult) -> LatencyHistogram:
    """slat + clat as far as sums tell: their least and most are bounds, their mean is exact."""
    slat, clat = direction.slat, direction.clat
    if not clat.count:
        return LatencyHistogram()
    return LatencyHistogram(
        clat.count,
        slat.least + clat.least,
        slat.most + clat.most,
        (slat.mean + clat.mean) * clat.count,
        ((slat.mean + clat.mean) ** 2 + slat.stddev**2 + clat.stddev**2) * clat.count,
    )


def _latency(latency: LatencyHistogram, *, percentiles: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "min": latency.least,
        "max": latency.most,
        "mean": latency.mean,
        "stddev": latency.stddev,
        "N": latency.count,
    }
    if percentiles and latency.count:
        shown["percentile"] = {f"{p:.6f}": latency.percentile(p) for p in PERCENTILES}
    return shown


def _depths(depth: int) -> dict[str, float]:
    """fio samples this; here the depth is what was asked for."""
    level = next((n for n in (1, 2, 4, 8, 16, 32) if depth < 2 * n), 64)
    names = ("1", "2", "4", "8", "16", "32", ">=64")
    return {name: 100.0 if int(name.removeprefix(">=")) == level else 0.0 for name in names}


def _share_between(latency: LatencyHistogram, begin: int, end: int) -> float:
    if not latency.count:
        return 0.0
    inside = sum(n for b, n in latency.buckets.items() if begin <= bucket_bounds(b)[0] < end)
    return 100 * inside / latency.count


def _shares(latency: LatencyHistogram, limits: Iterable[int], unit: int) -> dict[str, float]:
    """Per cent of the latencies below each limit and not below the one before, in `unit` ns."""
    shares = {}
    before = 0 if unit == 1 else unit
    for limit in limits:
        shares[str(limit)] = _share_between(latency, before, limit * unit)
        before = limit * unit
    return shares
