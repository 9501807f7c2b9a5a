"""Measuring what a request costs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from vringd.bench.lab.errors import SampleError
from vringd.bench.lab.families import Vringd
from vringd.bench.lab.load import Job
from vringd.bench.lab.rounds import Results, Work
from vringd.bench.lab.samples import Sample, take
from vringd.bench.lab.setup import NULL_DISK, Cpus, Disk, Place, Setup
from vringd.bench.predict.model import Costs

BATCH: Final = 64
_MANY: Final = 4  # jobs on one CPU: it is never idle

SLEEPING: Final = Vringd("vringd:poll-max-ns=0", iothread=("poll-max-ns=0",))
POLLING: Final = Vringd()


def job(depth: int, jobs: int, runtime: float, cpus: Cpus, queue_size: int = 128) -> Job:
    """Whole batches of `depth` requests: one notification for each."""
    return Job(
        (
            *("--name=job", "--rw=randread", "--bs=4k", "--norandommap", "--gtod_reduce=1"),
            *(f"--iodepth={depth}", f"--iodepth_batch_submit={depth}"),
            *(f"--iodepth_batch_complete_min={depth}", f"--numjobs={jobs}", "--time_based"),
            *("--ramp_time=300ms", f"--runtime={round(runtime * 1000)}ms"),
        ),
        queue_size=queue_size,
        cpus=cpus,
    )


def work(place: Place, server_cpu: int, client_cpu: int, runtime: float) -> list[Work]:
    """What has to be measured: a job that sends whole batches to a disk that costs nothing, with
    both sides polling, both sleeping, and only the job sleeping; and as many jobs as keep a CPU
    busy."""

    def one(name: str, jobs: int, family: Vringd, wait: str = "eventfd") -> Work:
        setup = Setup(Disk(NULL_DISK), queues=jobs, server_cpus=(server_cpu,))
        load = replace(job(BATCH, jobs, runtime, (client_cpu,)), wait=wait)
        measured: Callable[[int], Sample] = partial(
            take, name, family=family, setup=setup, job=load, place=place
        )
        return Work(name, family.name, measured)

    return [
        one("costs: both poll", 1, POLLING, "polling"),
        one("costs: both sleep", 1, SLEEPING),
        one("costs: job sleeps", 1, POLLING),
        one("costs: busy job CPU", _MANY, SLEEPING),
    ]


def read(every: Sequence[Work], results: Results) -> Costs:
    """The costs, from what `work` has measured. Raises SampleError if some of it failed."""
    for failure in results.failures():
        raise SampleError(f"{failure.server_name}: {failure.error}")
    spinning, asleep, polled, crowd = (results.done(each.cell, each.server) for each in every)
    server, client = _least(spinning, "cpu_us"), _least(spinning, "client_us")

    def notify(samples: list[Sample], name: str, request: float) -> float:
        return max(0.0, BATCH * (_least(samples, name) - request))

    server_notify = notify(asleep, "cpu_us", server)
    client_notify = notify(asleep, "client_us", client)
    polled_notify = notify(polled, "client_us", client)
    requests = BATCH * (server + client)
    return Costs(
        server=server,
        client=client,
        server_notify=server_notify,
        client_notify=client_notify,
        server_notify_busy=notify(crowd, "cpu_us", server),
        client_notify_busy=notify(crowd, "client_us", client),
        client_notify_polling=polled_notify,
        wake=max(0.0, _batch_us(asleep) - requests - server_notify - client_notify),
        wake_polling=max(0.0, _batch_us(polled) - requests - polled_notify),
    )


def _least(samples: list[Sample], name: str) -> float:
    """The best round: what disturbs a sample adds to its costs."""
    return min(float(getattr(sample, name)) for sample in samples)


def _batch_us(samples: list[Sample]) -> float:
    """Round trip of a batch, in the best round."""
    return BATCH * 1e6 / max(sample.iops for sample in samples)
