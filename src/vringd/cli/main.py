"""`vringd COMMAND`: finds the command's module and leaves the rest to it.

A command `x` is the module `vringd.cli.x`, and `x y` is `vringd.cli.x_y`, with
`add_parser(subparsers)` and `run(args) -> int`; only the module of the command that was typed is
imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

from vringd.cli.arguments import ArgumentParser, add_version, guarded

_COMMANDS = {
    "serve": "serve disks to virtual machines",
    "demo": "boot a small virtual machine from a served disk",
    "bench": "measure a vhost-user server, or check that it keeps data",
    "bench compare": "measure several servers side by side",
    "bench experiment": "run a published experiment and show its table beside the measured one",
    "bench predict": "what the machine at hand says of one with more CPUs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The program `vringd`; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded("vringd", lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    parser = ArgumentParser(
        prog="vringd", description="A storage daemon for virtual machines, over vhost-user."
    )
    add_version(parser)
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=ArgumentParser)
    if " ".join(arguments[:2]) in _COMMANDS:
        arguments = [" ".join(arguments[:2]), *arguments[2:]]
    # Nothing that may stand before the command takes an argument.
    typed = next((word for word in arguments if not word.startswith("-")), None)
    module = None
    for name, text in _COMMANDS.items():
        path = f"vringd.cli.{name.replace(' ', '_')}"
        if importlib.util.find_spec(path) is None:
            continue
        if name == typed:
            module = importlib.import_module(path)
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text)
    args, rest = parser.parse_known_args(arguments)
    if rest and not getattr(args, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if module is None:
        parser.error("a command is missing")
    args.rest = rest
    status: int = module.run(args)
    return status
