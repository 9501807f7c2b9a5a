"""`vringd bench`: fio's job language against any vhost-user-blk or -scsi server, without a VM."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from vringd.bench import jobfile, report_json, report_text, values
from vringd.bench.errors import BenchError, JobOptionError, VerifyError
from vringd.bench.options import make_job
from vringd.bench.runner import Progress, run_jobs
from vringd.bench.spec import JobSpec
from vringd.bench.target import Target
from vringd.cli.arguments import ArgumentParser, positive
from vringd.control.errors import OptionError, VringdError

HELP = "measure a vhost-user server, or check that it keeps data"

_EXAMPLE = """\
examples:
  vringd bench --socket /run/vm.sock --rw=randread --iodepth=32 --runtime=10 --time_based
  vringd bench --socket /run/vm.sock --queues 4 --wait polling job.fio
"""


def add_parser(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help=HELP,
        description="Runs jobs against a vhost-user-blk or -scsi server, as a guest with\n"
        "many queues would.\n\n"
        "Jobs are written in fio's language: in job files, or as words such as --rw=randread.",
        epilog=_EXAMPLE,
    )
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--socket", type=Path, help="the server's socket")
    server.add_argument(
        "--echo",
        nargs="?",
        const="",
        metavar="CPUS",
        help="no server but a thread that completes at once, on these CPUs: what the load"
        " generator itself can do",
    )
    parser.add_argument(
        "--device",
        choices=("blk", "scsi"),
        default="blk",
        help="what the server is: virtio-blk (default) or virtio-scsi",
    )
    parser.add_argument(
        "--lun",
        type=_unit,
        default=(0, 0),
        metavar="TARGET:LUN",
        help="the disk of a virtio-scsi device; default: 0:0",
    )
    parser.add_argument(
        "--queues", type=positive, metavar="N", help="virtqueues; default: one for each job"
    )
    parser.add_argument(
        "--queue-size",
        type=positive,
        default=256,
        metavar="N",
        help="entries of each; default: 256",
    )
    parser.add_argument(
        "--wait",
        choices=("eventfd", "polling"),
        default="eventfd",
        help="how jobs wait: asleep until they are signalled (default), or spinning",
    )
    parser.add_argument(
        "--sharing",
        choices=("blk-mq", "round-robin"),
        default="blk-mq",
        help="the queue of a job when there are fewer: as Linux maps CPUs (default), in turn",
    )
    parser.add_argument("--packed", action="store_true", help="packed rings")
    parser.add_argument("--no-event-idx", action="store_true", help="do not use VIRTIO_F_EVENT_IDX")
    parser.add_argument(
        "--watchdog",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds without a completion after which the server counts as stalled; default: 10",
    )
    parser.add_argument(
        "--output-format",
        choices=("normal", "json", "normal,json", "json,normal"),
        default="normal",
        help="text (default), fio's JSON, or both",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--eta",
        choices=("auto", "always", "never"),
        default="auto",
        help="the progress line: on a terminal (default), always, or never",
    )
    parser.add_argument(
        "jobs", nargs="*", type=Path, metavar="JOBFILE", help="and fio's words, such as --rw=read"
    )
    parser.set_defaults(takes_rest=True)


def run(args: argparse.Namespace) -> int:
    """The command; returns its exit status. Raises VringdError."""
    jobs, shared = _jobs(args.jobs, args.rest)
    target = Target(
        None if args.socket is None else args.socket.absolute(),
        num_queues=args.queues,
        queue_size=args.queue_size,
        packed=args.packed,
        event_idx=not args.no_event_idx,
        wait=args.wait,
        sharing=args.sharing,
        echo_cpus=_cpus(args.echo),
        kind=args.device,
        scsi_unit=args.lun,
    )
    shown = args.eta == "always" or (args.eta == "auto" and sys.stderr.isatty())
    try:
        result = run_jobs(target, jobs, progress=_show if shown else None, watchdog=args.watchdog)
    except JobOptionError as error:
        raise OptionError(str(error)) from None
    except VerifyError as error:
        raise VringdError(str(error)) from None
    except BenchError as error:
        raise VringdError(str(error)) from None
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    texts = []
    if "normal" in args.output_format:
        texts.append(report_text.report(result))
    if "json" in args.output_format:
        extra = {
            "target": {**vars(target), "socket": target.socket and str(target.socket)},
            "argv": sys.argv,
        }
        texts.append(json.dumps(report_json.report(result, shared, extra), indent=2) + "\n")
    if args.output is None:
        sys.stdout.write("".join(texts))
    else:
        args.output.write_text("".join(texts))
    return 130 if result.interrupted else 0


def _jobs(files: list[Path], words: list[str]) -> tuple[list[JobSpec], dict[str, str]]:
    try:
        sections = [section for path in files for section in jobfile.read_file(path)]
        sections += jobfile.read_words(words)
        if not sections:
            raise JobOptionError("no job: name a job file, or give options such as --rw=randread")
        jobs = []
        ignored: set[str] = set()
        for name, options in sections:
            job, skipped = make_job(name, options)
            jobs.append(job)
            ignored.update(skipped)
    except JobOptionError as error:
        raise OptionError(str(error)) from None
    if ignored:
        print(f"note: without effect here: {', '.join(sorted(ignored))}", file=sys.stderr)
    return jobs, {}


def _cpus(text: str | None) -> tuple[int, ...]:
    try:
        return values.cpus(text) if text else ()
    except ValueError as error:
        raise OptionError(f"--echo {text}: {error}") from None


def _unit(text: str) -> tuple[int, int]:
    target, _, lun = text.rpartition(":")
    if not (target or "0").isdigit() or not lun.isdigit():
        raise argparse.ArgumentTypeError(f"{text}: not TARGET:LUN")
    found = int(target or 0), int(lun)
    if found[0] > 255 or found[1] > 16383:
        raise argparse.ArgumentTypeError(f"{text}: targets go to 255, LUNs to 16383")
    return found


def _show(progress: Progress) -> None:
    left = "??" if progress.remaining is None else f"{progress.remaining:.0f}"
    verifying = " verifying" if progress.verifying else ""
    print(
        f"\r\033[KJobs: {progress.running}{verifying} [{report_text.short(progress.iops)} IOPS]"
        f" [{progress.elapsed:.0f} s, eta {left} s]",
        end="",
        file=sys.stderr,
        flush=True,
    )
