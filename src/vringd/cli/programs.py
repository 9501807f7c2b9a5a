"""Programs that follow QEMU's conventions for vhost-user back-ends.

A management tool finds such a program by its JSON file and starts it, for one device, with
`--socket-path` or `--fd` (vhost-user specification, "Backend program conventions").
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vringd.cli.arguments import ArgumentParser, add_version, guarded, value_type
from vringd.cli.logs import set_up_logging
from vringd.cli.running import run_daemon
from vringd.control.build import Definition, build
from vringd.control.errors import OptionError
from vringd.control.host import check_host
from vringd.control.schema import LOG_LEVELS, MAX_QUEUES, ServeOptions
from vringd.control.values import INT32_MAX, integer, thread_count

BLK_CAPABILITIES = {"type": "block", "features": ["read-only", "blk-file"]}
SCSI_CAPABILITIES: dict[str, Any] = {"type": "scsi", "features": []}


def blk_main(argv: Sequence[str] | None = None) -> int:
    """The program `vringd-blk`; returns its exit status."""
    return _main(argv, _blk_parser(), BLK_CAPABILITIES, blk_options)


def scsi_main(argv: Sequence[str] | None = None) -> int:
    """The program `vringd-scsi`; returns its exit status."""
    return _main(argv, _scsi_parser(), SCSI_CAPABILITIES, scsi_options)


def _main(
    argv: Sequence[str] | None,
    parser: ArgumentParser,
    capabilities: dict[str, Any],
    options_of: Callable[[argparse.Namespace], ServeOptions],
) -> int:
    def run() -> int:
        args = parser.parse_args(sys.argv[1:] if argv is None else argv)
        if args.print_capabilities:
            print(json.dumps(capabilities))
            return 0
        options = options_of(args)
        check_host(options)
        set_up_logging(parser.prog, args.log_level)
        run_daemon(options)
        return 0

    return guarded(parser.prog, run)


def blk_options(args: argparse.Namespace) -> ServeOptions:
    """The daemon that the command line describes. Raises OptionError."""
    address = _address(args)
    if args.blk_file is None:
        raise OptionError("a disk is missing: give --blk-file=PATH")
    export: dict[str, Any] = {
        "type": "vhost-user-blk",
        "id": "blk",
        "node-name": "disk",
        "writable": not args.read_only,
        **address,
    }
    return build(
        [
            Definition(
                "blockdev", _node(args, "disk", args.blk_file, args.read_only), "--blk-file"
            ),
            Definition("export", export, _socket_option(args)),
        ]
    )


def scsi_options(args: argparse.Namespace) -> ServeOptions:
    """The daemon that the command line describes. Raises OptionError."""
    address = _address(args)
    if not args.units:
        raise OptionError("a disk is missing: give --disk=PATH or --cdrom=PATH")
    definitions = []
    devices = []
    for number, (option, path) in enumerate(args.units):
        cdrom = option == "--cdrom"
        name = f"disk{number}"
        read_only = cdrom or args.read_only
        definitions.append(Definition("blockdev", _node(args, name, path, read_only), option))
        devices.append({"node-name": name, "cdrom": cdrom, "writable": not read_only})
    export: dict[str, Any] = {
        "type": "vhost-user-scsi",
        "id": "scsi",
        "devices": devices,
        **address,
    }
    return build([*definitions, Definition("export", export, _socket_option(args))])


def _socket_option(args: argparse.Namespace) -> str:
    return "--fd" if args.fd is not None else "--socket-path"


def _address(args: argparse.Namespace) -> dict[str, Any]:
    """Socket, queues and threads of the export."""
    if args.socket_path is not None and args.fd is not None:
        raise OptionError("--socket-path and --fd exclude each other; give one of the two")
    if args.socket_path is None and args.fd is None:
        raise OptionError("a socket is missing: give --socket-path=PATH or --fd=NUMBER")
    address = (
        {"type": "unix", "path": args.socket_path}
        if args.fd is None
        else {"type": "fd", "str": args.fd}
    )
    return {"addr": address, "num-queues": args.num_queues, "iothreads": args.iothreads}


def _node(args: argparse.Namespace, name: str, path: str, read_only: bool) -> dict[str, Any]:
    node: dict[str, Any] = {
        "driver": "host_device" if _is_block_device(path) else "file",
        "node-name": name,
        "filename": path,
        "read-only": read_only,
        "cache": {"direct": args.cache == "direct"},
        "discard": "ignore" if read_only else "unmap",
    }
    if args.aio is not None:
        node["aio"] = args.aio
    return node


def _blk_parser() -> ArgumentParser:
    parser = _parser(
        "vringd-blk", "Serves one disk to one virtual machine over vhost-user, until SIGTERM."
    )
    parser.add_argument("--blk-file", metavar="PATH", help="the disk: a file or a block device")
    _add_common(parser, MAX_QUEUES)
    return parser


class _Unit(argparse.Action):
    """Collects disks and drives in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.units = [*namespace.units, (self.option_strings[0], values)]


def _scsi_parser() -> ArgumentParser:
    parser = _parser(
        "vringd-scsi",
        "Serves SCSI disks and CD-ROMs to one virtual machine over vhost-user, until SIGTERM.\n"
        "Each is LUN 0 of a target of its own: 0, 1, 2, … in the order given.",
    )
    parser.set_defaults(units=[])
    parser.add_argument(
        "--disk", metavar="PATH", action=_Unit, help="a disk: a file or a block device; repeat it"
    )
    parser.add_argument("--cdrom", metavar="PATH", action=_Unit, help="a CD-ROM image; repeat it")
    _add_common(parser, MAX_QUEUES - 2)
    return parser


def _parser(prog: str, description: str) -> ArgumentParser:
    parser = ArgumentParser(prog=prog, description=description)
    add_version(parser)
    parser.add_argument("--socket-path", metavar="PATH", help="make a listening socket there")
    parser.add_argument(
        "--fd",
        metavar="NUMBER",
        type=value_type(integer(0, INT32_MAX)),
        help="use the socket that was passed down as this file descriptor",
    )
    return parser


def _add_common(parser: ArgumentParser, most_queues: int) -> None:
    parser.add_argument("--read-only", action="store_true", help="refuse writes")
    parser.add_argument(
        "--print-capabilities", action="store_true", help="describe the program as JSON and exit"
    )
    parser.add_argument(
        "--num-queues",
        metavar="N",
        type=value_type(integer(1, most_queues)),
        default=min(len(os.sched_getaffinity(0)), most_queues),
        help="queues the guest may use (default: one per CPU of this machine)",
    )
    parser.add_argument(
        "--iothreads",
        metavar="N|per-vq",
        type=value_type(thread_count),
        default=1,
        help="threads that serve the queues (default: 1)",
    )
    parser.add_argument(
        "--cache",
        choices=("direct", "writeback"),
        default="writeback",
        help="direct: bypass the page cache (default: writeback)",
    )
    parser.add_argument(
        "--aio",
        choices=("threads", "native", "io_uring"),
        help="how requests reach the kernel (default: the best that works)",
    )
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="how much is logged to stderr"
    )


def _is_block_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False  # check_host tells what is wrong with it
