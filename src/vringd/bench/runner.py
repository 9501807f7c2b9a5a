"""Runs jobs against a device, watches over the server, and collects what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vringd.bench.blk_device import BlkDevice
from vringd.bench.device import VhostDevice
from vringd.bench.echo_device import EchoDevice
from vringd.bench.errors import ServerError, VerifyError
from vringd.bench.native import BenchQueue, NativeJob
from vringd.bench.planning import cpus_of, groups, memory_of, plan, stages
from vringd.bench.result import JobResult, RunResult, job_result
from vringd.bench.scsi_device import ScsiDevice, describe_status
from vringd.bench.spec import JobSpec
from vringd.bench.target import Target, queue_of_job

LOOK_SECONDS = 0.05

_RING_FAULTS = {
    1: "used.idx jumped by {value} entries",
    2: "entry {id} was used while nothing was in flight",
    3: "entry {id} has the flags {value:#x}",
    4: "the used id {id} is outside the ring",
    5: "the used id {id} is not in flight",
    6: "the used id {id} was not made available yet",
    7: "a used length of {value} is more than the buffer has",
    8: "requests were used out of order",
}


@dataclass(frozen=True)
class Progress:
    """How far a run is: seconds, requests per second of late, and the jobs at work."""

    elapsed: float
    remaining: float | None
    iops: float
    running: int
    verifying: bool


class _Running:
    """A native job and when it last got on."""

    def __init__(
        self, spec: JobSpec, group: int, queue: int, native: NativeJob, planned: int
    ) -> None:
        self.spec, self.group, self.queue, self.native = spec, group, queue, native
        self.planned = planned
        self.completed = 0
        self.moved = time.monotonic()

    def look(self, now: float) -> None:
        _, completed, _ = self.native.progress()
        if completed != self.completed:
            self.completed, self.moved = completed, now

    def in_flight(self) -> int:
        submitted, completed, _ = self.native.progress()
        return submitted - completed


def run_jobs(
    target: Target,
    jobs: Sequence[JobSpec],
    *,
    progress: Callable[[Progress], None] | None = None,
    watchdog: float = 10.0,
) -> RunResult:
    """Run all jobs, stage by stage, on one connection.

    watchdog: seconds without a completion, while requests are in flight, after which the server
    counts as stalled. KeyboardInterrupt ends the jobs early; the result says so.

    Raises JobOptionError where jobs and device disagree, ServerError for a server that refuses,
    dies, stalls or lies, VerifyError for wrong data; no thread is left behind.
    """
    parts = stages(jobs)
    clones = max((sum(job.numjobs for job in stage) for stage in parts), default=0)
    memory = max((memory_of(stage) for stage in parts), default=0)
    numbers = dict(zip(map(id, jobs), groups(jobs), strict=True))
    begun = time.time()
    results: list[JobResult] = []
    with _device_class(target)(target, queues=clones, memory=memory) as device:
        interrupted = False
        for stage in parts:
            done, interrupted = _run_stage(
                stage, numbers, target, device, progress, watchdog, len(results)
            )
            results += done
            if interrupted:
                break
        return RunResult(results, device.capacity, device.num_queues, begun, interrupted)


def _device_class(target: Target) -> type[VhostDevice] | type[EchoDevice]:
    if target.socket is None:
        return EchoDevice
    return ScsiDevice if target.kind == "scsi" else BlkDevice


def _run_stage(
    stage: Sequence[JobSpec],
    numbers: dict[int, int],
    target: Target,
    device: VhostDevice | EchoDevice,
    progress: Callable[[Progress], None] | None,
    watchdog: float,
    first: int,
) -> tuple[list[JobResult], bool]:
    clones = [(job, clone) for job in stage for clone in range(job.numjobs)]
    queues = [
        queue_of_job(i, len(clones), device.num_queues, target.sharing) for i in range(len(clones))
    ]
    shared = {queue: BenchQueue(device.queues[queue], queues.count(queue)) for queue in set(queues)}
    assert device.ram is not None
    running: list[_Running] = []
    interrupted = False
    try:
        for i, ((job, clone), queue) in enumerate(zip(clones, queues, strict=True)):
            details = plan(job, clone, first + i, target, device, queues.count(queue))
            native = NativeJob(shared[queue], device.ram, details, cpus_of(job, clone))
            expected = details["limit"] // max(1, job.sizes["read"].least)
            running.append(_Running(job, numbers[id(job)], queue, native, expected))
        begun = time.time()
        for each in running:
            each.native.start()
        try:
            _watch(running, shared, device, progress, watchdog)
        except KeyboardInterrupt:
            interrupted = True
            for each in running:
                each.native.drain()
            _watch(running, shared, device, None, watchdog)
    finally:
        for each in running:
            each.native.abandon()
        for each in running:
            each.native.join()
    return [
        job_result(each.spec, each.group, each.queue, begun, each.native.results())
        for each in running
    ], interrupted


def _watch(
    running: Sequence[_Running],
    queues: dict[int, BenchQueue],
    device: VhostDevice | EchoDevice,
    progress: Callable[[Progress], None] | None,
    watchdog: float,
) -> None:
    """Wait until all jobs are done. Raises as `run_jobs`."""
    begin = then = time.monotonic()
    before = 0
    for each in running:
        each.moved = begin
    while True:
        now = time.monotonic()
        for each in running:
            _raise_failure(each, queues[each.queue], device)
            each.look(now)
        if all(each.native.done for each in running):
            return
        if device.is_gone():
            raise ServerError("the server closed the connection in the middle of the run")
        for each in running:
            if now - each.moved > watchdog and each.in_flight() and not each.native.done:
                raise ServerError(
                    f"job {each.spec.name}: the server stalls: none of {each.in_flight()} requests"
                    f" in flight was completed for {watchdog:g} s"
                )
        if progress is not None and now - then >= 0.5:
            completed = sum(each.completed for each in running)
            progress(_progress(running, now - begin, (completed - before) / (now - then)))
            then, before = now, completed
        time.sleep(LOOK_SECONDS)


def _progress(running: Sequence[_Running], elapsed: float, iops: float) -> Progress:
    remaining = 0.0
    known = True
    for each in running:
        if each.native.done:
            continue
        whole = each.spec.runtime + each.spec.ramp_time if each.spec.runtime else None
        if each.planned and each.completed:
            by_work = elapsed * each.planned / each.completed
            whole = by_work if whole is None else min(whole, by_work)
        if whole is None:
            known = False
        else:
            remaining = max(remaining, whole - elapsed)
    active = sum(not each.native.done for each in running)
    verifying = any(
        each.spec.verify and each.planned and each.completed > each.planned for each in running
    )
    return Progress(elapsed, remaining if known else None, iops, active, verifying)


def _raise_failure(each: _Running, queue: BenchQueue, device: VhostDevice | EchoDevice) -> None:
    failure = each.native.failure
    if failure is None:
        return
    kind, offset, expected, found = failure
    where = f"job {each.spec.name}: "
    if kind == "ring":
        code, id_, value = queue.error or (0, 0, 0)
        text = _RING_FAULTS.get(code, "a rule of the ring was broken")
        raise ServerError(f"{where}queue {each.queue}: {text.format(id=id_, value=value)}")
    if kind == "status":
        direction = ("read", "write", "trim")[expected]
        names = {1: "IOERR", 2: "UNSUPP", 255: "none at all"}
        words = f"the status {names.get(found, found)}"
        if device.lun is not None:
            words = describe_status(found)
        raise ServerError(f"{where}the {direction} at offset {offset} ended with {words}")
    at = f"{where}verify: the block at offset {offset}"
    if kind == "magic":
        raise VerifyError(f"{at} was never written by a job: it begins with {found:#010x}")
    if kind == "offset":
        raise VerifyError(f"{at} holds the block that was written to offset {found}")
    raise VerifyError(
        f"{at} is damaged: its data have the CRC-32C {expected:#010x}, expected {found:#010x}"
    )
