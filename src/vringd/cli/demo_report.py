"""What `vringd demo` prints: a line for each step, and the table of the queues."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from vringd.control.blk_export import BlkExport
from vringd.core.snapshots import OpSnapshot, QueueSnapshot
from vringd.core.stats import KINDS, percentile

_WIDTH: Final = 44


class Step:
    """One step that is going on; `result` is shown when it is done."""

    def __init__(self) -> None:
        self.result = ""


class Progress:
    """Prints a line for each step when it begins, and completes it when the step ends."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose
        self._line_open = False

    @contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """A step that ends with the block, in an error if that raises."""
        began = time.monotonic()
        begin = f"{text} ".ljust(_WIDTH, ".")
        self._write(begin)
        self._line_open = True
        step = Step()
        try:
            yield step
        except BaseException:
            self._end_step(begin, began, "FAILED")
            raise
        self._end_step(begin, began, step.result)

    def detail(self, text: str) -> None:
        """Something for `--verbose` only."""
        if self.verbose and text.strip():
            self._end_line()
            for line in text.strip().splitlines():
                self._write(f"    | {line}\n")

    def _end_step(self, begin: str, began: float, result: str) -> None:
        if not self._line_open:  # details came between
            self._write(begin)
        self._write(f" {time.monotonic() - began:5.1f} s  {result}".rstrip() + "\n")
        self._line_open = False

    def _end_line(self) -> None:
        if self._line_open:
            self._write("\n")
            self._line_open = False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def queue_table(export: BlkExport) -> str:
    """What each queue of the export has done since it exists."""
    rows = [
        ["queue", "IOThread", "CPU", "requests", "read", "written", "errors", "p50", "p99"],
        *(
            _row(queue, thread.name, thread.thread.cpu_affinity, stats.snapshot())
            for queue, (thread, stats) in enumerate(zip(export.threads, export.stats, strict=True))
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _row(queue: int, thread: str, cpus: Sequence[int] | None, stats: QueueSnapshot) -> list[str]:
    kinds: list[OpSnapshot] = [stats[kind] for kind in KINDS]  # type: ignore[literal-required]
    histogram = [sum(counts) for counts in zip(*(k["histogram"] for k in kinds), strict=True)]
    return [
        str(queue),
        thread,
        ",".join(map(str, cpus)) if cpus else "any",
        str(sum(kind["ops"] for kind in kinds)),
        _mebibytes(stats["read"]["bytes"]),
        _mebibytes(stats["write"]["bytes"]),
        str(sum(kind["errors"] for kind in kinds)),
        _duration(percentile(histogram, 0.50)),
        _duration(percentile(histogram, 0.99)),
    ]


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _duration(ns: int | None) -> str:
    if ns is None:
        return "-"
    return f"{ns / 1e3:.0f} µs" if ns < 10_000_000 else f"{ns / 1e6:.0f} ms"
