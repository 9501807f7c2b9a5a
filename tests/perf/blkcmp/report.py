"""The tables: medians with min-max, CPU per request, and ratios between servers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from blkcmp.cells import Cell
from blkcmp.samples import Sample

NOISY = 0.1
"""Share of a core used by other programs from which a sample counts as disturbed."""


class Results:
    """All samples of a run, looked up by cell and server."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def done(self, cell: Cell, server: str) -> list[Sample]:
        """Every sample of a cell and server that did not fail."""
        return [
            sample
            for sample in self.samples
            if sample.cell == cell.name and sample.server_name == server and not sample.error
        ]

    def good(self, cell: Cell, server: str) -> list[Sample]:
        """The samples to compare: those that moved only where there are no others."""
        done = self.done(cell, server)
        return [sample for sample in done if not sample.moved] or done

    def failures(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.error]

    def failed(self, cell: Cell, server: str) -> bool:
        return any(
            sample.cell == cell.name and sample.server_name == server for sample in self.failures()
        )


def load_table(
    results: Results, cells: Sequence[Cell], servers: Sequence[str], references: Sequence[str]
) -> list[str]:
    """A Markdown table of the load cells.

    A server's column holds ``kIOPS median [min-max] µs`` with the server's CPU time per
    request; a ratio column holds IOPS and CPU per request of a reference over those of a
    peer (more than 1x IOPS and less than 1x CPU is good for the reference). The last column
    is the median of what other programs used of the two cores, in per cent of a core, with
    the numbers of disturbed and of moved samples when there are any.
    """
    pairs = [(ref, peer) for ref in references for peer in servers if peer not in references]
    header = ["cell", *servers, *(f"{ref}/{peer}" for ref, peer in pairs), "noise"]
    rows = []
    for cell in cells:
        if cell.kind != "load":
            continue
        row = [cell.name]
        for server in servers:
            row.append(_load(results, cell, server))
        for ref, peer in pairs:
            row.append(_ratio(results.good(cell, ref), results.good(cell, peer)))
        row.append(_noise([s for server in servers for s in results.done(cell, server)]))
        rows.append(row)
    return markdown(header, rows) if rows else []


def idle_table(results: Results, cells: Sequence[Cell], servers: Sequence[str]) -> list[str]:
    """CPU of the idle cells, in per cent of one core."""
    rows = []
    for cell in cells:
        if cell.kind == "idle":
            for server in servers:
                good = results.good(cell, server)
                shares = [100 * sample.server for sample in good]
                failed = "failed" if results.failed(cell, server) else "-"
                rows.append([cell.name, server, spread(shares, "{:.3f}") or failed])
    return markdown(["cell", "server", "CPU, % of a core"], rows) if rows else []


def scale_table(results: Results, cells: Sequence[Cell], servers: Sequence[str]) -> list[str]:
    """Speed-up by a second IOThread, beside what the client leaves of two cores."""
    one = next((cell for cell in cells if cell.kind == "scale" and cell.threads == 1), None)
    two = next((cell for cell in cells if cell.kind == "scale" and cell.threads == 2), None)
    rows = []
    for server in servers:
        before = results.good(one, server) if one else []
        after = results.good(two, server) if two else []
        if not before and not after:
            continue
        client = statistics.median(s.client for s in after) if after else 0.0
        gain = _median_iops(after) / _median_iops(before) if before and after else 0.0
        rows.append(
            [
                server,
                spread([s.iops / 1000 for s in before], "{:.0f}") or "-",
                spread([s.iops / 1000 for s in after], "{:.0f}") or "-",
                f"{gain:.2f}x" if gain else "-",
                f"{2 - client:.2f}" if after else "-",
                _noise([s for cell in (one, two) if cell for s in results.done(cell, server)]),
            ]
        )
    names = ["server", "1 IOThread, kIOPS", "2 IOThreads, kIOPS", "speed-up"]
    return markdown([*names, "cores left by the client", "noise"], rows) if rows else []


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns are padded to line up in a terminal."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in [header, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines


def spread(values: Sequence[float], form: str) -> str:
    """``median [min-max]``, or only the value when there is one; empty without any."""
    if not values:
        return ""
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} [{form.format(min(values))}-{form.format(max(values))}]"


def _load(results: Results, cell: Cell, server: str) -> str:
    good = results.good(cell, server)
    if not good:
        return "failed" if results.failed(cell, server) else "-"
    rates = [sample.iops / 1000 for sample in good]
    form = "{:.0f}" if statistics.median(rates) >= 10 else "{:.2f}"
    cost = statistics.median(sample.cpu_us for sample in good)
    mark = " (then failed)" if results.failed(cell, server) else ""
    return f"{spread(rates, form)} {cost:.2f}µs{mark}"


def _ratio(reference: Sequence[Sample], peer: Sequence[Sample]) -> str:
    if not reference or not peer:
        return "-"
    speed = _median_iops(reference) / _median_iops(peer)
    cost = statistics.median(s.cpu_us for s in reference)
    peer_cost = statistics.median(s.cpu_us for s in peer)
    return f"{speed:.2f}x, CPU {cost / peer_cost:.2f}x" if peer_cost else f"{speed:.2f}x"


def _median_iops(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.iops for sample in samples)


def _noise(samples: Sequence[Sample]) -> str:
    if not samples:
        return "-"
    noisy = sum(sample.foreign > NOISY for sample in samples)
    moved = sum(sample.moved for sample in samples)
    text = f"{100 * statistics.median(s.foreign for s in samples):.0f}%"
    if noisy:
        text += f", {noisy} of {len(samples)} disturbed"
    if moved:
        text += f", {moved} moved"
    return text
