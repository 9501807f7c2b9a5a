"""Taking one sample: start the server, run the client, end both, write the numbers down."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from blkcmp import clients
from blkcmp.cells import Cell
from blkcmp.clients import Programs
from blkcmp.errors import SampleError, UsageError
from blkcmp.hops import Distance
from blkcmp.servers import Place, Server, Spec

_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Sample:
    """One measurement.

    `iops` and `requests` are 0 for an idle cell; `cpu_us` is the server's CPU time per
    request in microseconds; `server`, `client` and `foreign` are shares of one core used by
    the server, the client and every other program; `hop_before` and `hop_after` are the
    distance of the two cores in nanoseconds around the sample; `moved` says that it was not
    the usual one; `error` is the reason when it failed.
    """

    cell: str
    server_name: str
    round: int
    seconds: float
    iops: float = 0.0
    requests: int = 0
    cpu_us: float = 0.0
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
    spec: Spec,
    cell: Cell,
    number: int,
    place: Place,
    programs: Programs,
    distance: Distance,
) -> Sample:
    """Run `cell` once against `spec`; a failure becomes a sample with `error` set."""
    # In the scaling cells both cores serve, so the client may use both as well.
    cpus = {place.client_cpu} if cell.kind != "scale" else {place.client_cpu, place.server_cpu}
    try:
        if cell.backend == "file":
            warm(place.file)
        before = distance.settle()
        with Server(spec, cell, place) as server:
            if cell.kind == "idle":
                usage = clients.run_idle(programs, cell, server, place, cpus)
                load = clients.Load(0.0, 0, usage, 0)
            elif cell.client == "qemu-img":
                load = clients.run_qemu_img(programs, cell, server, place, cpus)
            else:
                load = clients.run_fio(programs, cell, server, place, cpus)
    except SampleError as error:
        return Sample(cell.name, spec.name, number, cell.seconds, error=str(error))
    after = distance.probe()
    usage = load.usage
    return Sample(
        cell.name,
        spec.name,
        number,
        usage.seconds,
        load.iops,
        load.requests,
        usage.server * 1e6 / load.iops if load.iops else 0.0,
        usage.server,
        usage.client,
        usage.foreign,
        load.context_switches,
        before,
        after,
        not distance.is_usual(before, after),
    )


def create_file(path: Path, size: int, *, direct: bool) -> None:
    """Write `size` bytes of incompressible data to `path` and to the disk below.

    Raises `UsageError` when `direct` is asked of a file system without O_DIRECT.
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
