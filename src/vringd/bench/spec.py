"""What a job does: fio's words, resolved. Sizes and offsets are bytes, times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

READ: Final = "read"
WRITE: Final = "write"
TRIM: Final = "trim"
DIRECTIONS: Final = (READ, WRITE, TRIM)

Splits = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of the requests of one direction.

    Always `least`; or multiples of it up to `most`; or the sizes of `splits`, each with the per
    cent of the requests that have it (100 together).
    """

    least: int = 4096
    most: int = 4096
    splits: Splits = ()


@dataclass(frozen=True)
class JobSpec:
    """One job, as fio's manual describes its options; `numjobs` copies of it run."""

    name: str
    directions: frozenset[str] = frozenset({READ})
    random: bool = False
    run_length: int = 1  # rw=randread:N: N requests in a row from each random place
    skip: int = 0  # rw=read:N: N bytes left out after each request
    sizes: dict[str, BlockSizes] = field(
        default_factory=lambda: {direction: BlockSizes() for direction in DIRECTIONS}
    )
    iodepth: int = 1
    batch_submit: int = 1
    batch_complete_min: int = 1
    batch_complete_max: int = 0  # 0: as much as is there
    numjobs: int = 1
    read_percent: int = 50
    runtime: float = 0.0
    ramp_time: float = 0.0
    time_based: bool = False
    size: int = 0  # 0: all behind the offset
    offset: int = 0
    offset_increment: int = 0
    number_ios: int = 0
    rate_iops: int = 0
    verify: bool = False
    do_verify: bool = True
    group_reporting: bool = False
    new_group: bool = False
    stonewall: bool = False
    cpus_allowed: tuple[int, ...] = ()
    cpus_split: bool = False  # cpus_allowed_policy=split
    gtod_reduce: bool = False
    thinktime_us: int = 0
    thinktime_blocks: int = 1
    zipf_theta: float = 0.0
    norandommap: bool = False
    randseed: int = 0
    options: dict[str, str] = field(default_factory=dict)  # as typed, for reports
