"""`vhost-scsi-workers`: command queues attached to one worker, or to a worker each."""

from __future__ import annotations

import re
from typing import Final

from vringd.bench.experiments.building import LOAD_NOTE, SHARING_NOTE, Shape, build
from vringd.bench.experiments.cells import Backend, Experiment, Plan
from vringd.bench.experiments.published import Series

NAME: Final = "vhost-scsi-workers"

_BACKENDS: Final = (
    Backend(
        "null",
        "driver=null-co,size=1G,read-zeroes=off",
        "a disk that costs nothing: the limit is the load, or vringd's own SCSI target",
    ),
    Backend(
        "null, 2 µs",
        "driver=null-co,size=1G,read-zeroes=off,cpu-ns=2000",
        "2 µs of the worker's CPU time for each command, as the kernel's target and its null disk"
        " took: 490,000 IOPS by one worker are 2.0 µs for each",
    ),
)
_QUEUE_SIZE: Final = 1024
_IN_ALL: Final = 1024  # commands in flight
_MOST_DEPTH: Final = 128
_LABEL: Final = re.compile(r"(\d+) VQ")

_NOTES: Final = (
    LOAD_NOTE,
    SHARING_NOTE,
    "A worker is an IOThread here. Past 8 jobs the depth is lowered so that 1024 commands are in"
    " flight in all.",
    "Published for 1 VQ with a worker per VQ: the same as with one worker, which is measured once.",
    "The published ceiling, a handler that answers at once without SCSI and block layer, was 1.6 to"
    " 1.8 million IOPS with 16 jobs; this machine's is in the line `load` above.",
)


def experiment(plan: Plan) -> Experiment:
    """The cells for the CPUs at hand."""
    return build(NAME, plan, _BACKENDS, _NOTES, _shape, queue_size=_QUEUE_SIZE, kind="scsi")


def _shape(series: Series, label: str) -> Shape:
    match = _LABEL.fullmatch(label)
    assert match is not None
    queues = int(match[1])
    depth = min(_MOST_DEPTH, _IN_ALL // series.jobs)
    return Shape(queues if series.workers == "per-vq" else 1, queues, (f"--iodepth={depth}",))
