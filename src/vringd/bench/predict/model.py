"""The model: a closed queueing network for each IOThread, and a limit by CPU time.

Jobs send batches of `batch` requests: one notification each way for a batch. A batch is a
customer that goes round between its job and the IOThread of its queue.

    S = server + backend + server notification / batch     CPU time of the IOThread for a request
    L = client + client notification / batch               CPU time of the job for a request

A notification costs less the busier its receiver is, since who is awake is not woken: between
what it costs who sleeps each time and who never does, by how busy the others keep it, which is
its utilisation with one batch less in the network (arrival theorem; solved by iteration).

For the IOThread t with J jobs, the rate X_t comes from mean value analysis (Reiser and Lavenberg,
1980) with the population of all batches in flight and three stations: the IOThread, a queue with
the demand batch * S; the jobs, J servers with batch * L each, taken as one queue with
batch * L / J and a delay of batch * L * (J - 1) / J (Seidmann, 1987); and the wake-ups, a delay.
A virtqueue holds size // batch batches at most, which bounds the population.

CPU time bounds the sum of all: for each set of CPUs, what a second of requests costs there, with
notifications as for who never sleeps, cannot be more than what they have. The rate is

    X = min(sum of X_t, for each set of CPUs: their number / demand of one request there)

A polling IOThread is always awake. If it has served a batch before the job is asleep, about
FALL_ASLEEP_US later, the job never sleeps, and the model does not hold: rates are higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from vringd.bench.target import queue_of_job

_ITERATIONS: Final = 40


FALL_ASLEEP_US: Final = 2.0


@dataclass(frozen=True)
class Costs:
    """What was measured, microseconds.

    server, client: CPU time for each request of a large batch. *_notify: CPU time for each
    notification, waking up included, when both sides sleep in between; *_notify_busy: when the
    side is never idle. client_notify_polling: of the job, with an IOThread that polls. wake: the
    rest of a batch's round trip, while nothing runs; wake_polling: with an IOThread that polls.
    """

    server: float
    client: float
    server_notify: float
    client_notify: float
    server_notify_busy: float
    client_notify_busy: float
    client_notify_polling: float
    wake: float
    wake_polling: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Shape:
    """What to compute the rate of. batch: requests of one notification; depth: requests in
    flight of each job; queue_size: entries of each virtqueue; backend_us: CPU time of the
    back-end for each request. pinning: "none", "halves" (jobs on half of the CPUs, IOThreads on
    the other) or "one-to-one" (job i and IOThread i on CPU i, modulo the CPUs)."""

    threads: int
    queues: int
    jobs: int
    cpus: int
    depth: int = 64
    batch: int = 64
    queue_size: int = 128
    backend_us: float = 0.0
    pinning: str = "none"
    polling: bool = True


@dataclass(frozen=True)
class Prediction:
    """rate: requests per second; limit: what bounds it."""

    rate: float
    limit: str


def holds(costs: Costs, shape: Shape) -> bool:
    """Whether the model says something about that shape: jobs sleep."""
    batch = min(shape.batch, shape.depth)
    return not shape.polling or batch * (costs.server + shape.backend_us) > FALL_ASLEEP_US


def predict(costs: Costs, shape: Shape) -> Prediction:
    """The rate of a shape."""
    batch = min(shape.batch, shape.depth)
    by_queue = _jobs_of_queues(shape)
    shares = []
    total = 0.0
    for thread in range(shape.threads):
        mine = [count for count in by_queue[thread :: shape.threads] if count]
        shares.append(sum(mine) / shape.jobs)
        if mine:
            total += _thread_rate(costs, shape, batch, mine)
    found = Prediction(total * 1e6, "the IOThreads, the jobs and their wake-ups")
    server = costs.server + shape.backend_us + costs.server_notify_busy / batch
    client = costs.client + costs.client_notify_busy / batch
    for cpus, demand in _cpu_demands(shape, server, client, shares):
        if cpus / demand * 1e6 < found.rate:
            found = Prediction(cpus / demand * 1e6, "CPU time")
    return found


def _thread_rate(costs: Costs, shape: Shape, batch: int, jobs: Sequence[int]) -> float:
    """Requests per microsecond of one IOThread with that many jobs on each of its queues."""
    population = sum(
        max(1, min(count * shape.depth // batch, shape.queue_size // batch)) for count in jobs
    )
    count = sum(jobs)
    idle_server = 0.0 if shape.polling else costs.server_notify
    idle_client = costs.client_notify_polling if shape.polling else costs.client_notify
    busy_server = min(idle_server, costs.server_notify_busy)
    busy_client = min(idle_client, costs.client_notify_busy)
    wake = costs.wake_polling if shape.polling else costs.wake
    server_use = client_use = 0.0
    rate = 0.0
    for _ in range(_ITERATIONS):
        notify_server = idle_server + (busy_server - idle_server) * server_use
        notify_client = idle_client + (busy_client - idle_client) * client_use
        server = batch * (costs.server + shape.backend_us) + notify_server
        client = batch * costs.client + notify_client
        others, rate = _rates(server, client, wake, count, population)
        # Half-way, so that it converges also where the rate depends strongly on it.
        server_use = (server_use + min(1.0, others * server)) / 2
        client_use = (client_use + min(1.0, others * client / count)) / 2
    return batch * rate


def _jobs_of_queues(shape: Shape) -> list[int]:
    counts = [0] * shape.queues
    for job in range(shape.jobs):
        counts[queue_of_job(job, shape.jobs, shape.queues, "blk-mq")] += 1
    return counts


def _rates(
    server: float, client: float, wake: float, jobs: int, population: int
) -> tuple[float, float]:
    """Batches per microsecond with one batch less in the network, and with all: exact mean value
    analysis of the two queues and the delay."""
    demands = (server, client / jobs)
    delay = client * (jobs - 1) / jobs + wake
    lengths = [0.0, 0.0]
    before = rate = 0.0
    for customers in range(1, population + 1):
        times = [d * (1 + length) for d, length in zip(demands, lengths, strict=True)]
        before, rate = rate, customers / (delay + sum(times))
        lengths = [rate * time for time in times]
    return before, rate


def _cpu_demands(
    shape: Shape, server: float, client: float, shares: Sequence[float]
) -> list[tuple[int, float]]:
    """Sets of CPUs: how many, and the CPU time that one request (of the whole mix) takes of
    them."""
    if shape.pinning == "none":
        return [(shape.cpus, server + client)]
    if shape.pinning == "halves":
        half = max(1, shape.cpus // 2)
        rest = shape.cpus - half
        if not rest:
            return [(1, server + client)]
        return [(half, client), (rest, server)]
    demands = [0.0] * shape.cpus
    for thread, share in enumerate(shares):
        demands[thread % shape.cpus] += share * server
    for job in range(shape.jobs):
        demands[job % shape.cpus] += client / shape.jobs
    return [(1, demand) for demand in demands if demand]
