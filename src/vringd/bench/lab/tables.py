"""Tables of samples: medians with min-max, CPU time per request, ratios between servers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from vringd.bench.lab.rounds import Results
from vringd.bench.lab.samples import NOISY, Sample


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


def load(results: Results, cell: str, server: str) -> str:
    """``kIOPS median [min-max] µs`` with the server's CPU time for each request."""
    good = results.good(cell, server)
    if not good:
        return "failed" if results.failed(cell, server) else "-"
    rates = [sample.iops / 1000 for sample in good]
    form = "{:.0f}" if statistics.median(rates) >= 10 else "{:.2f}"
    cost = statistics.median(sample.cpu_us for sample in good)
    mark = " (then failed)" if results.failed(cell, server) else ""
    return f"{spread(rates, form)} {cost:.2f}µs{mark}"


def ratio(reference: Sequence[Sample], peer: Sequence[Sample]) -> str:
    """Medians of IOPS and of CPU time per request of one server over those of another."""
    if not reference or not peer:
        return "-"
    speed = median_iops(reference) / median_iops(peer)
    cost = statistics.median(s.cpu_us for s in reference)
    peer_cost = statistics.median(s.cpu_us for s in peer)
    return f"{speed:.2f}x, CPU {cost / peer_cost:.2f}x" if peer_cost else f"{speed:.2f}x"


def median_iops(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.iops for sample in samples)


def noise(samples: Sequence[Sample]) -> str:
    """What other programs used, per cent of a core, and how many samples suffered."""
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


def compare_table(
    results: Results, cells: Sequence[str], servers: Sequence[str], references: Sequence[str]
) -> list[str]:
    """A row for each cell: a column for each server, ratios of each reference to each of the
    other servers (more than 1x IOPS and less than 1x CPU is good for the reference), noise."""
    pairs = [(ref, peer) for ref in references for peer in servers if peer not in references]
    header = ["cell", *servers, *(f"{ref} / {peer}" for ref, peer in pairs), "noise"]
    rows = []
    for cell in cells:
        row = [cell]
        row += [load(results, cell, server) for server in servers]
        row += [ratio(results.good(cell, ref), results.good(cell, peer)) for ref, peer in pairs]
        row.append(noise([s for server in servers for s in results.done(cell, server)]))
        rows.append(row)
    return markdown(header, rows) if rows else []


def progress_line(sample: Sample, done: int, total: int) -> str:
    """One line for a sample that was taken."""
    begin = f"[{done}/{total}] {sample.cell:22} {sample.server_name:20} "
    if sample.error:
        return f"{begin}FAILED: {sample.error}"
    if not sample.requests:
        return f"{begin}idle: {100 * sample.server:.3f} % of a core"
    hop = ""
    if sample.hop_before:
        hop = f"  hop {sample.hop_before:.0f}-{sample.hop_after:.0f} ns{' MOVED' * sample.moved}"
    return (
        f"{begin}{sample.iops / 1000:8.1f} kIOPS  {sample.cpu_us:6.2f} µs  "
        f"server {sample.server:.2f} client {sample.client:.2f} other {sample.foreign:.2f}{hop}"
    )
