"""What the command lines of all programs share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from vringd import __version__
from vringd.control.errors import VringdError
from vringd.control.values import Parser


class ArgumentParser(argparse.ArgumentParser):
    """Reports errors in one line, as `PROGRAM: error: …`, and exits with status 1."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        program = self.prog.split()[0]
        print(f"{program}: error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(1)


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-V",
        "--version",
        action="version",
        version=f"{parser.prog} {__version__}",
        help="show the version and exit",
    )


def value_type(parse: Parser[Any]) -> Callable[[str], Any]:
    """An argparse `type` from an option parser, keeping its message."""

    def convert(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{value}: {error}") from None

    return convert


def positive(text: str) -> int:
    """An argparse `type`: a number of 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a number of 1 or more")
    return int(text)


def guarded(program: str, run: Callable[[], int]) -> int:
    """Runs a command; a VringdError becomes one line on stderr and status 1."""
    try:
        return run()
    except VringdError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
