"""From option arguments and configuration files to one checked `ServeOptions`.

A Definition is one `--object`, `--blockdev` or `--export`, wherever it was written. Order
does not matter: everything is read first and compared afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from vringd.control import keyval
from vringd.control.checks import check
from vringd.control.errors import OptionError
from vringd.control.fields import read
from vringd.control.nodes import Node, read_node, resolve
from vringd.control.schema import (
    ExportOptions,
    IOThreadOptions,
    ServeOptions,
    VhostUserBlkOptions,
    VhostUserScsiOptions,
)
from vringd.control.values import show

T = TypeVar("T")
Kind = Literal["object", "blockdev", "export"]

# The key that names the class of a definition, implied in front of key=value pairs, and
# the key that names the definition itself.
_CLASS_KEY: dict[Kind, str] = {"object": "qom-type", "blockdev": "driver", "export": "type"}
_NAME_KEY: dict[Kind, str] = {"object": "id", "blockdev": "node-name", "export": "id"}


@dataclasses.dataclass(frozen=True)
class Definition:
    """One object, block node or export, not yet read; `origin` is its name in messages."""

    kind: Kind
    values: dict[str, Any]
    origin: str


def define(kind: Kind, values: dict[str, Any], where: str) -> Definition:
    """A definition that stands at `where`; its origin is like `--export id=e0`."""
    class_key, name_key = _CLASS_KEY[kind], _NAME_KEY[kind]
    class_name, name = values.get(class_key), values.get(name_key)
    origin = where
    if isinstance(name, str):
        prefix = f"{class_name}," if kind == "object" and class_name else ""
        origin = f"{where} {prefix}{name_key}={name}"
    elif isinstance(class_name, str):
        origin = f"{where} {class_key}={class_name}"
    return Definition(kind, values, origin)


def from_argument(kind: Kind, argument: str) -> Definition:
    """Reads the argument of `--object`, `--blockdev` or `--export`. Raises OptionError."""
    try:
        values = keyval.parse(argument, implied_key=_CLASS_KEY[kind])
    except OptionError as error:
        raise OptionError(f"--{kind} {argument}: {error}") from None
    return define(kind, values, f"--{kind}")


def build(definitions: Iterable[Definition]) -> ServeOptions:
    """Reads, resolves and compares all definitions. Raises OptionError for the first fault.

    Looks at nothing outside its argument: files, CPUs and sockets are `host`'s business.
    """
    iothreads: list[IOThreadOptions] = []
    nodes: list[Node] = []
    exports: list[ExportOptions] = []
    for definition in definitions:
        try:
            if definition.kind == "object":
                iothreads.append(_read_object(definition))
            elif definition.kind == "blockdev":
                nodes.append(read_node(definition.values, definition.origin))
            else:
                exports.append(_read_export(definition))
        except OptionError as error:
            raise OptionError(f"{definition.origin}: {error}") from None
    blockdevs, merged = resolve(nodes)
    options = ServeOptions(iothreads=tuple(iothreads), blockdevs=blockdevs, exports=tuple(exports))
    check(options, merged)
    return options


_OBJECTS: dict[str, type[IOThreadOptions]] = {"iothread": IOThreadOptions}
_EXPORTS: dict[str, type[VhostUserBlkOptions] | type[VhostUserScsiOptions]] = {
    "vhost-user-blk": VhostUserBlkOptions,
    "vhost-user-scsi": VhostUserScsiOptions,
}


def _read_object(definition: Definition) -> IOThreadOptions:
    record, values = _take_class(definition, "object type", _OBJECTS)
    return read(record, values, origin=definition.origin)


def _read_export(definition: Definition) -> ExportOptions:
    record, values = _take_class(definition, "export type", _EXPORTS)
    return read(record, values, origin=definition.origin)


def _take_class(
    definition: Definition, what: str, classes: Mapping[str, type[T]]
) -> tuple[type[T], dict[str, Any]]:
    """The class that the options name, and the other options."""
    rest = dict(definition.values)
    key = _CLASS_KEY[definition.kind]
    name = rest.pop(key, None)
    known = " and ".join(classes)
    if name is None:
        raise OptionError(f"{key} is missing; vringd has {known}")
    if not isinstance(name, str) or name not in classes:
        raise OptionError(f"unknown {what} '{show(name)}': vringd has {known}")
    return classes[name], rest
