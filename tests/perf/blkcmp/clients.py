"""The clients besides ``vringd bench``: fio's libblkio engine and ``qemu-img bench``.

``vringd bench`` is told the same as fio, and costs less for each request: a fast server is the
limit with it, and not the client. How fio is told to behave, and what that means on the wire:

- ``thread=1``: the jobs are threads that share one device with a virtqueue for each.
- ``libblkio_wait_mode=eventfd``: with too few completions the thread sleeps in a blocking
  ``read()`` of its call eventfd, one system call for each time it sleeps. (``block`` sleeps
  too, but in ``ppoll()`` and then reads: two calls.)
- ``hipri``: the queue is a poll queue: no call eventfd, the thread spins on the used ring
  in user space and makes no system call but kicks.
- Batched submission: ``iodepth_batch_submit=DEPTH, iodepth_batch_complete_min=1,
  iodepth_batch_complete_max=DEPTH``. The engine hands over what it has queued when it looks
  for completions, so the thread takes all that are there (at least one) and then submits as
  many new requests with at most one kick.
- Memory comes from libblkio (a memfd); the ramp time before the measured stretch touches
  every buffer, so no page faults are measured.
- ``gtod_reduce=1, norandommap``: the client spends no time on clocks and bitmaps.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blkcmp.cells import BLOCK, RAMP_SECONDS, Cell
from vringd.bench.lab import process
from vringd.bench.lab.cpu_time import Sampler, Usage
from vringd.bench.lab.errors import SampleError, log_tail
from vringd.bench.lab.load import Job, Load, bench_argv, read_load, run_client, wait_for
from vringd.bench.lab.servers import Server
from vringd.bench.lab.setup import Cpus, Place

_PATIENCE_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Programs:
    """Argument lists that start the clients; an empty one means the program was not given.

    Without `fio`, ``vringd bench`` is the client. `queue_size` is the number of descriptors
    that fio asks for, 0 for libblkio's own choice.
    """

    fio: tuple[str, ...]
    qemu_img: tuple[str, ...]
    queue_size: int = 0


def client_argv(programs: Programs, cell: Cell, job: Job, socket: Path) -> list[str]:
    """The command line of a cell's client; its JSON goes to standard output."""
    if not programs.fio:
        return bench_argv(job, socket, cell.jobs, cell.device)
    wait = ["--hipri=1"] if cell.client == "polling" else ["--libblkio_wait_mode=eventfd"]
    if programs.queue_size:
        wait.append(f"--libblkio_queue_size={programs.queue_size}")
    return [
        *(*programs.fio, "--ioengine=libblkio", "--libblkio_driver=virtio-blk-vhost-user"),
        *(f"--libblkio_path={socket}", "--thread=1", *wait, *job.words),
        *("--eta=never", "--output-format=json"),
    ]


def run_load(
    programs: Programs, cell: Cell, job: Job, server: Server, place: Place, cpus: Cpus
) -> Load:
    """Measure a load or scale cell. Raises SampleError."""
    if cell.client == "qemu-img":
        return _run_qemu_img(programs, cell, job, server, place, cpus)
    argv = client_argv(programs, cell, job, place.socket)
    limit = cell.seconds + RAMP_SECONDS + _PATIENCE_SECONDS
    return read_load(*run_client(argv, server, place, job.cpus, cpus, limit), RAMP_SECONDS)


def run_idle(
    programs: Programs, cell: Cell, job: Job, server: Server, place: Place, cpus: Cpus
) -> Usage:
    """CPU used while a client is connected, has done one request and is silent."""
    log = place.folder / "client.log"
    argv = client_argv(programs, cell, job, place.socket)
    client = process.start(argv, job.cpus, log, nice=place.nice)
    sampler = Sampler(server.pid, client.pid, cpus)
    try:
        start = time.time() + 1.5
        while time.time() < start + cell.seconds:
            server.check()
            if client.poll() is not None:
                words = process.describe_exit(client.poll() or 0)
                raise SampleError(f"the client ended early ({words}):\n{log_tail(log)}")
            time.sleep(0.1)
    finally:
        process.stop(client)
        sampler.stop()
    return _between(sampler, start, start + cell.seconds)


def _run_qemu_img(
    programs: Programs, cell: Cell, job: Job, server: Server, place: Place, cpus: Cpus
) -> Load:
    """Measure with ``qemu-img bench``: sequential 4k reads of one queue, sleeping client.

    It runs for a count of requests, so a short run comes first to find the count.
    """
    count = 5000
    while True:
        log = place.folder / "client.log"
        argv = [
            *(*programs.qemu_img, "bench", "-c", str(count), "-d", str(cell.depth)),
            *("-s", str(BLOCK), "-t", "none", "--image-opts"),
            f"driver=virtio-blk-vhost-user,path={place.socket},cache.direct=on",
        ]
        client = process.start(argv, job.cpus, log, nice=place.nice)
        sampler = Sampler(server.pid, client.pid, cpus)
        try:
            wait_for(client, server, log, cell.seconds * 3 + _PATIENCE_SECONDS)
            end = time.time()
        finally:
            process.stop(client)
            sampler.stop()
        found = re.search(r"completed in ([0-9.]+) seconds", log.read_text(errors="replace"))
        if found is None:
            raise SampleError(f"qemu-img printed no result:\n{log_tail(log)}")
        seconds = float(found[1])
        iops = count / max(seconds, 1e-3)
        if seconds >= cell.seconds / 2:
            usage = _between(sampler, end - seconds, end - 0.05)
            return Load(iops, count, iops * BLOCK, 0.0, 0.0, 0.0, 0, usage)
        count = min(round(iops * cell.seconds), count * 50)


def _between(sampler: Sampler, start: float, end: float) -> Usage:
    try:
        return sampler.between(start, end)
    except ValueError as error:
        raise SampleError(str(error)) from error
