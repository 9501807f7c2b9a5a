"""The published figures: data files in `vringd/bench/published`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Series:
    """One column of a published table: a load and a way of pinning, over cells.

    jobs: fio jobs at once. workers: where that is what columns differ in, "one" or "per-vq".
    figures: for each direction ("read", "write", "total") and cell what
    was printed, in the publication's quantity.
    """

    id: str
    title: str
    jobs: int
    pinning: str
    figures: dict[str, dict[str, float]]
    workers: str = ""

    @property
    def cells(self) -> list[str]:
        """The cells' labels in their order."""
        return list(next(iter(self.figures.values())))


@dataclass(frozen=True)
class Publication:
    """A published experiment. quantity: the unit of its figures. runtime: seconds for a cell."""

    name: str
    title: str
    author: str
    source: str
    idea: str
    setup: str
    lesson: str
    quantity: str
    runtime: float
    job: str
    series: tuple[Series, ...]


_DIRECTIONS = ("read", "write", "total")
_WORDS = ("title", "author", "source", "idea", "setup", "lesson")


def load(name: str) -> Publication:
    """The publication that the experiment `name` repeats."""
    path = resources.files("vringd.bench").joinpath("published", f"{name}.toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    words = {key: " ".join(data[key].split()) for key in _WORDS}
    return Publication(
        name=name,
        quantity=data["quantity"],
        runtime=float(data["runtime"]),
        job=data["job"].strip() + "\n",
        series=tuple(_series(entry) for entry in data["series"]),
        **words,
    )


def _series(entry: dict[str, Any]) -> Series:
    figures = {name: dict(entry[name]) for name in _DIRECTIONS if name in entry}
    return Series(
        entry["id"],
        entry["title"],
        entry["jobs"],
        entry["pinning"],
        figures,
        entry.get("workers", ""),
    )
