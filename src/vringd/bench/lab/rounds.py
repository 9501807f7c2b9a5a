"""Rounds: every server of every cell in turn, so that a slow minute of the machine hits all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vringd.bench.lab.samples import NOISY, Sample


@dataclass(frozen=True)
class Work:
    """One sample to take: of a cell and a server; take(N): measure it in round N."""

    cell: str
    server: str
    take: Callable[[int], Sample]


class Results:
    """All samples of a run, looked up by cell and server."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def done(self, cell: str, server: str) -> list[Sample]:
        """Every sample of a cell and server that did not fail."""
        return [
            sample
            for sample in self.samples
            if sample.cell == cell and sample.server_name == server and not sample.error
        ]

    def good(self, cell: str, server: str) -> list[Sample]:
        """The samples to compare: those that moved only where there are no others."""
        done = self.done(cell, server)
        return [sample for sample in done if not sample.moved] or done

    def failures(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.error]

    def failed(self, cell: str, server: str) -> bool:
        return any(s.cell == cell and s.server_name == server for s in self.failures())


Progress = Callable[[Sample, int, int], None]
"""Told after each sample: the sample, how many there are, how many there will be."""


def run_rounds(
    work: Sequence[Work],
    rounds: int,
    progress: Progress,
    results: Results,
    *,
    retries: int = 0,
    round_done: Callable[[], None] | None = None,
) -> bool:
    """Take all samples into results. A disturbed sample is taken again up to `retries` times,
    and the least disturbed one kept; what failed once is not tried again.

    Returns False if Ctrl-C ended it early.
    """
    total = rounds * len(work)
    try:
        for number in range(1, rounds + 1):
            for each in work:
                if not results.failed(each.cell, each.server):
                    sample = _least_disturbed(each, number, retries)
                    results.samples.append(sample)
                    progress(sample, len(results.samples), total)
            if round_done is not None:
                round_done()
    except KeyboardInterrupt:
        return False
    return True


def _least_disturbed(work: Work, number: int, retries: int) -> Sample:
    best = work.take(number)
    for _ in range(retries):
        if best.error or best.disturbance <= NOISY:
            break
        again = work.take(number)
        if again.error or again.disturbance < best.disturbance:
            best = again
    return best
