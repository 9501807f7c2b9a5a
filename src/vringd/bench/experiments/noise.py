"""How noisy the machine is: one and the same server measured as if it were two (A/A)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

CELL: Final = "A/A"
FIRST: Final = "A"
SECOND: Final = "A'"


@dataclass(frozen=True)
class Noise:
    """difference: of the two medians, a part of their mean. spread: from the least to the most
    of all samples, a part of their median. count: of samples."""

    difference: float
    spread: float
    count: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """One sentence."""
        if not self.count:
            return "noise was not measured"
        return (
            f"the same server measured as two, {self.count} samples in turn: medians differ by"
            f" {100 * self.difference:.1f} %, samples spread over {100 * self.spread:.1f} %"
        )


def noise_of(first: Sequence[float], second: Sequence[float]) -> Noise:
    """From the rates of both."""
    if not first or not second:
        return Noise(0.0, 0.0, 0)
    one, two = statistics.median(first), statistics.median(second)
    every = [*first, *second]
    return Noise(
        abs(one - two) / ((one + two) / 2),
        (max(every) - min(every)) / statistics.median(every),
        len(every),
    )
