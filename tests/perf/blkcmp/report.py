"""The tables of the special measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from blkcmp.cells import Cell
from vringd.bench.lab.rounds import Results
from vringd.bench.lab.samples import Sample
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
    rows = []
    for one in cells:
        if one.kind != "scale" or one.threads != 1:
            continue
        two = next(c for c in cells if c.plain_name == "scale/2" and c.device == one.device)
        for server in servers:
            before, after = results.good(one.name, server), results.good(two.name, server)
            if before or after:
                rows.append([one.device, server, *_speed_up(before, after)])
                done = [s for c in (one, two) for s in results.done(c.name, server)]
                rows[-1].append(noise(done))
    names = ["device", "server", "1 IOThread, kIOPS", "2 IOThreads, kIOPS", "speed-up"]
    return markdown([*names, "cores left by the client", "noise"], rows) if rows else []


def _speed_up(before: Sequence[Sample], after: Sequence[Sample]) -> list[str]:
    client = statistics.median(s.client for s in after) if after else 0.0
    gain = median_iops(after) / median_iops(before) if before and after else 0.0
    return [
        spread([s.iops / 1000 for s in before], "{:.0f}") or "-",
        spread([s.iops / 1000 for s in after], "{:.0f}") or "-",
        f"{gain:.2f}x" if gain else "-",
        f"{2 - client:.2f}" if after else "-",
    ]


def device_table(results: Results, cells: Sequence[Cell], servers: Sequence[str]) -> list[str]:
    """virtio-scsi beside virtio-blk: requests, and what one costs the server."""
    rows = []
    plain = {cell.plain_name: cell for cell in cells if cell.device == "blk"}
    for cell in cells:
        blk = plain.get(cell.plain_name)
        if cell.device != "scsi" or cell.kind != "load" or blk is None:
            continue
        for server in servers:
            ours, other = results.good(cell.name, server), results.good(blk.name, server)
            if not ours or not other:
                continue
            cost, before = (statistics.median(s.cpu_us for s in each) for each in (ours, other))
            rows.append(
                [
                    *(cell.plain_name, server),
                    f"{spread([s.iops / 1000 for s in other], '{:.0f}')} ({before:.3f})",
                    f"{spread([s.iops / 1000 for s in ours], '{:.0f}')} ({cost:.3f})",
                    f"{median_iops(ours) / median_iops(other):.2f}x",
                    f"{cost / before:.2f}x",
                ]
            )
    names = ["cell", "server", "blk, kIOPS (µs)", "scsi, kIOPS (µs)", "scsi / blk", "its cost"]
    return markdown(names, rows) if rows else []
