"""The experiments that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vringd.bench.experiments import vhost_scsi_workers, virtio_blk_mq, virtio_scsi_iothreads
from vringd.bench.experiments.cells import Experiment, Plan

EXPERIMENTS: Final[dict[str, Callable[[Plan], Experiment]]] = {
    module.NAME: module.experiment
    for module in (virtio_blk_mq, vhost_scsi_workers, virtio_scsi_iothreads)
}
