"""`vringd serve`: the daemon, with qemu-storage-daemon's options."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from vringd.cli.arguments import ArgumentParser
from vringd.cli.detach import detach
from vringd.cli.logs import set_up_logging
from vringd.cli.running import run_daemon
from vringd.control import config
from vringd.control.build import Definition, Kind, build, from_argument
from vringd.control.errors import OptionError
from vringd.control.host import check_host
from vringd.control.option_help import show_kind
from vringd.control.schema import LOG_LEVELS

HELP = "serve disks to virtual machines"

_EXAMPLE = """\
example:
  vringd serve \\
    --object iothread,id=t0,cpu-affinity=2 --object iothread,id=t1,cpu-affinity=3 \\
    --blockdev driver=file,node-name=disk,filename=vm.img,cache.direct=on \\
    --export type=vhost-user-blk,id=e0,node-name=disk,writable=on,num-queues=4,\\
addr.type=unix,addr.path=/run/vm.sock,iothread.0=t0,iothread.1=t1
"""

# What qemu-storage-daemon has besides, with what to do instead.
_ABSENT = {
    "--monitor": "there is no QMP monitor; leave the option out",
    "--chardev": "there are no character devices; leave the option out",
    "--nbd-server": "there are no NBD exports; use an export of type vhost-user-blk",
    "--trace": "there are no trace points; use --log-level debug",
}


class _Absent(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        raise OptionError(f"{option_string} {values}: {_ABSENT[self.option_strings[-1]]}")


def add_parser(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help=HELP,
        description="Serves disks to virtual machines over vhost-user.\n\n"
        "Options have QEMU's syntax, key=value,… or JSON. Give `help` in place of a\n"
        "DEFINITION to see all that it may hold.",
        epilog=_EXAMPLE,
    )
    for kind, text in (
        ("object", "an IOThread: iothread,id=ID[,cpu-affinity=CPUS][,…]"),
        ("blockdev", "a disk: driver=file|host_device|null-co,node-name=NAME[,…]"),
        (
            "export",
            "a device: vhost-user-blk,id=ID,node-name=NAME,addr.type=unix,addr.path=PATH[,…]",
        ),
    ):
        parser.add_argument(
            f"--{kind}", action="append", default=[], metavar="DEFINITION", help=text
        )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file with more of these, as tables [[object]], [[blockdev]], [[export]]",
    )
    parser.add_argument(
        "--pidfile", metavar="FILE", help="write the process id there while sockets exist"
    )
    parser.add_argument(
        "--daemonize", action="store_true", help="go to the background once sockets exist"
    )
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, help="how much is logged to stderr (default: info)"
    )
    for name in _ABSENT:
        short = ["-T"] if name == "--trace" else []
        parser.add_argument(*short, name, action=_Absent, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal. Raises VringdError before any socket exists, or at start."""
    arguments: dict[Kind, list[str]] = {
        "object": args.object,
        "blockdev": args.blockdev,
        "export": args.export,
    }
    for kind, given in arguments.items():
        if "help" in given:
            sys.stdout.write(show_kind(kind))
            return 0
    configs = [config.load(path) for path in args.config]
    definitions: list[Definition] = [
        *(definition for each in configs for definition in each.definitions()),
        *(from_argument(kind, text) for kind, given in arguments.items() for text in given),
    ]
    options = build(definitions)
    if not options.exports:
        raise OptionError("nothing to serve: give at least one --export (see vringd serve --help)")
    check_host(options)

    pidfile = args.pidfile
    level = args.log_level
    for each in reversed(configs):
        pidfile = pidfile or each.pidfile
        level = level or each.log_level
    set_up_logging("vringd", level or "info")
    when_ready = detach() if args.daemonize else lambda: None
    run_daemon(options, pidfile=pidfile, when_ready=when_ready)
    return 0
