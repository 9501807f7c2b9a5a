"""Results as text, in the shape that fio's users read."""

from __future__ import annotations

import time

from vringd.bench.report_json import PERCENTILES
from vringd.bench.result import DirectionResult, JobResult, LatencyHistogram, RunResult, total
from vringd.bench.spec import DIRECTIONS


def report(result: RunResult) -> str:
    """All jobs, then a line for each direction over the whole run."""
    lines: list[str] = []
    reported = result.reported
    for job in reported:
        lines += _job(job, result)
    lines.append("")
    groups = sorted({job.group for job in reported})
    for group in groups:
        members = [job for job in reported if job.group == group]
        lines.append(f"Run status group {group} (all jobs):")
        lines += _status(members)
    if result.interrupted:
        lines.append("interrupted: the figures are of what was done by then")
    return "\n".join(lines) + "\n"


def _job(job: JobResult, result: RunResult) -> list[str]:
    moment = time.ctime(result.begun + job.runtime)
    queues = ",".join(str(queue) for queue in sorted(job.queues))
    lines = [
        f"{job.spec.name}: (groupid={job.group}, jobs={job.jobs}): err= 0: queues={queues}:"
        f" {moment}"
    ]
    for name in DIRECTIONS:
        if job.directions[name].ios:
            lines += _direction(name, job.directions[name])
    seconds = max(1e-9, job.runtime * job.jobs)
    lines.append(
        f"  cpu          : usr={100 * job.user / seconds:.2f}%,"
        f" sys={100 * job.system / seconds:.2f}%, ctx={job.switches}"
    )
    issued = ",".join(str(job.directions[name].ios) for name in DIRECTIONS)
    lines.append(f"     issued rwts: total={issued},0")
    lines.append(f"     latency   : target depth={job.spec.iodepth}")
    return lines


def _direction(name: str, direction: DirectionResult) -> list[str]:
    lines = [
        f"  {name:>5}: IOPS={short(direction.iops)}, BW={mib(direction.bandwidth)}/s"
        f" ({mb(direction.bandwidth)}/s)"
        f"({mib(direction.bytes)}/{round(direction.runtime * 1000)}msec)"
    ]
    if direction.clat.count:
        lines += [_latency("slat", direction.slat), _latency("clat", direction.clat)]
        lines += _percentiles(direction.clat)
    return lines


def _unit(latency: LatencyHistogram) -> tuple[int, str]:
    if latency.mean >= 10_000_000:
        return 1_000_000, "msec"
    return (1000, "usec") if latency.mean >= 10_000 else (1, "nsec")


def _latency(name: str, latency: LatencyHistogram) -> str:
    unit, word = _unit(latency)
    return (
        f"    {name} ({word}): min={latency.least // unit}, max={latency.most // unit},"
        f" avg={latency.mean / unit:.2f}, stdev={latency.stddev / unit:.2f}"
    )


def _percentiles(latency: LatencyHistogram) -> list[str]:
    unit, word = _unit(latency)
    lines = [f"    clat percentiles ({word}):"]
    for begin in range(0, len(PERCENTILES), 4):
        part = ", ".join(
            f"{p:5.2f}th=[{latency.percentile(p) // unit:5d}]"
            for p in PERCENTILES[begin : begin + 4]
        )
        lines.append(f"     | {part}")
    return lines


def _status(members: list[JobResult]) -> list[str]:
    lines = []
    for name in DIRECTIONS:
        whole = total(members, name)
        if not whole.ios:
            continue
        # Jobs of a group ran at the same time, each for its own time: their rates add up.
        rates = [job.directions[name].bandwidth for job in members if job.directions[name].ios]
        iops = sum(job.directions[name].iops for job in members)
        lines.append(
            f"  {name.upper():>5}: bw={mib(sum(rates))}/s ({mb(sum(rates))}/s),"
            f" {mib(min(rates))}/s-{mib(max(rates))}/s, iops={short(iops)},"
            f" io={mib(whole.bytes)}, run={round(whole.runtime * 1000)}msec"
        )
    return lines


def short(number: float) -> str:
    """1234567 is 1235k: four figures at most, as fio shows IOPS."""
    if number < 10_000:
        return f"{number:.0f}"
    if number < 10_000_000:
        return f"{number / 1000:.0f}k" if number >= 100_000 else f"{number / 1000:.1f}k"
    return f"{number / 1_000_000:.1f}M"


def mib(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f}{unit}" if number >= 100 else f"{number:.1f}{unit}"
        number /= 1024
    raise AssertionError


def mb(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f}{unit}" if number >= 100 else f"{number:.1f}{unit}"
        number /= 1000
    raise AssertionError
