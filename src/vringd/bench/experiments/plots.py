"""Plots of a series, as SVG text to be put into a page."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from vringd.bench.experiments.figures import Figure, Row

_PUBLISHED = "#8c8c8c"
_SERVERS = ("#1f6fb4", "#d1602c", "#3a8f4c", "#8a5ab5")


def series_plot(rows: Sequence[Row], servers: Sequence[str], quantity: str) -> str:
    """Four plots of one series over its cells: the published quantity, the same relative to the
    first cell, latency percentiles, and CPU time for each request."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vringd", "font.size": 8}):
        canvas = Canvas(figsize=(11, 6.4), layout="constrained")
        absolute, relative, latency, cpu = canvas.subplots(2, 2).flat
        _absolute(absolute, rows, servers, quantity)
        _relative(relative, rows, servers)
        _latencies(latency, rows, servers)
        _cpu(cpu, rows, servers)
        for axes in (absolute, relative, latency, cpu):
            axes.set_xticks(range(len(rows)), [row.cell.label for row in rows])
            axes.grid(axis="y", alpha=0.3)
            axes.set_ylim(bottom=0)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _absolute(axes: Axes, rows: Sequence[Row], servers: Sequence[str], quantity: str) -> None:
    width = 0.8 / (len(servers) + 1)
    places = [i - 0.4 + width / 2 for i in range(len(rows))]
    axes.bar(places, [row.published for row in rows], width, color=_PUBLISHED, label="published")
    for number, server in enumerate(servers):
        shifted = [place + width * (number + 1) for place in places]
        found = [_or_nothing(row.measured[server]) for row in rows]
        axes.bar(
            shifted,
            [each.median for each in found],
            width,
            color=_color(number),
            label=server,
            yerr=(
                [each.median - each.least for each in found],
                [each.most - each.median for each in found],
            ),
            error_kw={"elinewidth": 0.8, "capsize": 2},
        )
    axes.set_title(f"{rows[0].direction}s, {quantity} (bars: least and most)")
    axes.legend()


def _relative(axes: Axes, rows: Sequence[Row], servers: Sequence[str]) -> None:
    places = range(len(rows))
    axes.plot(
        places, [row.published_ratio for row in rows], "o--", color=_PUBLISHED, label="published"
    )
    for number, server in enumerate(servers):
        points = [(i, ratio) for i, row in enumerate(rows) if (ratio := row.ratios[server])]
        axes.plot(
            [i for i, _ in points],
            [ratio for _, ratio in points],
            "o-",
            color=_color(number),
            label=server,
        )
    axes.set_title(f"relative to {rows[0].cell.label}")
    axes.legend()


def _latencies(axes: Axes, rows: Sequence[Row], servers: Sequence[str]) -> None:
    for number, server in enumerate(servers):
        found = [(i, each) for i, row in enumerate(rows) if (each := row.measured[server])]
        places = [i for i, _ in found]
        axes.plot(
            places,
            [each.p50_us for _, each in found],
            "o-",
            color=_color(number),
            label=f"{server}, p50",
        )
        axes.plot(
            places,
            [each.p99_us for _, each in found],
            "^:",
            color=_color(number),
            label=f"{server}, p99",
        )
    axes.set_title("completion latency, µs")
    axes.legend()


def _cpu(axes: Axes, rows: Sequence[Row], servers: Sequence[str]) -> None:
    width = 0.8 / len(servers)
    for number, server in enumerate(servers):
        places = [i - 0.4 + width * (number + 0.5) for i in range(len(rows))]
        found = [_or_nothing(row.measured[server]) for row in rows]
        axes.bar(
            places,
            [each.server_us for each in found],
            width * 0.9,
            color=_color(number),
            label=server,
        )
        axes.bar(
            places,
            [each.client_us for each in found],
            width * 0.9,
            bottom=[each.server_us for each in found],
            color=_color(number),
            alpha=0.35,
            label="its load",
        )
    axes.set_title("CPU time for each request, µs")
    axes.legend()


def _or_nothing(figure: Figure | None) -> Figure:
    return figure or Figure(0, 0, 0, 0, 0, 0, 0, 0, 0)


def _color(number: int) -> str:
    return _SERVERS[number % len(_SERVERS)]
