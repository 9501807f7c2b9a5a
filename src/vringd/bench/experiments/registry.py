"""The experiments that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vringd.bench.experiments import virtio_blk_mq
from vringd.bench.experiments.cells import Experiment, Plan

EXPERIMENTS: Final[dict[str, Callable[[Plan], Experiment]]] = {
    virtio_blk_mq.NAME: virtio_blk_mq.experiment,
}
