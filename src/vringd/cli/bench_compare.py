"""`vringd bench compare`: servers side by side, in turn, with one and the same load."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from vringd.bench import jobfile
from vringd.bench.errors import BenchError
from vringd.bench.lab import tables
from vringd.bench.lab.distance import Distance
from vringd.bench.lab.families import parse_server
from vringd.bench.lab.host import describe_host, look_at_host
from vringd.bench.lab.load import Job
from vringd.bench.lab.rounds import Results, Work, run_rounds
from vringd.bench.lab.samples import take
from vringd.bench.lab.setup import NULL_DISK, Cpus, Disk, Setup, cpu_list
from vringd.cli import lab_options
from vringd.cli.arguments import ArgumentParser, positive
from vringd.control.errors import OptionError, VringdError

_CELL = "load"
_DEFAULT_JOB = (
    "--name=randread",
    "--rw=randread",
    "--bs=4k",
    "--norandommap",
    "--iodepth=32",
    "--iodepth_batch_submit=32",
    "--time_based",
    "--ramp_time=400ms",
    "--runtime=2",
)


def add_parser(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench compare",
        help="measure several servers side by side",
        description="Starts each server in turn, round by round, with the same disk, the same\n"
        "CPUs and the same load, and shows medians, their spread and ratios.",
        epilog=f"""{lab_options.SERVERS_HELP}
examples:
  vringd bench compare --peer qemu-storage-daemon
  vringd bench compare --peer vringd:poll-max-ns=0 --rw=randwrite --iodepth=8 \\
    --time_based --runtime=5 --disk driver=file,filename=/tmp/disk.img
""",
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="SERVER", help="compare with; repeat it"
    )
    parser.add_argument(
        "--server", default="vringd", help="what is compared with the peers; default: vringd"
    )
    lab_options.add_program(parser)
    parser.add_argument(
        "--disk", default=NULL_DISK, metavar="OPTIONS", help=f"as --blockdev; default: {NULL_DISK}"
    )
    parser.add_argument(
        "--device", choices=("blk", "scsi"), default="blk", help="what is served; default: blk"
    )
    parser.add_argument("--queues", type=positive, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--queue-size", type=positive, default=256, metavar="N", help="default: 256"
    )
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="IOThreads")
    parser.add_argument("--wait", choices=("eventfd", "polling"), default="eventfd")
    parser.add_argument(
        "--server-cpus", metavar="LIST", help="default: the first, as many as IOThreads"
    )
    parser.add_argument("--client-cpus", metavar="LIST", help="default: all others")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--retries", type=int, default=1, metavar="N", help="for a disturbed sample; default: 1"
    )
    lab_options.add_place(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument(
        "jobs",
        nargs="*",
        type=Path,
        metavar="JOBFILE",
        help="and fio's words; default: " + " ".join(_DEFAULT_JOB[1:]),
    )
    parser.set_defaults(takes_rest=True)


def run(args: argparse.Namespace) -> int:
    """The command; returns its exit status. Raises VringdError."""
    try:
        return _compare(args)
    except BenchError as error:
        raise VringdError(str(error)) from None


def _compare(args: argparse.Namespace) -> int:
    programs = lab_options.programs(args.program)
    families = [parse_server("--server", args.server, programs)]
    families += [parse_server("--peer", text, programs) for text in args.peer]
    names = [family.name for family in families]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"--peer {name}: is measured already; give it a name: NAME=COMMAND")
    server_cpus, client_cpus = _placement(args)
    setup = Setup(
        Disk(args.disk),
        args.queues,
        args.threads,
        server_cpus,
        tuple((cpu,) for cpu in server_cpus[: args.threads])
        if len(server_cpus) >= args.threads > 1
        else (),
        args.device,
    )
    job = Job(_words(args), args.wait, args.queue_size, cpus=client_cpus)
    job.specs()
    for family in families:
        reason = family.why_not(setup)
        if reason:
            raise VringdError(f"{family.name} cannot serve this: {reason}")
    results = Results()
    with lab_options.place(args.keep, args.nice) as place:
        distance = _distance(server_cpus, client_cpus)
        work = [
            Work(
                _CELL,
                family.name,
                partial(
                    take, _CELL, family=family, setup=setup, job=job, place=place, distance=distance
                ),
            )
            for family in families
        ]
        finished = run_rounds(work, args.rounds, lab_options.show, results, retries=args.retries)
    host = look_at_host()
    print(
        f"{describe_host(host)}; servers on CPU {cpu_list(server_cpus)}, load on"
        f" {cpu_list(client_cpus)}\n{args.rounds} alternating rounds: kIOPS median [min-max],"
        " µs of server CPU per request\n"
    )
    print("\n".join(tables.compare_table(results, [_CELL], names, names[:1])))
    for failure in results.failures():
        print(f"\n{failure.server_name} FAILED: {failure.error}")
    if args.json is not None:
        document = {
            "argv": sys.argv,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "host": host.as_json(),
            "job": job.words,
            "disk": args.disk,
            "samples": [sample.as_json() for sample in results.samples],
        }
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if not finished:
        return 130
    return 1 if results.failures() else 0


def _placement(args: argparse.Namespace) -> tuple[Cpus, Cpus]:
    """CPUs of the servers and of the load: apart, if there are enough."""
    available = tuple(sorted(os.sched_getaffinity(0)))
    server = lab_options.cpus("--server-cpus", args.server_cpus)
    client = lab_options.cpus("--client-cpus", args.client_cpus)
    if server is None:
        free = [cpu for cpu in available if cpu not in (client or ())]
        count = min(args.threads, max(1, len(free) - (client is None)))
        server = tuple(free[:count]) or available
    if client is None:
        client = tuple(cpu for cpu in available if cpu not in server) or available
    shared = sorted({*server} & {*client})
    if shared:
        print(
            f"note: servers and load share CPU {cpu_list(tuple(shared))}: what one takes, the"
            " other lacks",
            file=sys.stderr,
        )
    return server, client


def _distance(server: Cpus, client: Cpus) -> Distance | None:
    return Distance(server[0], client[0], 2.0) if server[0] != client[0] else None


def _words(args: argparse.Namespace) -> tuple[str, ...]:
    words = []
    for path in args.jobs:
        for name, options in jobfile.read_file(path):
            words.append(f"--name={name}")
            words += [f"--{key}={value}" if value else f"--{key}" for key, value in options.items()]
    return (*words, *args.rest) or _DEFAULT_JOB
