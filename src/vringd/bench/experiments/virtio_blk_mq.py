"""`virtio-blk-mq`: a queue, a thread and a back-end of its own for each virtqueue."""

from __future__ import annotations

import re
from typing import Final

from vringd.bench.experiments.cells import Backend, Cell, Experiment, Plan
from vringd.bench.experiments.placement import measured_as, place
from vringd.bench.experiments.published import Publication, Series, load
from vringd.bench.jobfile import read_global
from vringd.bench.lab.load import Job
from vringd.bench.lab.setup import Disk, Setup
from vringd.bench.options import IGNORED

NAME: Final = "virtio-blk-mq"

_BACKENDS: Final = (
    Backend(
        "null",
        "driver=null-co,size=1G,read-zeroes=off",
        "a disk that costs nothing: the limit is the load, or vringd's own work",
    ),
    Backend(
        "null, 4 µs",
        "driver=null-co,size=1G,read-zeroes=off,cpu-ns=4000",
        "4 µs of the IOThread's CPU time for each request, as the way through the host's kernel to"
        " its null disk took: 2446 MB/s of 10.7 kB requests by one thread are 4.2 µs for each",
    ),
)
_QUEUE_SIZE: Final = 128  # what QEMU's virtio-blk had in 2016
_RAMP_SECONDS: Final = 0.5
_LABEL: Final = re.compile(r"(\d+) thr (\d+) mq")

_NOTES: Final = (
    "The load comes from vringd's own load generator, not from fio in a guest: job threads stand"
    " for the guest's vCPUs, sleep on the call eventfd as a driver sleeps until an interrupt, and"
    " pay for no VM exits and no guest kernel.",
    "With fewer queues than jobs neighbours share a queue, as Linux' blk-mq maps vCPUs. A ring has"
    f" {_QUEUE_SIZE} entries and requests use indirect descriptors where a job could not have all"
    " its requests in the ring otherwise.",
    "Latencies are measured (the published job had gtod_reduce=1).",
    "MB are 2^20 bytes, as fio printed them in 2016.",
)


def experiment(plan: Plan) -> Experiment:
    """The cells for the CPUs at hand."""
    publication = load(NAME)
    backends = tuple(plan.backends) or _BACKENDS
    cells = [
        _cell(publication, series, label, backend, plan)
        for backend in backends
        for series in publication.series
        for label in series.cells
    ]
    return Experiment(publication, backends, tuple(cells), _NOTES)


def _cell(
    publication: Publication, series: Series, label: str, backend: Backend, plan: Plan
) -> Cell:
    match = _LABEL.fullmatch(label)
    assert match is not None
    threads, queues = int(match[1]), int(match[2])
    placement = place(series.pinning, plan.cpus, threads)
    options = read_global(publication.job)
    words = [f"--{key}={value}" for key, value in options.items() if _wanted(key)]
    job = Job(
        (
            *("--name=job", *words, f"--numjobs={series.jobs}", *placement.job_words()),
            *(f"--ramp_time={round(_RAMP_SECONDS * 1000)}ms",),
            *(f"--runtime={round(plan.runtime * 1000)}ms",),
        ),
        wait="eventfd",
        queue_size=_QUEUE_SIZE,
        options=("--sharing", "blk-mq"),
        cpus=placement.job_cpus,
    )
    setup = Setup(
        Disk(backend.options), queues, threads, placement.server_cpus, placement.thread_cpus
    )
    return Cell(
        key=f"{series.jobs} jobs/{measured_as(series.pinning)}/{label}/{backend.name}",
        series=series.id,
        label=label,
        backend=backend.name,
        jobs=series.jobs,
        threads=threads,
        queues=queues,
        pinning=series.pinning,
        note=placement.note,
        setup=setup,
        job=job,
    )


def _wanted(option: str) -> bool:
    return option not in IGNORED and option != "gtod_reduce"
