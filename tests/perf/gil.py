"""Does a thread of the data plane ever need the GIL? Throughput while another thread keeps it.

One process has a daemon, which serves a null disk with one IOThread on a CPU of its own, and the
load generator, whose job is on another CPU: 4k random reads, 32 in flight, the job polling (or,
with --wait=eventfd, asleep between batches). In each round the job is measured while

- free    no one keeps the GIL (twice, for what chance alone makes of it: A/A);
- held    a thread sleeps with the GIL, from before the measurement until after it: it uses no
          CPU, and no other Python code in the process can run;
- spun    a thread runs bytecode on a third CPU, where there is one, and gives the GIL away only
          to who asks for it.

A data plane that takes the GIL, however seldom, stands still in "held". That the GIL really is
kept shows a thread that looks for it every 10 ms: how often it got it is in the report.

    make build && .venv/bin/python tests/perf/gil.py --rounds 7
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vringd.bench.options import make_job
from vringd.bench.runner import Progress, run_jobs
from vringd.bench.target import Target
from vringd.control.build import build, from_argument
from vringd.control.daemon import Daemon

RAMP_SECONDS = 1.2  # the runner first reports after half a second, and what keeps the GIL begins
MARGIN_SECONDS = 0.2  # how much longer than the measurement the GIL is kept
LOOK_SECONDS = 0.01

libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the GIL during a call


def keep(seconds: float) -> None:
    libc.usleep(ctypes.c_uint(round(seconds * 1e6)))


def spin(seconds: float, cpu: int) -> None:
    os.sched_setaffinity(threading.get_native_id(), {cpu})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Timed:
    """A thread that does something once it is told for how long, and when it did."""

    def __init__(self, what: Callable[[float], None]) -> None:
        self._what = what
        self._thread: threading.Thread | None = None
        self.begin = self.end = 0.0

    def start_once(self, seconds: float) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(seconds,))
            self._thread.start()

    def _run(self, seconds: float) -> None:
        self.begin = time.monotonic()
        self._what(seconds)
        self.end = time.monotonic()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()


class Looker:
    """A thread that wants the GIL every LOOK_SECONDS, and notes when it got it."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.times.append(time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True)
class Sample:
    """iops: of the job; share: of the measured time, during which the thread was at it; looks: how
    often per second another thread got the GIL meanwhile."""

    iops: float
    share: float
    looks: float


def measure(socket: Path, options: argparse.Namespace, what: Callable[[float], None]) -> Sample:
    seconds: float = options.seconds
    job, _ = make_job(
        "reads",
        {
            **{
                "rw": "randread",
                "bs": "4k",
                "iodepth": "32",
                "cpus_allowed": str(options.client_cpu),
            },
            **{"time_based": "1", "runtime": str(seconds), "ramp_time": str(RAMP_SECONDS)},
            **{"norandommap": "1", "gtod_reduce": "1"},
        },
    )
    timed = Timed(what)
    measured_from = 0.0

    def begin(progress: Progress) -> None:
        nonlocal measured_from
        measured_from = measured_from or time.monotonic() - progress.elapsed + RAMP_SECONDS
        timed.start_once(measured_from + seconds + MARGIN_SECONDS - time.monotonic())

    with Looker() as looker:
        result = run_jobs(Target(socket, wait=options.wait), [job], progress=begin)
        timed.join()
    (reads,) = (each.directions["read"] for each in result.jobs)
    together = min(timed.end, measured_from + seconds) - max(timed.begin, measured_from)
    looks = sum(timed.begin < moment < timed.end for moment in looker.times)
    return Sample(reads.iops, together / seconds, looks / (timed.end - timed.begin))


def measure_all(socket: Path, options: argparse.Namespace) -> dict[str, list[Sample]]:
    kinds: dict[str, Callable[[float], None]] = {"free": time.sleep, "held": keep}
    if options.spin_cpu is not None:
        kinds["spun"] = lambda seconds: spin(seconds, options.spin_cpu)
    kinds["free again"] = time.sleep
    samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
    measure(socket, options, time.sleep)  # warms up
    for number in range(options.rounds):
        for kind in list(kinds) if number % 2 == 0 else reversed(list(kinds)):
            sample = measure(socket, options, kinds[kind])
            samples[kind].append(sample)
            print(f"round {number + 1}: {kind:10} {sample.iops / 1e3:8.1f} kIOPS", file=sys.stderr)
    return samples


async def serve_and_measure(options: argparse.Namespace) -> dict[str, list[Sample]]:
    with tempfile.TemporaryDirectory(prefix="vringd-gil-") as folder:
        socket = Path(folder) / "null.sock"
        daemon = Daemon(
            build(
                [
                    from_argument("object", f"iothread,id=t0,cpu-affinity={options.server_cpu}"),
                    from_argument("blockdev", "null-co,node-name=null,size=1G"),
                    from_argument(
                        "export",
                        "vhost-user-blk,id=e0,node-name=null,iothread=t0,"
                        f"addr.type=unix,addr.path={socket}",
                    ),
                ]
            )
        )
        await daemon.start()
        try:
            return await asyncio.to_thread(measure_all, socket, options)
        finally:
            await daemon.stop()


def spread(values: Sequence[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} [{low:{form}} - {high:{form}}]"


def report(samples: dict[str, list[Sample]]) -> None:
    free = [sample.iops for sample in samples["free"]]
    print(f"{'':10}  {'kIOPS: median [min - max]':28}  {'of free, same round':22}  looks/s  share")
    for kind, taken in samples.items():
        iops = [sample.iops for sample in taken]
        ratios = [one / other for one, other in zip(iops, free, strict=True)]
        print(
            f"{kind:10}  {spread([value / 1e3 for value in iops], '.1f'):28}"
            f"  {spread(ratios, '.3f') if kind != 'free' else '1':22}"
            f"  {statistics.median(sample.looks for sample in taken):7.1f}"
            f"  {min(sample.share for sample in taken):5.1%}"
        )
    ratio = statistics.median(s.iops for s in samples["held"]) / statistics.median(
        [*free, *(s.iops for s in samples["free again"])]
    )
    print(f"held / free, of the medians: {ratio:.3f}")


def parse_arguments() -> argparse.Namespace:
    available = sorted(os.sched_getaffinity(0))
    cpus = [*available, None, None, None]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--wait", choices=("polling", "eventfd"), default="polling")
    parser.add_argument("--server-cpu", type=int, default=cpus[0])
    parser.add_argument("--client-cpu", type=int, default=cpus[1])
    parser.add_argument("--spin-cpu", type=int, default=cpus[2], help="default: a third, if any")
    options = parser.parse_args()
    chosen = [options.server_cpu, options.client_cpu]
    if options.spin_cpu is not None:
        chosen.append(options.spin_cpu)
    if len(set(chosen) & set(available)) < len(chosen):
        parser.error(f"server, client and spinning thread need a CPU each, out of {available}")
    return options


def main() -> int:
    options = parse_arguments()
    report(asyncio.run(serve_and_measure(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
