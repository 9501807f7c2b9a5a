"""Measuring all cells of an experiment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vringd import __version__
from vringd.bench.experiments.cells import Cell, Experiment
from vringd.bench.experiments.noise import CELL, FIRST, SECOND, Noise, noise_of
from vringd.bench.lab.ceiling import Ceiling, measure_ceiling
from vringd.bench.lab.families import Family
from vringd.bench.lab.host import Host, look_at_host
from vringd.bench.lab.rounds import Progress, Results, Work, run_rounds
from vringd.bench.lab.samples import Sample, take
from vringd.bench.lab.setup import Place


@dataclass
class Outcome:
    """What a run of an experiment has found; servers: their names, the first is the one that
    stands beside the published figures."""

    experiment: Experiment
    host: Host
    servers: list[str]
    rounds: int
    runtime: float
    begun: float
    results: Results = field(default_factory=Results)
    noise: Noise = field(default_factory=lambda: Noise(0.0, 0.0, 0))
    ceiling: Ceiling = field(default_factory=Ceiling)
    complete: bool = False

    def samples(self, cell: Cell, server: str) -> list[Sample]:
        """The good samples of a cell."""
        return self.results.good(cell.key, server)

    def as_json(self) -> dict[str, Any]:
        """Everything needed to repeat it, and every sample."""
        return {
            "experiment": self.experiment.name,
            "vringd": __version__,
            "argv": sys.argv,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.begun)),
            "complete": self.complete,
            "host": self.host.as_json(),
            "servers": self.servers,
            "rounds": self.rounds,
            "runtime": self.runtime,
            "noise": self.noise.as_json(),
            "ceiling": self.ceiling.as_json(),
            "notes": self.experiment.notes,
            "cells": [cell.as_json() for cell in self.experiment.cells],
            "samples": [sample.as_json() for sample in self.results.samples],
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def run(
    experiment: Experiment,
    families: Sequence[Family],
    place: Place,
    *,
    rounds: int,
    runtime: float,
    progress: Progress,
) -> Outcome:
    """Measure the load generator itself and the noise, then all cells round by round.

    Ctrl-C ends it with what there is, and a server that cannot serve the first cell with that
    failure. Raises SampleError if the load generator does not run.
    """
    outcome = Outcome(
        experiment,
        look_at_host(),
        [family.name for family in families],
        rounds,
        runtime,
        time.time(),
    )
    cells = experiment.unique()
    outcome.ceiling = measure_ceiling(place, outcome.host.cpus, kind=experiment.kind)
    if not _measure_noise(outcome, cells[0], families[0], place, progress):
        return outcome
    work = [
        _work(cell.key, family.name, family, cell, place)
        for cell in cells
        for family in families
        if family.why_not(cell.setup) is None
    ]
    outcome.complete = run_rounds(work, rounds, progress, outcome.results)
    return outcome


def _measure_noise(
    outcome: Outcome, cell: Cell, family: Family, place: Place, progress: Progress
) -> bool:
    results = Results()
    work = [_work(CELL, name, family, cell, place) for name in (FIRST, SECOND)]
    finished = run_rounds(work, max(3, outcome.rounds), progress, results)
    first, second = ([s.iops for s in results.good(CELL, n)] for n in (FIRST, SECOND))
    outcome.noise = noise_of(first, second)
    outcome.results.samples += results.failures()
    return finished and not results.failures()


def _work(key: str, name: str, family: Family, cell: Cell, place: Place) -> Work:
    measure = partial(
        take, key, family=family, setup=cell.setup, job=cell.job, place=place, name=name
    )
    return Work(key, name, measure)
