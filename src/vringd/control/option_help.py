"""Lists of all options, made from the schema: for `--export help` and for the manual."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from vringd.control.build import Kind
from vringd.control.fields import ListOf, Nested, Option, Variant, options_of
from vringd.control.schema import (
    FileOptions,
    IOThreadOptions,
    NullOptions,
    RawOptions,
    VhostUserBlkOptions,
    VhostUserScsiOptions,
)
from vringd.control.values import show

# What can stand behind --object, --blockdev and --export: heading, and the record.
SECTIONS: dict[Kind, dict[str, type[Any]]] = {
    "object": {"qom-type=iothread": IOThreadOptions},
    "blockdev": {
        "driver=file, driver=host_device": FileOptions,
        "driver=null-co, driver=null-aio": NullOptions,
        "driver=raw": RawOptions,
    },
    "export": {
        "type=vhost-user-blk": VhostUserBlkOptions,
        "type=vhost-user-scsi": VhostUserScsiOptions,
    },
}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One option: its whole name, its default (or `required`), and what it does."""

    name: str
    default: str
    help: str


def rows(record: type[Any], prefix: str = "") -> Iterator[Row]:
    """All options of a record, nested ones under their dotted names."""
    for known in options_of(record):
        name = f"{prefix}{known.name}"
        parse = known.parse
        if isinstance(parse, Nested):
            yield from rows(parse.record, f"{name}.")
        elif isinstance(parse, ListOf) and isinstance(parse.element, Nested):
            yield from rows(parse.element.record, f"{name}.N.")
        elif isinstance(parse, Variant):
            yield Row(f"{name}.{parse.key}", "required", " or ".join(parse.records))
            for which, inner in parse.records.items():
                for row in rows(inner, f"{name}."):
                    yield dataclasses.replace(row, help=f"{which}: {row.help}")
        else:
            yield Row(name, _default(known), known.help)


def show_kind(kind: Kind) -> str:
    """The text of `--KIND help`."""
    parts = []
    for heading, record in SECTIONS[kind].items():
        listing = list(rows(record))
        width = max(len(_assignment(row)) for row in listing)
        lines = [f"--{kind} {heading}"]
        for row in listing:
            left = f"  {_assignment(row):<{width}}  "
            lines.append(
                textwrap.fill(
                    row.help,
                    width=100,
                    initial_indent=left,
                    subsequent_indent=" " * len(left),
                    break_on_hyphens=False,
                )
            )
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _assignment(row: Row) -> str:
    return f"{row.name}={row.default}" if row.default != "required" else f"{row.name}=… (required)"


def _default(known: Option) -> str:
    if known.required:
        return "required"
    if known.default is None or known.default == () or known.default == "":
        return ""
    return show(known.default)
