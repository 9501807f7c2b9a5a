"""Cells: what an experiment measures."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vringd.bench.experiments.published import Publication, Series
from vringd.bench.lab.errors import UsageError
from vringd.bench.lab.load import Job
from vringd.bench.lab.setup import Cpus, Setup


@dataclass(frozen=True)
class Backend:
    """A disk of an experiment; name: for tables, options: as `--blockdev`, why: one sentence."""

    name: str
    options: str
    why: str


@dataclass(frozen=True)
class Cell:
    """One cell of one published series, on one back-end.

    key: names the measurement; cells that come to the same have the same key and are measured
    once. jobs, threads, queues: how many there are.
    """

    key: str
    series: str
    label: str
    backend: str
    jobs: int
    threads: int
    queues: int
    pinning: str
    note: str
    setup: Setup
    job: Job

    def crowded(self, cpus: int) -> bool:
        """Whether it asks for more threads than there are CPUs."""
        return self.jobs + self.threads > cpus

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "series": self.series,
            "label": self.label,
            "backend": self.backend,
            "jobs": self.jobs,
            "threads": self.threads,
            "queues": self.queues,
            "pinning": self.pinning,
            "note": self.note,
            "server_cpus": self.setup.server_cpus,
            "thread_cpus": self.setup.thread_cpus,
            "disk": self.setup.disk.text,
            "fio": self.job.words,
            "queue_size": self.job.queue_size,
            "wait": self.job.wait,
        }


@dataclass(frozen=True)
class Experiment:
    """What is measured, and beside which publication; notes: how that differs from it; kind: of
    the device, "blk" or "scsi"."""

    publication: Publication
    backends: tuple[Backend, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    kind: str = "blk"

    @property
    def name(self) -> str:
        return self.publication.name

    def only(self, patterns: Sequence[str]) -> Experiment:
        """With the cells only whose SERIES/CELL/BACKEND matches a shell pattern; with all
        without patterns. Raises UsageError for a pattern that matches nothing."""
        if not patterns:
            return self
        names = {cell: f"{cell.series}/{cell.label}/{cell.backend}" for cell in self.cells}
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names.values()):
                raise UsageError(
                    f"--cells {pattern}: matches none of {', '.join(sorted(names.values()))}"
                )
        kept = tuple(
            cell
            for cell, name in names.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        )
        return dataclasses.replace(self, cells=kept)

    def of_series(self, series: Series, backend: str) -> list[Cell]:
        return [c for c in self.cells if c.series == series.id and c.backend == backend]

    def unique(self) -> list[Cell]:
        """One cell for each measurement."""
        return list({cell.key: cell for cell in self.cells}.values())


@dataclass(frozen=True)
class Plan:
    """What a person asked of an experiment: seconds for each cell, the CPUs to use, back-ends
    in place of the experiment's own."""

    runtime: float
    cpus: Cpus
    backends: Sequence[Backend] = ()
