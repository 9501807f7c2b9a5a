"""The model against what this machine can measure itself."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from vringd.bench.lab.families import Vringd
from vringd.bench.lab.rounds import Progress, Results, Work, run_rounds
from vringd.bench.lab.samples import take
from vringd.bench.lab.setup import NULL_DISK, Cpus, Disk, Place, Setup
from vringd.bench.predict import costs as costs_of
from vringd.bench.predict.costs import POLLING, SLEEPING, job
from vringd.bench.predict.model import Costs, Shape, holds, predict


@dataclass(frozen=True)
class Check:
    """One shape: requests per second as predicted, and as measured in the best round, since the
    costs are those of the best rounds too (0: the measurement failed)."""

    shape: Shape
    predicted: float
    measured: float
    limit: str

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else 0.0


_BACKENDS_US: Final = (0.0, 4.0, 20.0)


def shapes(cpus: int) -> list[Shape]:
    """What can be measured with that many CPUs, half of them for the jobs."""
    half = max(1, cpus // 2)
    found = []
    for backend in _BACKENDS_US:
        for jobs, depth in ((1, 1), (1, 8), (1, 64), (2, 64), (4, 64)):
            for polling in (False, True):
                found.append(
                    Shape(
                        threads=1,
                        queues=jobs,
                        jobs=jobs,
                        cpus=cpus,
                        depth=depth,
                        batch=depth,
                        backend_us=backend,
                        pinning="halves",
                        polling=polling,
                    )
                )
        for threads in range(2, half + 1):
            found.append(
                Shape(
                    threads=threads,
                    queues=threads,
                    jobs=threads,
                    cpus=cpus,
                    backend_us=backend,
                    pinning="halves",
                )
            )
    return found


def measure(
    place: Place, cpus: Cpus, *, rounds: int, runtime: float, progress: Progress
) -> tuple[Costs, list[Check]]:
    """Measure costs and shapes in turn, so that the machine's drift hits both, and compare.

    Raises SampleError if costs could not be measured, KeyboardInterrupt after Ctrl-C.
    """
    half = max(1, len(cpus) // 2)
    clients, servers = cpus[:half], cpus[half:] or cpus
    results = Results()
    costing = costs_of.work(place, servers[0], clients[0], runtime)
    every = shapes(len(cpus))
    work = [_work(shape, place, clients, servers, runtime) for shape in every]
    if not run_rounds([*costing, *work], rounds, progress, results):
        raise KeyboardInterrupt
    costs = costs_of.read(costing, results)
    checks = []
    for shape, each in zip(every, work, strict=True):
        done = results.done(each.cell, each.server)
        if done and holds(costs, shape):
            found = predict(costs, shape)
            measured = max(sample.iops for sample in done)
            checks.append(Check(shape, found.rate, measured, found.limit))
    return costs, checks


def mean_error(checks: Sequence[Check]) -> float:
    """The mean of the errors' sizes; 0 without checks."""
    return statistics.fmean(abs(check.error) for check in checks) if checks else 0.0


def _work(shape: Shape, place: Place, clients: Cpus, servers: Cpus, runtime: float) -> Work:
    family: Vringd = POLLING if shape.polling else SLEEPING
    disk = NULL_DISK
    if shape.backend_us:
        disk += f",cpu-ns={round(shape.backend_us * 1000)}"
    pins = tuple((servers[i % len(servers)],) for i in range(shape.threads))
    name = f"{shape.threads} thr, {shape.jobs} jobs, depth {shape.depth}, {shape.backend_us:g} us"
    measure = partial(
        take,
        name,
        family=family,
        setup=Setup(Disk(disk), shape.queues, shape.threads, servers, pins),
        job=job(shape.depth, shape.jobs, runtime, clients, shape.queue_size),
        place=place,
    )
    return Work(name, family.name, measure)
