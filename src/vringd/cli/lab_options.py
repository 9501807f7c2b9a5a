"""Options that the commands share which start servers to measure them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from vringd.bench import values
from vringd.bench.lab import tables
from vringd.bench.lab.families import PLACEHOLDERS
from vringd.bench.lab.samples import Sample
from vringd.bench.lab.setup import Cpus, Place
from vringd.control.errors import OptionError

SERVERS_HELP: Final = f"""\
servers:
  vringd, qemu-storage-daemon, spdk    with --program NAME=PATH if it is not on PATH
  vringd:poll-max-ns=0,export.event-idx=off
                                       options of its IOThreads, and of its export
  NAME=COMMAND                         any other; placeholders in the command:
                                       {PLACEHOLDERS}
"""


def add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--program",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="where a server is; PATH may be an argument list in quotes",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        metavar="N",
        help="priority of servers and load; -20 keeps other programs away (root only)",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep sockets and logs of the last sample there"
    )


def programs(words: list[str]) -> dict[str, str]:
    """From `--program` words. Raises OptionError."""
    for word in words:
        if "=" not in word:
            raise OptionError(f"--program {word}: not NAME=PATH")
    return dict(word.split("=", 1) for word in words)


def cpus(option: str, text: str | None) -> Cpus | None:
    """A list of CPUs that this process may use. Raises OptionError."""
    if text is None:
        return None
    try:
        found = values.cpus(text)
    except ValueError as error:
        raise OptionError(f"{option} {text}: {error}") from None
    available = os.sched_getaffinity(0)
    for cpu in found:
        if cpu not in available:
            raise OptionError(f"{option} {text}: CPU {cpu} is not one of {sorted(available)}")
    return found


@contextmanager
def place(folder: Path | None, nice: int) -> Iterator[Place]:
    """Where sockets and logs are. Raises OptionError for a priority that is not permitted."""
    if not -20 <= nice <= 19 or (nice < 0 and os.geteuid() != 0):
        raise OptionError(f"--nice {nice}: from -20 to 19, and below 0 for root only")
    with tempfile.TemporaryDirectory(prefix="vringd-bench-") as scratch:
        chosen = (folder or Path(scratch)).resolve()
        chosen.mkdir(parents=True, exist_ok=True)
        yield Place(chosen, nice)


def show(sample: Sample, done: int, total: int) -> None:
    """The progress of a run, on standard error."""
    print(tables.progress_line(sample, done, total), file=sys.stderr, flush=True)
