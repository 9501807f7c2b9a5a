"""Configuration files: the same objects as on the command line, as TOML tables.

log-level = "info"
[[object]]
qom-type = "iothread"
id = "t0"
[[blockdev]]
driver = "null-co"
node-name = "n0"
[[export]]
type = "vhost-user-blk"
…
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from vringd.control.build import Definition, Kind, define
from vringd.control.errors import OptionError, ResourceError, describe
from vringd.control.fields import option, read, record
from vringd.control.schema import LOG_LEVELS
from vringd.control.values import choice, text

_KINDS: tuple[Kind, ...] = ("object", "blockdev", "export")


def _tables(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ValueError("expected a table for each one, with its name in double brackets")
    return tuple(value)


@record
class Config:
    """A configuration file, its definitions not yet read."""

    object: tuple[dict[str, Any], ...] = option(_tables, default=(), help="[[object]]")
    blockdev: tuple[dict[str, Any], ...] = option(_tables, default=(), help="[[blockdev]]")
    export: tuple[dict[str, Any], ...] = option(_tables, default=(), help="[[export]]")
    pidfile: str | None = option(text, default=None, help="file for the process id")
    log_level: str | None = option(choice(*LOG_LEVELS), default=None, help="how much is logged")
    path: str = ""

    def definitions(self) -> Iterator[Definition]:
        """Its objects, block nodes and exports."""
        for kind in _KINDS:
            for table in getattr(self, kind):
                yield define(kind, table, f"{self.path}: [[{kind}]]")


def load(path: str) -> Config:
    """Reads a file. Raises ResourceError (it cannot be read) and OptionError (its content)."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ResourceError(f"--config {path}: {describe(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"--config {path}: {error}") from None
    return parse(content, path)


def parse(content: dict[str, Any], path: str) -> Config:
    """Sorts the parsed content of the file `path`. Raises OptionError."""
    try:
        return read(Config, content, path=path)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None
