"""Predictions as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from vringd.bench.experiments.published import Publication, Series
from vringd.bench.jobfile import read_global
from vringd.bench.lab.tables import markdown
from vringd.bench.predict.model import Costs, Prediction, Shape, predict
from vringd.bench.predict.validation import Check, mean_error
from vringd.bench.values import block_splits

_LABEL: Final = re.compile(r"(\d+) thr (\d+) mq")
_MIB: Final = 1 << 20


def costs_table(costs: Costs) -> list[str]:
    """What was measured."""
    words = {
        "server": "CPU time of the IOThread for each request",
        "client": "CPU time of the job for each request",
        "server_notify": "CPU time of the IOThread for each notification",
        "client_notify": "CPU time of the job for each notification",
        "server_notify_busy": "CPU time of an IOThread that is never idle, for each notification",
        "client_notify_busy": "CPU time of a job whose CPU is never idle, for each notification",
        "client_notify_polling": "CPU time of the job for each notification, IOThread polling",
        "wake": "rest of a round trip, IOThread asleep",
        "wake_polling": "rest of a round trip, IOThread polling",
    }
    rows = [[words[name], f"{value:.3f}"] for name, value in costs.as_json().items()]
    return markdown(["cost", "µs"], rows)


def checks_table(checks: Sequence[Check]) -> list[str]:
    """Predicted beside measured, and the errors."""
    rows = [
        [
            f"{check.shape.threads} thr {check.shape.queues} mq",
            str(check.shape.jobs),
            str(check.shape.depth),
            f"{check.shape.backend_us:g}",
            "polling" if check.shape.polling else "asleep",
            f"{check.predicted / 1000:.1f}",
            f"{check.measured / 1000:.1f}",
            f"{100 * check.error:+.0f} %",
        ]
        for check in checks
    ]
    header = ["cell", "jobs", "depth", "back-end µs", "IOThread", "predicted kIOPS"]
    lines = markdown([*header, "measured kIOPS", "error"], rows)
    if checks:
        worst = max(checks, key=lambda check: abs(check.error))
        lines += [
            "",
            f"mean error {100 * mean_error(checks):.0f} %, largest {100 * worst.error:+.0f} %",
        ]
    return lines


def shape_of(series: Series, label: str, cpus: int, backend_us: float) -> Shape:
    """A published cell on a machine with that many CPUs."""
    match = _LABEL.fullmatch(label)
    assert match is not None
    pinning = {"jobs": "none", "halves-one-to-one": "halves"}.get(series.pinning, series.pinning)
    return Shape(
        threads=int(match[1]),
        queues=int(match[2]),
        jobs=series.jobs,
        cpus=cpus,
        backend_us=backend_us,
        pinning=pinning,
    )


def mean_size(publication: Publication) -> float:
    """Bytes of the mean request of the published job."""
    splits = block_splits(read_global(publication.job)["bssplit"]).splits
    return sum(size * percent for size, percent in splits) / 100


def series_table(
    costs: Costs, publication: Publication, series: Series, cpus: int, backend_us: float
) -> list[str]:
    """A published series with the predicted one beside it."""
    printed = series.figures["read"]
    size = mean_size(publication)
    found: dict[str, Prediction] = {
        label: predict(costs, shape_of(series, label, cpus, backend_us)) for label in printed
    }
    base = found[series.cells[0]].rate
    rows = [
        [
            label,
            f"{printed[label]:g}",
            f"{printed[label] / printed[series.cells[0]]:.2f}",
            f"{found[label].rate * size / 2 / _MIB:.0f}",
            f"{found[label].rate / base:.2f}",
            f"{found[label].rate / 1000:.0f}",
            found[label].limit,
        ]
        for label in printed
    ]
    header = ["cell", "published, MB/s of reads", "ratio", "predicted", "ratio", "kIOPS"]
    return [f"### {series.title}", "", *markdown([*header, "limited by"], rows)]
