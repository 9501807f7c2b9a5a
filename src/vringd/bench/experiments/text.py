"""An experiment's result as text: published beside measured, a table for each series."""

from __future__ import annotations

from vringd.bench.experiments.cells import Backend
from vringd.bench.experiments.figures import Figure, Row, rows
from vringd.bench.experiments.published import Series
from vringd.bench.experiments.running import Outcome
from vringd.bench.lab.host import describe_host, describe_mitigations
from vringd.bench.lab.tables import markdown

CROWDED = "*"


def report(outcome: Outcome) -> str:
    """Everything."""
    publication = outcome.experiment.publication
    lines = [
        f"{publication.title}",
        f"published: {publication.author}, {publication.source}",
        f"published on: {publication.setup}",
        f"measured on: {describe_host(outcome.host)}",
        f"mitigations: {describe_mitigations(outcome.host)}",
        f"load: {outcome.ceiling.describe()}",
        f"noise: {outcome.noise.describe()}",
        f"{outcome.rounds} rounds of {outcome.runtime:g} s for each cell: median [min-max];"
        " ratio: to the first cell of the same column",
        "",
    ]
    lines += [f"- {note}" for note in outcome.experiment.notes]
    for backend in outcome.experiment.backends:
        lines += ["", f"## {backend.name}: {backend.why} ({backend.options})"]
        for series in publication.series:
            if outcome.experiment.of_series(series, backend.name):
                lines += ["", *series_table(outcome, series, backend)]
    if any(cell.crowded(len(outcome.host.cpus)) for cell in outcome.experiment.cells):
        lines += ["", f"{CROWDED} jobs and IOThreads together are more than the CPUs here"]
    for failure in outcome.results.failures():
        lines += ["", f"FAILED {failure.cell} {failure.server_name}: {failure.error}"]
    if not outcome.complete:
        lines += ["", "the run was not finished: some cells are missing or have fewer rounds"]
    return "\n".join(lines) + "\n"


def series_table(outcome: Outcome, series: Series, backend: Backend) -> list[str]:
    """One series on one back-end: a heading and a table for each direction."""
    quantity = outcome.experiment.publication.quantity
    lines = []
    for direction in series.figures:
        found = rows(outcome, series, backend.name, direction)
        note = next((row.cell.note for row in found if row.cell.note), "")
        what = {"read": "reads, ", "write": "writes, "}.get(direction, "")
        lines += [f"### {series.title} ({what}{quantity}){f' - {note}' if note else ''}", ""]
        header = ["cell", "threads/CPUs", "published", "ratio"]
        for server in outcome.servers:
            header += [server, "ratio", "p99", "CPU per request"]
        lines += [*markdown(header, [_row(row, outcome) for row in found]), ""]
    return lines[:-1]


def _row(row: Row, outcome: Outcome) -> list[str]:
    mark = CROWDED if row.crowded else ""
    threads = f"{row.cell.jobs}+{row.cell.threads}/{len(outcome.host.cpus)}{mark}"
    words = [row.cell.label, threads, f"{row.published:g}", f"{row.published_ratio:.2f}"]
    for server in outcome.servers:
        each = row.measured[server]
        ratio = row.ratios[server]
        if each is None:
            failed = outcome.results.failed(row.cell.key, server)
            words += ["failed" if failed else "-", "", "", ""]
        else:
            words += [spread(each), "" if ratio is None else f"{ratio:.2f}"]
            words += [_latency(each.p99_us), f"{each.server_us:.2f}+{each.client_us:.2f} µs"]
    return words


def spread(figure: Figure) -> str:
    """median [min-max]."""
    form = "{:.0f}" if figure.median >= 100 else "{:.1f}"
    middle = form.format(figure.median)
    if figure.count == 1:
        return middle
    return f"{middle} [{form.format(figure.least)}-{form.format(figure.most)}]"


def _latency(us: float) -> str:
    if not us:
        return "-"
    return f"{us:.0f} µs" if us < 10_000 else f"{us / 1000:.0f} ms"
