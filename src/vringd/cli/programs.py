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
from collections.abc import Sequence
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


def blk_main(argv: Sequence[str] | None = None) -> int:
    """The program `vringd-blk`; returns its exit status."""
    return guarded("vringd-blk", lambda: _run_blk(sys.argv[1:] if argv is None else argv))


def _run_blk(argv: Sequence[str]) -> int:
    args = _blk_parser().parse_args(argv)
    if args.print_capabilities:
        print(json.dumps(BLK_CAPABILITIES))
        return 0
    options = blk_options(args)
    check_host(options)
    set_up_logging("vringd-blk", args.log_level)
    run_daemon(options)
    return 0


def blk_options(args: argparse.Namespace) -> ServeOptions:
    """The daemon that the command line describes. Raises OptionError."""
    if args.socket_path is not None and args.fd is not None:
        raise OptionError("--socket-path and --fd exclude each other; give one of the two")
    if args.socket_path is None and args.fd is None:
        raise OptionError("a socket is missing: give --socket-path=PATH or --fd=NUMBER")
    if args.blk_file is None:
        raise OptionError("a disk is missing: give --blk-file=PATH")
    node: dict[str, Any] = {
        "driver": "host_device" if _is_block_device(args.blk_file) else "file",
        "node-name": "disk",
        "filename": args.blk_file,
        "read-only": args.read_only,
        "cache": {"direct": args.cache == "direct"},
        "discard": "ignore" if args.read_only else "unmap",
    }
    if args.aio is not None:
        node["aio"] = args.aio
    address: dict[str, Any] = (
        {"type": "unix", "path": args.socket_path}
        if args.fd is None
        else {"type": "fd", "str": args.fd}
    )
    export: dict[str, Any] = {
        "type": "vhost-user-blk",
        "id": "blk",
        "node-name": "disk",
        "addr": address,
        "writable": not args.read_only,
        "num-queues": args.num_queues,
        "iothreads": args.iothreads,
    }
    return build(
        [
            Definition("blockdev", node, "--blk-file"),
            Definition("export", export, "--fd" if args.fd is not None else "--socket-path"),
        ]
    )


def _blk_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="vringd-blk",
        description="Serves one disk to one virtual machine over vhost-user, until SIGTERM.",
    )
    add_version(parser)
    parser.add_argument("--socket-path", metavar="PATH", help="make a listening socket there")
    parser.add_argument(
        "--fd",
        metavar="NUMBER",
        type=value_type(integer(0, INT32_MAX)),
        help="use the socket that was passed down as this file descriptor",
    )
    parser.add_argument("--blk-file", metavar="PATH", help="the disk: a file or a block device")
    parser.add_argument("--read-only", action="store_true", help="refuse writes")
    parser.add_argument(
        "--print-capabilities", action="store_true", help="describe the program as JSON and exit"
    )
    parser.add_argument(
        "--num-queues",
        metavar="N",
        type=value_type(integer(1, MAX_QUEUES)),
        default=min(len(os.sched_getaffinity(0)), MAX_QUEUES),
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
    return parser


def _is_block_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False  # check_host tells what is wrong with it
