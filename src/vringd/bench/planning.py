"""From a job's specification and a device to what a native job needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vringd.bench.device import VhostDevice
from vringd.bench.echo_device import EchoDevice
from vringd.bench.errors import JobOptionError
from vringd.bench.spec import DIRECTIONS, READ, TRIM, WRITE, JobSpec
from vringd.bench.target import Target

HEADER_BYTES = 256  # at most: virtio-scsi's
DEFAULT_SEED = 0x89ABCDEF


def stages(jobs: Sequence[JobSpec]) -> list[list[JobSpec]]:
    """Jobs that run at the same time; a stonewall begins the next stage."""
    found: list[list[JobSpec]] = []
    for job in jobs:
        if not found or job.stonewall:
            found.append([])
        found[-1].append(job)
    return [stage for stage in found if stage]


def groups(jobs: Sequence[JobSpec]) -> list[int]:
    """The reporting group of each job: a new one with stonewall or new_group, and for each job
    without group_reporting."""
    numbers: list[int] = []
    number = -1
    for job in jobs:
        if number < 0 or job.stonewall or job.new_group or not job.group_reporting:
            number += 1
        numbers.append(number)
    return numbers


def memory_of(stage: Sequence[JobSpec]) -> int:
    """Bytes of guest memory that the stage's buffers take."""
    whole = 0
    for job in stage:
        largest = max(job.sizes[direction].most for direction in DIRECTIONS)
        slot = (largest + 4095) // 4096 * 4096 + HEADER_BYTES
        whole += job.numjobs * (job.iodepth * slot + 3 * 4096)
    return whole


def cpus_of(job: JobSpec, clone: int) -> tuple[int, ...]:
    """The CPUs that one of the job's copies may use; none: any."""
    if job.cpus_split and job.cpus_allowed:
        return (job.cpus_allowed[clone % len(job.cpus_allowed)],)
    return job.cpus_allowed


def plan(
    job: JobSpec,
    clone: int,
    number: int,
    target: Target,
    device: VhostDevice | EchoDevice,
    sharers: int,
) -> dict[str, Any]:
    """The fields of `NativeJob`'s plan for copy `clone`, job `number` of the run.

    Raises JobOptionError where job and device disagree.
    """
    start = job.offset + clone * job.offset_increment
    length = min(job.size or device.capacity, device.capacity - start)
    used = [direction for direction in DIRECTIONS if direction in job.directions]
    _check(job, used, start, length, target, device)
    sizes = [job.sizes[direction] for direction in DIRECTIONS]
    used_sizes = [job.sizes[direction] for direction in used]
    fixed = all(size.least == size.most == used_sizes[0].least for size in used_sizes)
    unit = job.sizes[WRITE if WRITE in job.directions else READ].least
    return {
        "sizes": [(size.least, size.most, size.splits) for size in sizes],
        "depth": job.iodepth,
        "batch_submit": job.batch_submit,
        "complete_min": max(1, job.batch_complete_min),
        "complete_max": max(job.batch_complete_max or job.iodepth, job.batch_complete_min),
        "polling": target.wait == "polling",
        "random": job.random,
        "map_blocks": fixed and not job.norandommap and not job.zipf_theta,
        "reads": READ in job.directions,
        "writes": WRITE in job.directions,
        "trims": TRIM in job.directions,
        "reduce_clock": job.gtod_reduce,
        "indirect": device.indirect and 3 * job.iodepth * sharers > target.queue_size,
        "verify": job.verify,
        "verify_reads": job.verify and WRITE not in job.directions,
        "verify_after": job.verify and job.do_verify and WRITE in job.directions,
        "unit": unit,
        "read_percent": job.read_percent,
        "run_length": job.run_length,
        "skip": job.skip,
        "start": start,
        "length": length // unit * unit,
        "limit": 0 if job.time_based else length // unit * unit,
        "count_limit": job.number_ios,
        "runtime_ns": round(job.runtime * 1e9),
        "ramp_ns": round(job.ramp_time * 1e9),
        "interval_ns": 1_000_000_000 // job.rate_iops if job.rate_iops else 0,
        "think_ns": job.thinktime_us * 1000,
        "think_blocks": job.thinktime_blocks,
        "seed": (job.randseed or DEFAULT_SEED) + number,
        "zipf_theta": job.zipf_theta,
        "lun": device.lun,
        "block_shift": device.block_size.bit_length() - 1,
    }


def _check(
    job: JobSpec,
    used: Sequence[str],
    start: int,
    length: int,
    target: Target,
    device: VhostDevice | EchoDevice,
) -> None:
    def refuse(text: str) -> None:
        raise JobOptionError(f"job {job.name}: {text}")

    largest = max(job.sizes[direction].most for direction in used)
    if length < largest:
        refuse(
            f"offset={start}, size={job.size}: no room for a block of {largest} bytes on a disk"
            f" of {device.capacity}"
        )
    for direction in used:
        sizes = job.sizes[direction]
        for size in {sizes.least, sizes.most, *(size for size, _ in sizes.splits)}:
            if size % device.block_size:
                refuse(f"block size {size}: the disk has blocks of {device.block_size} bytes")
            if job.verify and size % sizes.least:
                refuse(f"verify: {size} is not a multiple of the smallest size, {sizes.least}")
    for place in (job.offset, job.offset_increment, job.size, job.skip):
        if place % device.block_size:
            refuse(f"{place} is no multiple of the disk's block size, {device.block_size}")
    if device.read_only and (WRITE in used or TRIM in used):
        refuse("the disk is read-only; use rw=read or rw=randread")
    if TRIM in used and not device.has_discard:
        refuse("the device has no discard; serve the disk with discard=unmap, or do not trim")
    if job.iodepth > target.queue_size or (
        not device.indirect and 3 * job.iodepth > target.queue_size
    ):
        refuse(f"iodepth={job.iodepth} does not fit --queue-size {target.queue_size}; raise that")
