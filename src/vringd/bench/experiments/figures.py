"""Measured samples in the quantity that was published, and ratios within a series."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from vringd.bench.experiments.cells import Cell
from vringd.bench.experiments.published import Publication, Series
from vringd.bench.experiments.running import Outcome
from vringd.bench.lab.samples import Sample

MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """median, least, most: in the publication's quantity. The others are medians: latencies in
    microseconds (0: not measured), CPU time for each request in microseconds."""

    median: float
    least: float
    most: float
    iops: float
    p50_us: float
    p99_us: float
    server_us: float
    client_us: float
    count: int


def value(publication: Publication, sample: Sample, direction: str) -> float:
    """One sample in the publication's quantity: MB/s, IOPS, or thousands of IOPS."""
    if publication.quantity == "MB/s":
        rates = {"read": sample.read_bytes, "write": sample.write_bytes}
        return rates.get(direction, sample.read_bytes + sample.write_bytes) / MIB
    return sample.iops / (1000 if publication.quantity == "kIOPS" else 1)


def figure(publication: Publication, samples: Sequence[Sample], direction: str) -> Figure | None:
    """What the samples of a cell say together; None without any."""
    if not samples:
        return None
    found = [value(publication, sample, direction) for sample in samples]
    return Figure(
        statistics.median(found),
        min(found),
        max(found),
        statistics.median(s.iops for s in samples),
        statistics.median(s.p50_ns for s in samples) / 1000,
        statistics.median(s.p99_ns for s in samples) / 1000,
        statistics.median(s.cpu_us for s in samples),
        statistics.median(s.client_us for s in samples),
        len(samples),
    )


@dataclass(frozen=True)
class Row:
    """A cell of a series: what was published and what each server did; *_ratio: to the first
    cell of the series."""

    cell: Cell
    direction: str
    published: float
    published_ratio: float
    measured: dict[str, Figure | None]
    ratios: dict[str, float | None]
    crowded: bool


def rows(outcome: Outcome, series: Series, backend: str, direction: str) -> list[Row]:
    """A published series beside what was measured on one back-end."""
    publication = outcome.experiment.publication
    printed = series.figures[direction]
    first: dict[str, float] = {}
    found = []
    base = next(iter(printed.values()))
    for cell in outcome.experiment.of_series(series, backend):
        measured = {
            server: figure(publication, outcome.samples(cell, server), direction)
            for server in outcome.servers
        }
        for server, each in measured.items():
            if each is not None and server not in first and cell.label == series.cells[0]:
                first[server] = each.median
        found.append(
            Row(
                cell,
                direction,
                printed[cell.label],
                printed[cell.label] / base,
                measured,
                {
                    server: each.median / first[server] if each and first.get(server) else None
                    for server, each in measured.items()
                },
                cell.crowded(len(outcome.host.cpus)),
            )
        )
    return found
