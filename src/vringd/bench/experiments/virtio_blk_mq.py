"""`virtio-blk-mq`: a queue, a thread and a back-end of its own for each virtqueue."""

from __future__ import annotations

import re
from typing import Final

from vringd.bench.experiments.building import (
    LATENCY_NOTE,
    LOAD_NOTE,
    SHARING_NOTE,
    Shape,
    build,
)
from vringd.bench.experiments.cells import Backend, Experiment, Plan
from vringd.bench.experiments.published import Series

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
_LABEL: Final = re.compile(r"(\d+) thr (\d+) mq")

_NOTES: Final = (
    LOAD_NOTE,
    f"{SHARING_NOTE} A ring has {_QUEUE_SIZE} entries and requests use indirect descriptors where a"
    " job could not have all its requests in the ring otherwise.",
    LATENCY_NOTE,
    "MB are 2^20 bytes, as fio printed them in 2016.",
)


def experiment(plan: Plan) -> Experiment:
    """The cells for the CPUs at hand."""
    return build(NAME, plan, _BACKENDS, _NOTES, _shape, queue_size=_QUEUE_SIZE)


def _shape(series: Series, label: str) -> Shape:
    match = _LABEL.fullmatch(label)
    assert match is not None
    return Shape(int(match[1]), int(match[2]))
