"""An experiment's report: one HTML file that needs nothing else."""

from __future__ import annotations

import importlib.util
from importlib import resources
from typing import Any

from vringd.bench.errors import BenchError
from vringd.bench.experiments.figures import rows
from vringd.bench.experiments.running import Outcome
from vringd.bench.experiments.text import CROWDED, spread
from vringd.bench.lab.host import describe_host, describe_mitigations

_NEEDED = ("jinja2", "matplotlib")


def check() -> None:
    """Raises BenchError if a library is missing that reports need."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BenchError(
            f"a report with plots needs {' and '.join(missing)}: install vringd[report], or give"
            " --no-html"
        )


def report(outcome: Outcome) -> str:
    """The whole document. Raises BenchError as `check`."""
    check()
    import jinja2  # both are an extra

    from vringd.bench.experiments import plots

    publication = outcome.experiment.publication
    parts = []
    for backend in outcome.experiment.backends:
        for series in publication.series:
            if not outcome.experiment.of_series(series, backend.name):
                continue
            direction = next(iter(series.figures))
            found = rows(outcome, series, backend.name, direction)
            tables = {name: rows(outcome, series, backend.name, name) for name in series.figures}
            parts.append(
                {
                    "backend": backend,
                    "series": series,
                    "note": next((row.cell.note for row in found if row.cell.note), ""),
                    "tables": tables,
                    "plot": plots.series_plot(found, outcome.servers, publication.quantity),
                }
            )
    template = resources.files("vringd.bench.experiments").joinpath("report.html.j2")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    values: dict[str, Any] = {
        "outcome": outcome,
        "publication": publication,
        "document": outcome.as_json(),
        "host": describe_host(outcome.host),
        "mitigations": describe_mitigations(outcome.host),
        "parts": parts,
        "crowded": CROWDED,
        "spread": spread,
    }
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
