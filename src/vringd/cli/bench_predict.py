"""`vringd bench predict`: what costs measured here say of a machine with more CPUs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from vringd.bench.errors import BenchError
from vringd.bench.experiments.published import load
from vringd.bench.experiments.virtio_blk_mq import NAME
from vringd.bench.lab.host import describe_host, look_at_host
from vringd.bench.predict import text
from vringd.bench.predict.model import Costs
from vringd.bench.predict.validation import Check, measure
from vringd.cli import lab_options
from vringd.cli.arguments import ArgumentParser, positive
from vringd.control.errors import OptionError, VringdError


def add_parser(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench predict",
        help="what the machine at hand says of one with more CPUs",
        description="Measures what a request and a notification cost here, compares a small\n"
        "queueing model with cells that can be measured here, and prints what the model says of\n"
        "the published cells on a machine with more CPUs, beside the published figures. The\n"
        "formula is in docs/bench.md.",
    )
    parser.add_argument(
        "--cpus", type=positive, default=8, metavar="N", help="of the other machine; default: 8"
    )
    parser.add_argument(
        "--backend-us",
        type=_microseconds,
        default=4.0,
        metavar="US",
        help="CPU time of the back-end for each request there; default: 4, as in the published"
        " runs",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="costs that an earlier run has written with --output, measured here or elsewhere",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="costs and cells, as JSON")
    parser.add_argument("--runtime", type=float, default=1.0, metavar="S", help="default: 1")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: 3")
    lab_options.add_place(parser)


def run(args: argparse.Namespace) -> int:
    """The command; returns its exit status. Raises VringdError."""
    if not 0.3 <= args.runtime <= 3600:
        raise OptionError(f"--runtime {args.runtime:g}: not from 0.3 to 3600 seconds")
    try:
        costs = _read(args.source)
        checks: list[Check] = []
        if costs is None:
            costs, checks = _measure(args)
    except BenchError as error:
        raise VringdError(str(error)) from None
    publication = load(NAME)
    print("\n".join(text.costs_table(costs)))
    if checks:
        print("\n## The model against this machine\n")
        print("\n".join(text.checks_table(checks)))
    print(f"\n## {publication.title}, on {args.cpus} CPUs, {args.backend_us:g} µs back-end")
    for series in publication.series:
        print()
        table = text.series_table(costs, publication, series, args.cpus, args.backend_us)
        print("\n".join(table))
    if args.output is not None:
        _write(args.output, costs, checks)
    return 0


def _measure(args: argparse.Namespace) -> tuple[Costs, list[Check]]:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    if len(cpus) < 2:
        raise VringdError("costs are measured with the load on a CPU of its own: 2 CPUs are needed")
    with lab_options.place(args.keep, args.nice) as place:
        costs, checks = measure(
            place, cpus, rounds=args.rounds, runtime=args.runtime, progress=lab_options.show
        )
    print(f"{describe_host()}\n")
    return costs, checks


def _read(path: Path | None) -> Costs | None:
    if path is None:
        return None
    try:
        return Costs(**json.loads(path.read_text())["costs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"--from {path}: {error}; give a file that --output has written"
        ) from None


def _write(path: Path, costs: Costs, checks: list[Check]) -> None:
    document = {
        "argv": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": look_at_host().as_json(),
        "costs": costs.as_json(),
        "checks": [
            {
                "shape": dataclasses.asdict(check.shape),
                "predicted": check.predicted,
                "measured": check.measured,
                "limit": check.limit,
            }
            for check in checks
        ],
    }
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise OptionError(f"--output {path}: {error.strerror}") from None


def _microseconds(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1e6:
        raise argparse.ArgumentTypeError(f"{word}: not a number of microseconds from 0 to 1000000")
    return found
