"""The tables of the two special measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from blkcmp.cells import Cell
from vringd.bench.lab.rounds import Results
from vringd.bench.lab.tables import markdown, median_iops, noise, spread


def idle_table(results: Results, cells: Sequence[Cell], servers: Sequence[str]) -> list[str]:
    """CPU of the idle cells, in per cent of one core."""
    rows = []
    for cell in cells:
        if cell.kind == "idle":
            for server in servers:
                good = results.good(cell.name, server)
                shares = [100 * sample.server for sample in good]
                failed = "failed" if results.failed(cell.name, server) else "-"
                rows.append([cell.name, server, spread(shares, "{:.3f}") or failed])
    return markdown(["cell", "server", "CPU, % of a core"], rows) if rows else []


def scale_table(results: Results, cells: Sequence[Cell], servers: Sequence[str]) -> list[str]:
    """Speed-up by a second IOThread, beside what the client leaves of two cores."""
    one = next((cell for cell in cells if cell.kind == "scale" and cell.threads == 1), None)
    two = next((cell for cell in cells if cell.kind == "scale" and cell.threads == 2), None)
    rows = []
    for server in servers:
        before = results.good(one.name, server) if one else []
        after = results.good(two.name, server) if two else []
        if not before and not after:
            continue
        client = statistics.median(s.client for s in after) if after else 0.0
        gain = median_iops(after) / median_iops(before) if before and after else 0.0
        rows.append(
            [
                server,
                spread([s.iops / 1000 for s in before], "{:.0f}") or "-",
                spread([s.iops / 1000 for s in after], "{:.0f}") or "-",
                f"{gain:.2f}x" if gain else "-",
                f"{2 - client:.2f}" if after else "-",
                noise([s for c in (one, two) if c for s in results.done(c.name, server)]),
            ]
        )
    names = ["server", "1 IOThread, kIOPS", "2 IOThreads, kIOPS", "speed-up"]
    return markdown([*names, "cores left by the client", "noise"], rows) if rows else []
