"""The clients: ``vringd bench``, fio's libblkio engine and ``qemu-img bench``, without any VM.

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

import json
import re
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blkcmp import process
from blkcmp.cells import Cell
from blkcmp.cpu import Sampler, Usage
from blkcmp.errors import SampleError, log_tail
from blkcmp.servers import Place, Server

_RAMP_SECONDS: Final = 0.4
_PATIENCE_SECONDS: Final = 15.0
_BLOCK: Final = 4096


@dataclass(frozen=True)
class Programs:
    """Argument lists that start the clients; an empty one means the program was not given.

    `bench` is ``vringd bench``; where it is given, fio is not used.
    `queue_size` is the number of descriptors that fio asks for, 0 for libblkio's own choice.
    """

    fio: tuple[str, ...]
    qemu_img: tuple[str, ...]
    queue_size: int = 0
    bench: tuple[str, ...] = ()


@dataclass(frozen=True)
class Load:
    """What a client measured: requests per second, and CPU shares of the same stretch."""

    iops: float
    requests: int
    usage: Usage
    context_switches: int


def fio_argv(programs: Programs, cell: Cell, socket: Path) -> list[str]:
    """fio's command line for a cell; its JSON goes to standard output."""
    if programs.bench:
        return _bench_argv(programs, cell, socket)
    depth = cell.depth
    wait = ["--hipri=1"] if cell.client == "polling" else ["--libblkio_wait_mode=eventfd"]
    if programs.queue_size:
        wait.append(f"--libblkio_queue_size={programs.queue_size}")
    ramp = [f"--ramp_time={round(_RAMP_SECONDS * 1000)}ms"]
    if cell.kind == "idle":  # one request, then silence for longer than is measured
        wait.append("--thinktime=1h")
        ramp = []
    return [
        *(*programs.fio, "--name=cell", "--ioengine=libblkio"),
        *("--libblkio_driver=virtio-blk-vhost-user", f"--libblkio_path={socket}"),
        *("--rw=randread", f"--bs={_BLOCK}", "--norandommap", "--gtod_reduce=1"),
        *("--thread=1", f"--numjobs={cell.jobs}", f"--iodepth={depth}"),
        *(f"--iodepth_batch_submit={depth}", "--iodepth_batch_complete_min=1"),
        *(f"--iodepth_batch_complete_max={depth}", *wait, *ramp),
        *("--time_based", f"--runtime={round(cell.seconds * 1000)}ms"),
        *("--eta=never", "--output-format=json"),
    ]


def _bench_argv(programs: Programs, cell: Cell, socket: Path) -> list[str]:
    """The same load by ``vringd bench``."""
    wait = "polling" if cell.client == "polling" else "eventfd"
    size = ["--queue-size", str(programs.queue_size)] if programs.queue_size else []
    pace = [f"--ramp_time={round(_RAMP_SECONDS * 1000)}ms"]
    if cell.kind == "idle":
        pace = ["--thinktime=1h"]
    return [
        *(*programs.bench, "bench", "--socket", str(socket), "--queues", str(cell.jobs)),
        *("--wait", wait, *size, "--name=cell", "--rw=randread", f"--bs={_BLOCK}"),
        *("--norandommap", "--gtod_reduce=1", f"--numjobs={cell.jobs}"),
        *(f"--iodepth={cell.depth}", f"--iodepth_batch_submit={cell.depth}"),
        *("--iodepth_batch_complete_min=1", f"--iodepth_batch_complete_max={cell.depth}"),
        *(*pace, "--time_based", f"--runtime={round(cell.seconds * 1000)}ms"),
        *("--eta=never", "--output-format=json"),
    ]


def run_fio(
    programs: Programs, cell: Cell, server: Server, place: Place, cpus: Collection[int]
) -> Load:
    """Measure a load or scale cell. Raises `SampleError`."""
    log, output = place.folder / "fio.log", place.folder / "fio.json"
    output.unlink(missing_ok=True)
    argv = fio_argv(programs, cell, place.socket)
    client = process.start(argv, cpus, log, nice=place.nice, stdout=output)
    sampler = Sampler(server.pid, client.pid, {*cpus, *server.cpus})
    limit = cell.seconds + _RAMP_SECONDS + _PATIENCE_SECONDS
    try:
        _wait(client, "fio", server, log, limit)
    finally:
        process.stop(client)
        sampler.stop()
    jobs = _fio_jobs(output, log)
    start = max(job["job_start"] for job in jobs) / 1000 + _RAMP_SECONDS + 0.05
    end = min(job["job_start"] + job["read"]["runtime"] for job in jobs) / 1000 + _RAMP_SECONDS
    return Load(
        sum(float(job["read"]["iops"]) for job in jobs),
        sum(int(job["read"]["total_ios"]) for job in jobs),
        _between(sampler, start, end - 0.05),
        sum(int(job["ctx"]) for job in jobs),
    )


def _fio_jobs(output: Path, log: Path) -> list[dict[str, Any]]:
    text = output.read_text(errors="replace")
    try:
        jobs: list[dict[str, Any]] = json.loads(text[text.index("{") :])["jobs"]
    except (ValueError, KeyError):
        raise SampleError(f"fio printed no JSON:\n{log_tail(log)}\n{text[-500:]}") from None
    for job in jobs:
        if job["error"] or not job["read"]["total_ios"]:
            raise SampleError(f"fio: error {job['error']} and no request done:\n{log_tail(log)}")
    return jobs


def run_idle(
    programs: Programs, cell: Cell, server: Server, place: Place, cpus: Collection[int]
) -> Usage:
    """CPU used while a client is connected, has done one request and is silent."""
    log = place.folder / "fio.log"
    argv = fio_argv(programs, cell, place.socket)
    client = process.start(argv, cpus, log, nice=place.nice)
    sampler = Sampler(server.pid, client.pid, {*cpus, *server.cpus})
    try:
        start = time.time() + 1.5
        while time.time() < start + cell.seconds:
            server.check()
            if client.poll() is not None:
                words = process.describe_exit(client.poll() or 0)
                raise SampleError(f"fio ended early ({words}):\n{log_tail(log)}")
            time.sleep(0.1)
    finally:
        process.stop(client)
        sampler.stop()
    return _between(sampler, start, start + cell.seconds)


def run_qemu_img(
    programs: Programs, cell: Cell, server: Server, place: Place, cpus: Collection[int]
) -> Load:
    """Measure with ``qemu-img bench``: sequential 4k reads of one queue, sleeping client.

    It runs for a count of requests, so a short run comes first to find the count.
    """
    count = 5000
    while True:
        log = place.folder / "qemu-img.log"
        argv = [
            *(*programs.qemu_img, "bench", "-c", str(count), "-d", str(cell.depth)),
            *("-s", str(_BLOCK), "-t", "none", "--image-opts"),
            f"driver=virtio-blk-vhost-user,path={place.socket},cache.direct=on",
        ]
        client = process.start(argv, cpus, log, nice=place.nice)
        sampler = Sampler(server.pid, client.pid, {*cpus, *server.cpus})
        try:
            _wait(client, "qemu-img", server, log, cell.seconds * 3 + _PATIENCE_SECONDS)
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
            return Load(iops, count, usage, 0)
        count = min(round(iops * cell.seconds), count * 50)


def _wait(
    client: subprocess.Popen[bytes], name: str, server: Server, log: Path, limit: float
) -> None:
    deadline = time.monotonic() + limit
    while client.poll() is None:
        server.check()
        if time.monotonic() > deadline:
            raise SampleError(
                f"{name} did not end within {limit:g} s (a lost request or notification?);\n"
                f"    {server.spec.name}'s last words:\n{server.last_words()}"
            )
        time.sleep(0.02)
    server.check()
    if client.returncode:
        words = process.describe_exit(client.returncode)
        raise SampleError(
            f"{name} failed ({words}):\n{log_tail(log)}\n"
            f"    {server.spec.name}'s last words:\n{server.last_words()}"
        )


def _between(sampler: Sampler, start: float, end: float) -> Usage:
    try:
        return sampler.between(start, end)
    except ValueError as error:
        raise SampleError(str(error)) from error
