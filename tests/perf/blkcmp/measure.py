"""Taking a sample of a cell with any of the clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blkcmp import clients
from blkcmp.cells import Cell
from blkcmp.clients import Programs
from vringd.bench.lab.distance import Distance
from vringd.bench.lab.errors import SampleError
from vringd.bench.lab.families import Family
from vringd.bench.lab.load import Load
from vringd.bench.lab.samples import Sample, finished, warm
from vringd.bench.lab.servers import Server
from vringd.bench.lab.setup import Place


@dataclass(frozen=True)
class Bench:
    """Where and with what all cells are measured; `file` is the raw file of the disks."""

    place: Place
    programs: Programs
    distance: Distance
    file: Path
    server_cpu: int
    client_cpu: int

    def take(self, cell: Cell, family: Family, number: int) -> Sample:
        """Run `cell` once; a failure becomes a sample with `error` set."""
        setup = cell.setup(self.file, self.server_cpu, self.client_cpu)
        job = cell.job(self.server_cpu, self.client_cpu, self.programs.queue_size)
        cpus = (self.server_cpu, self.client_cpu)
        try:
            if cell.backend == "file":
                warm(self.file)
            before = self.distance.settle()
            with Server(family, setup, self.place) as server:
                if cell.kind == "idle":
                    usage = clients.run_idle(self.programs, cell, job, server, self.place, cpus)
                    load = Load(0.0, 0, 0.0, 0.0, 0.0, 0.0, 0, usage)
                else:
                    load = clients.run_load(self.programs, cell, job, server, self.place, cpus)
        except SampleError as error:
            return Sample(cell.name, family.name, number, error=str(error))
        return finished(cell.name, family.name, number, load, self.distance, before)
