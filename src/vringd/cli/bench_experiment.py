"""`vringd bench experiment`: a published experiment, run here, beside its published figures."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path

from vringd.bench.errors import BenchError
from vringd.bench.experiments import html, text
from vringd.bench.experiments.cells import Backend, Plan
from vringd.bench.experiments.registry import EXPERIMENTS
from vringd.bench.experiments.running import Outcome
from vringd.bench.experiments.running import run as run_experiment
from vringd.bench.lab.families import Family, parse_server
from vringd.bench.lab.setup import Disk
from vringd.cli import lab_options
from vringd.cli.arguments import ArgumentParser, positive
from vringd.control.errors import OptionError, VringdError

_ALL = "all"


def add_parser(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench experiment",
        help="run a published experiment and show its table beside the measured one",
        description="Starts servers, pins them and their load in each published way, and prints\n"
        "published figures beside those measured here. Writes every sample as JSON, and a report\n"
        "with plots in one HTML file.",
        epilog=f"experiments: {', '.join(EXPERIMENTS)}, {_ALL}\n\n{lab_options.SERVERS_HELP}",
    )
    parser.add_argument("name", metavar="NAME", help="one of the experiments, or all")
    parser.add_argument(
        "--runtime",
        type=_seconds,
        default=3.0,
        metavar="S",
        help="seconds for each cell and round; default: 3 (the publications ran 30 to 60)",
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        help="the server to measure, default: vringd; repeat it for more columns",
    )
    lab_options.add_program(parser)
    parser.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="as --blockdev, in place of the experiment's own back-ends; repeat it for more",
    )
    parser.add_argument(
        "--cells",
        default="",
        metavar="PATTERN,…",
        help="only cells whose SERIES/CELL/BACKEND matches, such as '8-jobs/*' or '*/1 thr*'",
    )
    parser.add_argument("--list", action="store_true", help="print the cells' names and stop")
    parser.add_argument(
        "--cpus", metavar="LIST", help="CPUs to pin to; default: all that this process may use"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where NAME.json and NAME.html go; default: the current folder",
    )
    parser.add_argument("--no-html", action="store_true", help="no report with plots")
    lab_options.add_place(parser)


def run(args: argparse.Namespace) -> int:
    """The command; returns its exit status. Raises VringdError."""
    try:
        return _run(args)
    except BenchError as error:
        raise VringdError(str(error)) from None


def _run(args: argparse.Namespace) -> int:
    names = list(EXPERIMENTS) if args.name == _ALL else [args.name]
    for name in names:
        if name not in EXPERIMENTS:
            near = difflib.get_close_matches(name, [*EXPERIMENTS, _ALL], 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EXPERIMENTS)}"
            raise OptionError(f"{name}: no such experiment; {hint}")
    if not args.no_html:
        html.check()
    programs = lab_options.programs(args.program)
    families = [parse_server("--server", word, programs) for word in args.server or ["vringd"]]
    servers = [family.name for family in families]
    if len({*servers}) < len(servers):
        raise OptionError(f"--server: {', '.join(servers)}: each only once")
    cpus = lab_options.cpus("--cpus", args.cpus) or tuple(sorted(os.sched_getaffinity(0)))
    plan = Plan(args.runtime, cpus, [_backend(words) for words in args.disk])
    if args.list:
        for name in names:
            for cell in EXPERIMENTS[name](plan).cells:
                print(f"{cell.series}/{cell.label}/{cell.backend}")
        return 0
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--output-dir {args.output_dir}: {error.strerror}") from None
    status = 0
    for name in names:
        outcome = _one(name, plan, families, args)
        if outcome.results.failures() or not outcome.complete:
            status = 1 if outcome.results.failures() else 130
        if status == 130:
            break
    return status


def _one(name: str, plan: Plan, families: list[Family], args: argparse.Namespace) -> Outcome:
    experiment = EXPERIMENTS[name](plan).only([p for p in args.cells.split(",") if p])
    samples = len(families) * len(experiment.unique()) * args.rounds
    print(
        f"{name}: {len(experiment.unique())} cells, {samples} samples, about"
        f" {samples * (plan.runtime + 1.2) / 60:.0f} minutes",
        file=sys.stderr,
    )
    with lab_options.place(args.keep, args.nice) as place:
        outcome = run_experiment(
            experiment,
            families,
            place,
            rounds=args.rounds,
            runtime=plan.runtime,
            progress=lab_options.show,
        )
    print(text.report(outcome))
    written = [args.output_dir / f"{name}.json"]
    outcome.write(written[0])
    if not args.no_html:
        written.append(args.output_dir / f"{name}.html")
        written[1].write_text(html.report(outcome), encoding="utf-8")
    print(f"written: {', '.join(map(str, written))}", file=sys.stderr)
    return outcome


def _backend(options: str) -> Backend:
    Disk(options)
    return Backend(options, options, "as asked for")


def _seconds(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0.2 <= found <= 86400:
        raise argparse.ArgumentTypeError(f"{word}: not a number of seconds from 0.2")
    return found
