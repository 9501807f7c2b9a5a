#!/usr/bin/env python3
"""Measure vhost-user-blk and -scsi servers side by side, without a VM, and print a table.

The client is ``vringd bench``, or fio's libblkio engine or ``qemu-img bench`` if asked for.
Every sample starts a fresh server pinned to one core and a client pinned to another. The rounds
alternate the servers cell by cell (A B C A B C ...), so that a slow minute of the machine
hits all of them; the table gives the median of the rounds with min-max.

    .venv/bin/python tests/perf/compare_blk.py --server vringd --server vringd:poll-max-ns=0 \\
        --server qemu-storage-daemon --server spdk --program spdk=/opt/spdk/bin/vhost \\
        --rounds 3 --json samples.json

Servers are named as for ``vringd bench compare``. A program may be an argument list; a wrapper
must ``exec`` the program or stay its parent. Without ``--cells`` the matrix is
null back-end x jobs {1,2} x {eventfd, polling} x depth {1,32,128}, 4k random reads.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from blkcmp import report
from blkcmp.cells import (
    BACKENDS,
    CLIENTS,
    DEVICES,
    SCALE_CPU_NS,
    SCALE_DEPTH,
    SCALE_QUEUES,
    Cell,
    Device,
    idle_cell,
    matrix,
    scale_cells,
    select,
)
from blkcmp.clients import Programs, client_argv
from blkcmp.measure import Bench

from vringd.bench.lab import samples, tables
from vringd.bench.lab.distance import Distance
from vringd.bench.lab.errors import UsageError
from vringd.bench.lab.families import PLACEHOLDERS, Family, parse_server
from vringd.bench.lab.host import describe_host
from vringd.bench.lab.rounds import Results, Work, run_rounds
from vringd.bench.lab.samples import Sample
from vringd.bench.lab.setup import Place


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = parser.add_argument_group("programs")
    programs.add_argument(
        "--fio", default="", help="fio with the libblkio engine, to use it in place of vringd bench"
    )
    programs.add_argument("--qemu-img", default="", help="for the cells of that client")
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        *("--server", "-S"),
        action="append",
        default=[],
        metavar="NAME[:OPTIONS]|NAME=COMMAND",
        help=f"vringd (the default), vringd:poll-max-ns=0, qemu-storage-daemon, spdk, or any"
        f" command with placeholders: {PLACEHOLDERS}",
    )
    servers.add_argument(
        "--program", action="append", default=[], metavar="NAME=PATH", help="where a server is"
    )
    servers.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="NAME",
        help="ratios are of this server over the others (default: each named vringd...)",
    )
    cells = parser.add_argument_group("cells")
    cells.add_argument("--devices", default="blk", help=f"of {','.join(DEVICES)}")
    cells.add_argument("--backends", default="null", help=f"of {','.join(BACKENDS)}")
    cells.add_argument("--jobs", default="1,2", help="numbers of client threads and queues")
    cells.add_argument("--clients", default="eventfd,polling", help=f"of {','.join(CLIENTS)}")
    cells.add_argument("--depths", default="1,32,128", help="requests in flight per queue")
    cells.add_argument("--idle", nargs="?", type=float, const=10.0, metavar="SECONDS")
    cells.add_argument(
        "--scaling",
        action="store_true",
        help=f"vringd only: {SCALE_QUEUES} queues, {SCALE_CPU_NS} ns of CPU per request, "
        "1 and 2 IOThreads; the client (one sleeping thread per queue, "
        f"depth {SCALE_DEPTH}, batched) shares the two cores",
    )
    cells.add_argument("--cells", default="", metavar="PATTERN,...", help="'null/*/eventfd/1'")
    cells.add_argument("--list", action="store_true", help="print the cells' names and stop")
    run = parser.add_argument_group("run")
    run.add_argument("--rounds", type=int, default=3)
    run.add_argument("--seconds", type=float, default=2.5, help="measured time of a sample")
    run.add_argument("--retries", type=int, default=0, help="for a disturbed or moved sample")
    run.add_argument(
        "--settle",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="wait at most so long for the usual distance between the two cores",
    )
    run.add_argument("--nice", type=int, default=0, help="-20 keeps other programs away (root)")
    run.add_argument("--server-cpu", type=int, default=0)
    run.add_argument("--client-cpu", type=int, default=1)
    run.add_argument("--queue-size", type=int, default=0, help="descriptors (0: libblkio's own)")
    run.add_argument("--dir", type=Path, help="for sockets, logs and the raw file; kept")
    run.add_argument("--file-size", type=int, default=1 << 30, help="bytes of the raw file")
    run.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    return parser.parse_args(argv)


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(option: str, text: str) -> list[int]:
    try:
        values = [int(word) for word in words(text)]
    except ValueError:
        values = [0]
    if not values or min(values) < 1:
        raise UsageError(f"{option}: {text!r} is not a list of positive numbers")
    return values


def among(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    for word in words(text):
        if word not in allowed:
            raise UsageError(f"{option}: {word!r} is not one of {', '.join(allowed)}")
    return words(text)


def program(option: str, text: str) -> tuple[str, ...]:
    """The argument list in an option; raises `UsageError` when its program does not exist."""
    argv = tuple(shlex.split(text))
    if argv and shutil.which(argv[0]) is None:
        raise UsageError(f"{option}: there is no program {argv[0]!r}")
    return argv


def choose_cells(options: argparse.Namespace) -> list[Cell]:
    devices: list[Device] = [
        "scsi" if word == "scsi" else "blk" for word in among("--devices", options.devices, DEVICES)
    ]
    cells = matrix(
        devices,
        among("--backends", options.backends, BACKENDS),
        numbers("--jobs", options.jobs),
        among("--clients", options.clients, CLIENTS),
        numbers("--depths", options.depths),
        options.seconds,
    )
    if options.idle:
        cells.append(idle_cell(options.idle))
    if options.scaling:
        cells += scale_cells(devices, options.seconds)
    return select(cells, words(options.cells))


def choose_servers(options: argparse.Namespace) -> list[Family]:
    programs = dict(word.split("=", 1) for word in options.program if "=" in word)
    return [parse_server("--server", text, programs) for text in options.server or ["vringd"]]


def check(options: argparse.Namespace, cells: Sequence[Cell], programs: Programs) -> None:
    available = os.sched_getaffinity(0)
    for option, cpu in (("--server-cpu", options.server_cpu), ("--client-cpu", options.client_cpu)):
        if cpu not in available:
            raise UsageError(f"{option}: core {cpu} is not one of {sorted(available)}")
    if options.server_cpu == options.client_cpu:
        raise UsageError("--client-cpu: must be another core than --server-cpu")
    if not -20 <= options.nice <= 19 or (options.nice < 0 and os.geteuid() != 0):
        raise UsageError("--nice: from -20 to 19, and below 0 for root only")
    if programs.fio and any(cell.device != "blk" for cell in cells):
        raise UsageError("--fio: its engine drives virtio-blk only; leave out --devices scsi")
    if any(cell.client == "qemu-img" for cell in cells) and not programs.qemu_img:
        raise UsageError("--qemu-img: needed for the cells of that client")


def run(
    options: argparse.Namespace, families: Sequence[Family], cells: Sequence[Cell], bench: Bench
) -> Results:
    """Take all samples; Ctrl-C ends the run early with what there is."""
    results = Results()
    work = [
        Work(cell.name, family.name, partial(bench.take, cell, family))
        for cell in cells
        for family in families
        if why_not(family, cell, bench) is None
    ]

    def write() -> None:
        if options.json:
            write_json(options, cells, results)

    if not run_rounds(
        work, options.rounds, show, results, retries=options.retries, round_done=write
    ):
        print("interrupted", file=sys.stderr)
    write()
    return results


def why_not(family: Family, cell: Cell, bench: Bench) -> str | None:
    return family.why_not(cell.setup(bench.file, bench.server_cpu, bench.client_cpu))


def show(sample: Sample, done: int, total: int) -> None:
    print(tables.progress_line(sample, done, total), file=sys.stderr, flush=True)


def write_json(options: argparse.Namespace, cells: Sequence[Cell], results: Results) -> None:
    document = {
        "argv": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_host(),
        "cells": [cell.name for cell in cells],
        "samples": [sample.as_json() for sample in results.samples],
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


def omissions(families: Sequence[Family], cells: Sequence[Cell], bench: Bench) -> list[str]:
    """Why some servers have no number in some cells, one line per server and reason."""
    missing: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for family in families:
            reason = why_not(family, cell, bench)
            if reason:
                missing.setdefault((family.name, reason), []).append(cell.name)
    return [
        f"no {name} in {len(names)} cells ({names[0]}, ...): {reason}"
        for (name, reason), names in missing.items()
    ]


def print_report(
    options: argparse.Namespace,
    families: Sequence[Family],
    cells: Sequence[Cell],
    bench: Bench,
    results: Results,
) -> None:
    names = list(dict.fromkeys(family.name for family in families))
    references = options.reference or [name for name in names if name.startswith("vringd")]
    print(
        f"\n{describe_host()}; server on core {options.server_cpu}, client on "
        f"{options.client_cpu}, nice {options.nice}"
    )
    print(
        f"4k reads, {options.rounds} alternating rounds of {options.seconds:g} s: "
        "kIOPS median [min-max], µs of server CPU per request"
    )
    hops = [sample.hop_before for sample in results.samples if not sample.error]
    if hops:
        print(
            f"distance of the cores, there and back: {tables.spread(hops, '{:.0f}')} ns; samples "
            "away from the usual one ('moved') are left out where there are others"
        )
    loads = [cell.name for cell in cells if cell.kind == "load"]
    for lines in (
        tables.compare_table(results, loads, names, references),
        report.idle_table(results, cells, names),
        report.scale_table(results, cells, names),
        report.device_table(results, cells, names),
    ):
        if lines:
            print("\n" + "\n".join(lines))
    for line in omissions(families, cells, bench):
        print(line)
    for sample in results.failures():
        print(f"\nFAILED {sample.cell} {sample.server_name}: {sample.error}")


def main() -> int:
    options = parse_arguments()
    try:
        cells = choose_cells(options)
        if options.list:
            print("\n".join(cell.name for cell in cells))
            return 0
        programs = Programs(
            program("--fio", options.fio),
            program("--qemu-img", options.qemu_img),
            options.queue_size,
        )
        families = choose_servers(options)
        check(options, cells, programs)
        with tempfile.TemporaryDirectory(prefix="blkcmp-") as scratch:
            folder = (options.dir or Path(scratch)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            place = Place(folder, options.nice)
            cores = (options.server_cpu, options.client_cpu)
            bench = Bench(
                place, programs, Distance(*cores, options.settle), folder / "disk.raw", *cores
            )
            used = {cell.backend for cell in cells}
            if used & {"file", "direct"}:
                samples.create_file(bench.file, options.file_size, direct="direct" in used)
            first = cells[0].job(*cores, options.queue_size)
            print(
                "client:",
                shlex.join(client_argv(programs, cells[0], first, place.socket)),
                file=sys.stderr,
            )
            results = run(options, families, cells, bench)
    except UsageError as error:
        print(f"compare_blk.py: {error}", file=sys.stderr)
        return 2
    print_report(options, families, cells, bench, results)
    return 1 if results.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
