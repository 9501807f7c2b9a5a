"""`virtio-scsi-iothreads`: the command queues of one device spread over IOThreads."""

from __future__ import annotations

import re
from typing import Final

from vringd.bench.experiments.building import LOAD_NOTE, Shape, build
from vringd.bench.experiments.cells import Backend, Experiment, Plan
from vringd.bench.experiments.published import Series

NAME: Final = "virtio-scsi-iothreads"

_BACKENDS: Final = (
    Backend(
        "null",
        "driver=null-co,size=1G,read-zeroes=off",
        "a disk that costs nothing: the limit is the load, or vringd's own work",
    ),
    Backend(
        "null, 5 µs",
        "driver=null-co,size=1G,read-zeroes=off,cpu-ns=5000",
        "5 µs of the IOThread's CPU time for each command, as QEMU's way to the SSD took: 189,576"
        " IOPS by one IOThread are 5.3 µs for each",
    ),
)
_QUEUES: Final = 4  # one for each vCPU of the published guest
_QUEUE_SIZE: Final = 256
_LABEL: Final = re.compile(r"(\d+) IOThreads?")

_NOTES: Final = (
    LOAD_NOTE,
    "How many jobs there were was not published: 4, one for each vCPU and command queue.",
    "The published disk is an SSD of about 550,000 IOPS, which was the limit with 4 IOThreads.",
    "Published with nothing said of pinning; here also with the load on one half of the CPUs and"
    " the IOThreads on the other.",
)


def experiment(plan: Plan) -> Experiment:
    """The cells for the CPUs at hand."""
    return build(NAME, plan, _BACKENDS, _NOTES, _shape, queue_size=_QUEUE_SIZE, kind="scsi")


def _shape(series: Series, label: str) -> Shape:
    match = _LABEL.fullmatch(label)
    assert match is not None
    return Shape(int(match[1]), _QUEUES)
