"""From a publication to cells: what experiments have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vringd.bench.experiments.cells import Backend, Cell, Experiment, Plan
from vringd.bench.experiments.placement import measured_as, place
from vringd.bench.experiments.published import Publication, Series, load
from vringd.bench.jobfile import read_global
from vringd.bench.lab.load import Job
from vringd.bench.lab.setup import Disk, Kind, Setup
from vringd.bench.options import IGNORED

_RAMP_SECONDS: Final = 0.5

LOAD_NOTE: Final = (
    "The load comes from vringd's own load generator, not from fio in a guest: job threads stand"
    " for the guest's vCPUs, sleep on the call eventfd as a driver sleeps until an interrupt, and"
    " pay for no VM exits and no guest kernel."
)
SHARING_NOTE: Final = (
    "With fewer queues than jobs neighbours share a queue, as Linux' blk-mq maps vCPUs."
)
LATENCY_NOTE: Final = "Latencies are measured (the published job had gtod_reduce=1)."


@dataclass(frozen=True)
class Shape:
    """What a cell's label says: how many there are, and words for fio in place of the
    publication's. threads: IOThreads, queues: request or command queues."""

    threads: int
    queues: int
    words: tuple[str, ...] = ()


def build(
    name: str,
    plan: Plan,
    backends: tuple[Backend, ...],
    notes: tuple[str, ...],
    shape_of: Callable[[Series, str], Shape],
    *,
    queue_size: int,
    kind: Kind = "blk",
) -> Experiment:
    """All cells of a publication; backends: unless the plan has its own."""
    publication = load(name)
    chosen = tuple(plan.backends) or backends
    cells = tuple(
        _build_cell(
            *(publication, series, label, backend, plan, shape_of(series, label)),
            queue_size=queue_size,
            kind=kind,
        )
        for backend in chosen
        for series in publication.series
        for label in series.cells
    )
    return Experiment(publication, chosen, cells, notes, kind)


def _build_cell(
    publication: Publication,
    series: Series,
    label: str,
    backend: Backend,
    plan: Plan,
    shape: Shape,
    *,
    queue_size: int,
    kind: Kind,
) -> Cell:
    """The cell on the CPUs at hand; its key tells whatever makes it differ from others."""
    placement = place(series.pinning, plan.cpus, shape.threads)
    options = read_global(publication.job)
    words = [f"--{key}={value}" for key, value in options.items() if _wanted(key)]
    job = Job(
        (
            *("--name=job", *words, *shape.words),
            *(f"--numjobs={series.jobs}", *placement.job_words()),
            *(f"--ramp_time={round(_RAMP_SECONDS * 1000)}ms",),
            *(f"--runtime={round(plan.runtime * 1000)}ms",),
        ),
        wait="eventfd",
        queue_size=queue_size,
        options=("--sharing", "blk-mq"),
        cpus=placement.job_cpus,
    )
    setup = Setup(
        *(Disk(backend.options), shape.queues, shape.threads),
        *(placement.server_cpus, placement.thread_cpus, kind),
    )
    return Cell(
        key=f"{series.jobs} jobs/{measured_as(series.pinning)}/{shape.threads} thr"
        f" {shape.queues} mq/{backend.name}",
        series=series.id,
        label=label,
        backend=backend.name,
        jobs=series.jobs,
        threads=shape.threads,
        queues=shape.queues,
        pinning=series.pinning,
        note=placement.note,
        setup=setup,
        job=job,
    )


def _wanted(option: str) -> bool:
    return option not in IGNORED and option != "gtod_reduce"
