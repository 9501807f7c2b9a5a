#!/usr/bin/env python3
"""Measure vhost-user-blk servers side by side, without a VM, and print a table.

The client is ``vringd bench``, or fio's libblkio engine or ``qemu-img bench`` if asked for.
Every sample starts a fresh server pinned to one core and a client pinned to another. The rounds
alternate the servers cell by cell (A B C A B C ...), so that a slow minute of the machine
hits all of them; the table gives the median of the rounds with min-max.

    compare_blk.py --vringd .venv/bin/vringd --qsd qemu-storage-daemon \\
        --spdk-vhost /opt/spdk/bin/vhost --variant vringd-nopoll --rounds 3 --json samples.json

A program's option takes an argument list (``--qsd 'taskset -c 0 qemu-storage-daemon'``); a
wrapper must ``exec`` the program or stay its parent. Without ``--cells`` the matrix is
null back-end x jobs {1,2} x {eventfd, polling} x depth {1,32,128}, 4k random reads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from blkcmp import report, samples
from blkcmp.cells import (
    BACKENDS,
    CLIENTS,
    SCALE_CPU_NS,
    SCALE_DEPTH,
    SCALE_QUEUES,
    Cell,
    idle_cell,
    matrix,
    scale_cells,
    select,
)
from blkcmp.clients import Programs, fio_argv
from blkcmp.errors import UsageError
from blkcmp.hops import Distance
from blkcmp.report import Results
from blkcmp.samples import Sample
from blkcmp.servers import Place, Spec, parse_template, parse_variant

_TEMPLATES = """\
A template's placeholders: {socket}, {queues} (virtqueues), {file} (the raw file), {direct}
(on or off), {size} (bytes of the null disk), {cpu} (the server's core). With {file} it
serves the cells of the file and direct back-ends, without it those of the null back-end.
"""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_TEMPLATES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = parser.add_argument_group("programs")
    programs.add_argument(
        "--fio", default="", help="fio with the libblkio engine, to use it in place of vringd bench"
    )
    programs.add_argument("--qemu-img", default="", help="for the cells of that client")
    programs.add_argument("--vringd", default="", help="default: vringd, if it is on PATH")
    programs.add_argument("--qsd", default="", help="qemu-storage-daemon")
    programs.add_argument("--spdk-vhost", default="", help="SPDK's vhost target; --no-huge works")
    servers = parser.add_argument_group("servers (default: those whose program is given)")
    servers.add_argument("--servers", default="", metavar="A,B", help="built-in ones, in order")
    servers.add_argument(
        *("--variant", "-V"),
        action="append",
        default=[],
        metavar="NAME[:OPTIONS]",
        help="one more built-in server: vringd-nopoll, qsd-nopoll, vringd-p8:poll-max-ns=8000",
    )
    servers.add_argument(
        *("--server", "-S"),
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a server of your own, as a template (see below)",
    )
    servers.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="NAME",
        help="ratios are of this server over the others (default: each named vringd...)",
    )
    cells = parser.add_argument_group("cells")
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
    cells = matrix(
        among("--backends", options.backends, BACKENDS),
        numbers("--jobs", options.jobs),
        among("--clients", options.clients, CLIENTS),
        numbers("--depths", options.depths),
        options.seconds,
    )
    if options.idle:
        cells.append(idle_cell(options.idle))
    if options.scaling:
        cells += scale_cells(options.seconds)
    return select(cells, words(options.cells))


def choose_servers(options: argparse.Namespace) -> list[Spec]:
    vringd = options.vringd or ("vringd" if shutil.which("vringd") else "")
    programs = {
        "vringd": program("--vringd", vringd),
        "qsd": program("--qsd", options.qsd),
        "spdk": program("--spdk-vhost", options.spdk_vhost),
    }
    names = words(options.servers) or [name for name, argv in programs.items() if argv]
    specs = [parse_variant(name, programs) for name in [*names, *options.variant]]
    specs += [parse_template(text) for text in options.server]
    if not specs:
        raise UsageError("no servers: give --vringd, --qsd, --spdk-vhost or --server")
    return specs


def check(options: argparse.Namespace, cells: Sequence[Cell], programs: Programs) -> None:
    available = os.sched_getaffinity(0)
    for option, cpu in (("--server-cpu", options.server_cpu), ("--client-cpu", options.client_cpu)):
        if cpu not in available:
            raise UsageError(f"{option}: core {cpu} is not one of {sorted(available)}")
    if options.server_cpu == options.client_cpu:
        raise UsageError("--client-cpu: must be another core than --server-cpu")
    if not -20 <= options.nice <= 19 or (options.nice < 0 and os.geteuid() != 0):
        raise UsageError("--nice: from -20 to 19, and below 0 for root only")
    if any(cell.client == "qemu-img" for cell in cells) and not programs.qemu_img:
        raise UsageError("--qemu-img: needed for the cells of that client")


def run(
    options: argparse.Namespace,
    specs: Sequence[Spec],
    cells: Sequence[Cell],
    place: Place,
    programs: Programs,
) -> Results:
    """Take all samples; Ctrl-C ends the run early with what there is."""
    results = Results()
    distance = Distance(place.server_cpu, place.client_cpu, options.settle)
    pairs = [[spec for spec in specs if spec.why_not(cell) is None] for cell in cells]
    total = options.rounds * sum(map(len, pairs))
    try:
        for number in range(1, options.rounds + 1):
            for cell, fitting in zip(cells, pairs, strict=True):
                for spec in fitting:
                    done = len(results.samples) + 1
                    if not results.failed(cell, spec.name):
                        sample = take(options, spec, cell, number, place, programs, distance)
                        results.samples.append(sample)
                        progress(sample, done, total)
            if options.json:
                write_json(options, cells, results)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    if options.json:
        write_json(options, cells, results)
    return results


def take(
    options: argparse.Namespace,
    spec: Spec,
    cell: Cell,
    number: int,
    place: Place,
    programs: Programs,
    distance: Distance,
) -> Sample:
    """A sample; a disturbed one is taken again, and the least disturbed one kept."""
    best = samples.take(spec, cell, number, place, programs, distance)
    for _ in range(options.retries):
        if best.error or best.disturbance <= report.NOISY:
            break
        again = samples.take(spec, cell, number, place, programs, distance)
        if again.error or again.disturbance < best.disturbance:
            best = again
    return best


def progress(sample: Sample, done: int, total: int) -> None:
    if sample.error:
        text = f"FAILED: {sample.error}"
    elif not sample.requests:
        text = f"idle: {100 * sample.server:.3f} % of a core"
    else:
        text = (
            f"{sample.iops / 1000:8.1f} kIOPS  {sample.cpu_us:6.2f} µs  "
            f"server {sample.server:.2f} client {sample.client:.2f} other {sample.foreign:.2f}  "
            f"hop {sample.hop_before:.0f}-{sample.hop_after:.0f} ns{' MOVED' * sample.moved}"
        )
    print(
        f"[{done}/{total}] {sample.cell:22} {sample.server_name:14} {text}",
        file=sys.stderr,
        flush=True,
    )


def write_json(options: argparse.Namespace, cells: Sequence[Cell], results: Results) -> None:
    document = {
        "argv": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine(),
        "cells": [cell.name for cell in cells],
        "samples": [sample.as_json() for sample in results.samples],
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> str:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"Linux {platform.release()}, {os.cpu_count()} x {model}"


def omissions(specs: Sequence[Spec], cells: Sequence[Cell]) -> list[str]:
    """Why some servers have no number in some cells, one line per server and reason."""
    missing: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        served = {spec.name for spec in specs if spec.why_not(cell) is None}
        for spec in specs:
            reason = spec.why_not(cell)
            if reason and spec.name not in served:
                missing.setdefault((spec.name, reason), []).append(cell.name)
    return [
        f"no {name} in {len(names)} cells ({names[0]}, ...): {reason}"
        for (name, reason), names in missing.items()
    ]


def print_report(
    options: argparse.Namespace, specs: Sequence[Spec], cells: Sequence[Cell], results: Results
) -> None:
    names = list(dict.fromkeys(spec.name for spec in specs))
    references = options.reference or [name for name in names if name.startswith("vringd")]
    print(
        f"\n{machine()}; server on core {options.server_cpu}, client on {options.client_cpu}, "
        f"nice {options.nice}"
    )
    print(
        f"4k reads, {options.rounds} alternating rounds of {options.seconds:g} s: "
        "kIOPS median [min-max], µs of server CPU per request"
    )
    hops = [sample.hop_before for sample in results.samples if not sample.error]
    if hops:
        print(
            f"distance of the cores, there and back: {report.spread(hops, '{:.0f}')} ns; samples "
            "away from the usual one ('moved') are left out where there are others"
        )
    tables = (
        report.load_table(results, cells, names, references),
        report.idle_table(results, cells, names),
        report.scale_table(results, cells, names),
    )
    for lines in tables:
        if lines:
            print("\n" + "\n".join(lines))
    for line in omissions(specs, cells):
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
        bench = () if options.fio else program("--vringd", options.vringd or "vringd")
        programs = Programs(
            program("--fio", options.fio),
            program("--qemu-img", options.qemu_img),
            options.queue_size,
            bench,
        )
        specs = choose_servers(options)
        check(options, cells, programs)
        with tempfile.TemporaryDirectory(prefix="blkcmp-") as scratch:
            folder = (options.dir or Path(scratch)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            place = Place(
                folder,
                folder / "disk.raw",
                1 << 30,
                options.server_cpu,
                options.client_cpu,
                options.nice,
            )
            place.check()
            used = {cell.backend for cell in cells}
            if used & {"file", "direct"}:
                samples.create_file(place.file, options.file_size, direct="direct" in used)
            print(
                "client:", shlex.join(fio_argv(programs, cells[0], place.socket)), file=sys.stderr
            )
            results = run(options, specs, cells, place, programs)
    except UsageError as error:
        print(f"compare_blk.py: {error}", file=sys.stderr)
        return 2
    print_report(options, specs, cells, results)
    return 1 if results.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
