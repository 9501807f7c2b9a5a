"""Cells: what is measured, and how a person names it.

A cell's name is ``BACKEND/JOBS/CLIENT/DEPTH`` for load (``null/2/polling/128``),
``idle/SECONDS`` and ``scale/THREADS`` for the two special measurements; with ``scsi/`` in front it
is virtio-scsi's. ``--cells`` takes shell patterns over these names.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from vringd.bench.lab.errors import UsageError
from vringd.bench.lab.load import Job
from vringd.bench.lab.setup import NULL_DISK, Disk, Setup

BACKENDS: Final = ("null", "file", "direct")
DEVICES: Final = ("blk", "scsi")
CLIENTS: Final = ("eventfd", "polling", "qemu-img")
SCALE_QUEUES: Final = 4
SCALE_DEPTH: Final = 32
SCALE_CPU_NS: Final = 5000
RAMP_SECONDS: Final = 0.4
BLOCK: Final = 4096

Kind = Literal["load", "idle", "scale"]
Device = Literal["blk", "scsi"]


@dataclass(frozen=True)
class Cell:
    """One combination to measure.

    `jobs` is both the number of client threads and of virtqueues; `depth` counts requests
    in flight per queue; `threads` is the number of IOThreads in the server; `cpu_ns` is the
    CPU time that the null back-end burns per request; `seconds` is the measured time.
    """

    kind: Kind
    backend: str
    jobs: int
    client: str
    depth: int
    seconds: float
    threads: int = 1
    cpu_ns: int = 0
    device: Device = "blk"

    @property
    def name(self) -> str:
        return self.plain_name if self.device == "blk" else f"{self.device}/{self.plain_name}"

    @property
    def plain_name(self) -> str:
        """Without the device."""
        if self.kind == "idle":
            return f"idle/{self.seconds:g}"
        if self.kind == "scale":
            return f"scale/{self.threads}"
        return f"{self.backend}/{self.jobs}/{self.client}/{self.depth}"

    def setup(self, file: Path, server_cpu: int, client_cpu: int) -> Setup:
        """What the server is asked for; the scaling cells serve on both CPUs."""
        cpus = (server_cpu,) if self.threads == 1 else (server_cpu, client_cpu)
        pins = tuple((cpu,) for cpu in cpus)
        return Setup(self._disk(file), self.jobs, self.threads, cpus, pins, self.device)

    def job(self, server_cpu: int, client_cpu: int, queue_size: int) -> Job:
        """What `vringd bench` is told; in the scaling cells it may use both CPUs."""
        pace, runtime = [f"--ramp_time={round(RAMP_SECONDS * 1000)}ms"], self.seconds
        if self.kind == "idle":  # one request, then silence, until the client is ended
            pace, runtime = ["--thinktime=1h"], self.seconds + 60
        words = (
            *("--name=cell", "--rw=randread", f"--bs={BLOCK}", "--norandommap"),
            *("--gtod_reduce=1", f"--numjobs={self.jobs}", f"--iodepth={self.depth}"),
            *(f"--iodepth_batch_submit={self.depth}", "--iodepth_batch_complete_min=1"),
            *(f"--iodepth_batch_complete_max={self.depth}", *pace),
            *("--time_based", f"--runtime={round(runtime * 1000)}ms"),
        )
        cpus = (client_cpu, server_cpu) if self.kind == "scale" else (client_cpu,)
        wait = "polling" if self.client == "polling" else "eventfd"
        return Job(words, wait, queue_size or 256, cpus=cpus)

    def _disk(self, file: Path) -> Disk:
        if self.backend == "null":
            return Disk(NULL_DISK + (f",cpu-ns={self.cpu_ns}" if self.cpu_ns else ""))
        direct = "on" if self.backend == "direct" else "off"
        return Disk(f"driver=file,filename={file},cache.direct={direct},aio=io_uring")


def matrix(
    devices: Sequence[Device],
    backends: Sequence[str],
    jobs: Sequence[int],
    clients: Sequence[str],
    depths: Sequence[int],
    seconds: float,
) -> list[Cell]:
    """Every load cell; qemu-img drives one queue of a virtio-blk device only. Devices are next to
    each other, so that they are measured one after the other."""
    return [
        Cell("load", backend, count, client, depth, seconds, device=device)
        for backend in backends
        for count in jobs
        for client in clients
        for depth in depths
        for device in devices
        if client != "qemu-img" or (count == 1 and device == "blk")
    ]


def idle_cell(seconds: float) -> Cell:
    """A connected client that sends nothing for `seconds`."""
    return Cell("idle", "null", 1, "eventfd", 1, seconds)


def scale_cells(devices: Sequence[Device], seconds: float) -> list[Cell]:
    """Four queues on a back-end that costs CPU, served by one IOThread and by two."""
    return [
        Cell(
            *("scale", "null", SCALE_QUEUES, "eventfd", SCALE_DEPTH, seconds, count, SCALE_CPU_NS),
            device,
        )
        for device in devices
        for count in (1, 2)
    ]


def select(cells: Iterable[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells whose name matches a pattern, in their own order; all without patterns.

    Raises `UsageError` for a pattern that matches nothing.
    """
    everything = list(cells)
    if not patterns:
        return everything
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in everything):
            names = " ".join(cell.name for cell in everything)
            raise UsageError(f"--cells: {pattern!r} matches none of: {names}")
    return [
        cell
        for cell in everything
        if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]
