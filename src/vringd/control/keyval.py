"""QEMU's option syntax: `key=value,key.sub=value,list.0=value`, or JSON.

    pairs     = [ pair { ',' pair } [ ',' ] ]
    pair      = key '=' value
    key       = fragment { '.' fragment }
    value     = any text; a comma is written twice

A dot descends into an object, and a decimal fragment into a list, whose indices may come
in any order but without a gap. The last of several values for one key counts. Where a
first key is implied, `null-co,size=1G` means `driver=null-co,size=1G`.

Leaves are strings: only who knows the option knows its type (see `values`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from vringd.control.errors import OptionError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_INDEX = re.compile(r"[0-9]{1,9}")

_Tree = dict[str, Any]


def parse(text: str, implied_key: str | None = None) -> dict[str, Any]:
    """Reads one option argument: JSON when it starts with `{`, else key=value pairs.

    Returns nested dicts and lists, with strings as leaves (JSON: any scalar).
    Raises OptionError with a sentence that names the offending part.
    """
    return parse_json(text) if text.startswith("{") else parse_keyval(text, implied_key)


def parse_json(text: str) -> dict[str, Any]:
    """Reads a JSON object. Raises OptionError, also for a key given twice."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_pairs)
    except ValueError as error:
        raise OptionError(f"invalid JSON: {error}") from None
    except RecursionError:
        raise OptionError("invalid JSON: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise OptionError("invalid JSON: expected an object, {…}")
    return value


def parse_keyval(text: str, implied_key: str | None = None) -> dict[str, Any]:
    """Reads key=value pairs. Raises OptionError."""
    root: _Tree = {}
    rest = text
    first = True
    while rest:
        key, value, rest = _next_pair(rest, implied_key if first else None)
        _put(root, key, value)
        first = False
    return {name: _listify(value, name) for name, value in root.items()}


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} appears twice")
        result[key] = value
    return result


def _next_pair(text: str, implied_key: str | None) -> tuple[str, str, str]:
    """Splits the first pair off: (key, value, what is left)."""
    end = re.search(r"[=,]|$", text)
    assert end is not None  # `$` always matches
    key = text[: end.start()]
    rest = text[end.end() :]
    if end.group() != "=":
        if implied_key is not None and key:
            return implied_key, key, rest
        if not key:
            raise OptionError("an option name is missing before ','")
        raise OptionError(
            f"{key!r} has no value: write {key}=VALUE"
            " (a comma inside a value is written twice: ',,')"
        )
    value = re.match(r"(?:[^,]|,,)*", rest)
    assert value is not None  # it matches the empty string
    return key, value.group().replace(",,", ","), rest[value.end() + 1 :]


def _put(root: _Tree, key: str, value: str) -> None:
    fragments = key.split(".")
    for position, fragment in enumerate(fragments):
        if not (_NAME.fullmatch(fragment) or (position and _INDEX.fullmatch(fragment))):
            raise OptionError(f"invalid option name {key!r}")
    node = root
    for depth, fragment in enumerate(fragments[:-1], 1):
        child = node.setdefault(fragment, {})
        if not isinstance(child, dict):
            raise OptionError(_inconsistent(".".join(fragments[:depth])))
        node = child
    if isinstance(node.get(fragments[-1]), dict):
        raise OptionError(_inconsistent(key))
    node[fragments[-1]] = value


def _inconsistent(name: str) -> str:
    return f"{name!r} is given both as one value and as {name}.…; use one of the two"


def _listify(value: object, path: str) -> object:
    """Turns each dict whose keys are all indices into a list."""
    if not isinstance(value, dict):
        return value
    children = {name: _listify(child, f"{path}.{name}") for name, child in value.items()}
    indices = [name for name in children if name.isdecimal()]
    if not indices:
        return children
    if len(indices) < len(children):
        raise OptionError(f"'{path}.…' mixes list indices and names; use one of the two")
    elements = {int(name): child for name, child in children.items()}
    for index in range(len(elements)):
        if index not in elements:
            raise OptionError(
                f"'{path}.{index}' is missing: list indices count from 0 without a gap"
            )
    return [elements[index] for index in range(len(elements))]
