"""The device under test, and how jobs use its queues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Wait = Literal["eventfd", "polling"]
Sharing = Literal["blk-mq", "round-robin"]
Kind = Literal["blk", "scsi"]


@dataclass(frozen=True)
class Target:
    """A vhost-user server's socket, or None: the echo device, on echo_cpus.

    num_queues: virtqueues to set up, None: one for each job, as far as the device has them.
    wait: how jobs wait for completions: asleep on the call eventfd, or looking at the ring.
    kind: virtio-blk or virtio-scsi; scsi_unit: target and LUN of the disk of the latter.
    sharing: which queue a job uses when there are fewer queues than jobs; see `queue_of_job`.
    """

    socket: Path | None
    num_queues: int | None = None
    queue_size: int = 256
    packed: bool = False
    event_idx: bool = True
    wait: Wait = "eventfd"
    sharing: Sharing = "blk-mq"
    echo_cpus: tuple[int, ...] = ()
    kind: Kind = "blk"
    scsi_unit: tuple[int, int] = (0, 0)


def queue_of_job(job: int, jobs: int, queues: int, sharing: Sharing) -> int:
    """The queue that a job submits to.

    "blk-mq": as Linux maps processors to hardware queues, if each job ran on a processor of its
    own: neighbours share (jobs 0 and 1 of 4 use queue 0 of 2). "round-robin": queue job % queues.
    """
    if sharing == "round-robin" or queues >= jobs:
        return job % queues
    return job * queues // jobs
