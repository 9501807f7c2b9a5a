"""Taking one sample: start the server, run the client, end both, write the numbers down."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vringd.bench.lab.distance import Distance
from vringd.bench.lab.errors import SampleError, UsageError
from vringd.bench.lab.families import Family
from vringd.bench.lab.load import Job, Load, run_load
from vringd.bench.lab.servers import Server
from vringd.bench.lab.setup import Place, Setup

NOISY: Final = 0.1
"""Share of a core used by other programs from which a sample counts as disturbed."""

_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Sample:
    """One measurement.

    iops, read_bytes, write_bytes: per second. cpu_us, client_us: CPU time of the server and of
    the client for each request, microseconds. p50_ns, p99_ns: completion latencies, 0 if not
    measured. server, client, foreign: shares of one core used by the server, the client and
    every other program. hop_before, hop_after: the distance of the two cores around the sample,
    nanoseconds there and back, 0 if not looked at; moved: it was not the usual one. error: the
    reason when it failed.
    """

    cell: str
    server_name: str
    round: int
    seconds: float = 0.0
    iops: float = 0.0
    requests: int = 0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    p50_ns: float = 0.0
    p99_ns: float = 0.0
    cpu_us: float = 0.0
    client_us: float = 0.0
    server: float = 0.0
    client: float = 0.0
    foreign: float = 0.0
    context_switches: int = 0
    hop_before: float = 0.0
    hop_after: float = 0.0
    moved: bool = False
    error: str = ""

    @property
    def disturbance(self) -> float:
        """How little the sample is worth: what others used of a core, plus 10 if it moved."""
        return self.foreign + 10 * self.moved

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def take(
    cell: str,
    number: int,
    *,
    family: Family,
    setup: Setup,
    job: Job,
    place: Place,
    distance: Distance | None = None,
    name: str | None = None,
) -> Sample:
    """Measure once, round `number` of a cell; a failure becomes a sample with `error` set.

    name: of the server in the sample, if not the family's own.
    """
    name = name or family.name
    cpus = tuple({*setup.server_cpus, *job.cpus}) or tuple(os.sched_getaffinity(0))
    try:
        if setup.disk.filename is not None and not setup.disk.direct:
            warm(Path(setup.disk.filename))
        before = distance.settle() if distance else 0.0
        with Server(family, setup, place) as server:
            load = run_load(job, server, place, cpus)
    except SampleError as error:
        return Sample(cell, name, number, error=str(error))
    return finished(cell, name, number, load, distance, before)


def finished(
    cell: str, server: str, number: int, load: Load, distance: Distance | None, before: float
) -> Sample:
    """The sample of a load that went well; before: the cores' distance when it began."""
    after = distance.probe() if distance else 0.0
    usage = load.usage
    return Sample(
        cell,
        server,
        number,
        seconds=usage.seconds,
        iops=load.iops,
        requests=load.requests,
        read_bytes=load.read_bytes,
        write_bytes=load.write_bytes,
        p50_ns=load.p50_ns,
        p99_ns=load.p99_ns,
        cpu_us=usage.server * 1e6 / load.iops if load.iops else 0.0,
        client_us=usage.client * 1e6 / load.iops if load.iops else 0.0,
        server=usage.server,
        client=usage.client,
        foreign=usage.foreign,
        context_switches=load.context_switches,
        hop_before=before,
        hop_after=after,
        moved=distance is not None and not distance.is_usual(before, after),
    )


def create_file(path: Path, size: int, *, direct: bool) -> None:
    """Write `size` bytes of incompressible data to `path` and to the disk below.

    Raises UsageError when `direct` is asked of a file system without O_DIRECT.
    """
    chunk = os.urandom(_CHUNK)
    with path.open("wb") as file:
        for start in range(0, size, _CHUNK):
            file.write(chunk[: min(_CHUNK, size - start)])
        file.flush()
        os.fsync(file.fileno())
    if direct:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            raise UsageError(f"--dir: {path.parent} has no O_DIRECT: {error.strerror}") from error


def warm(path: Path) -> None:
    """Read all of `path`, so that it is in the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(_CHUNK):
            pass
