"""Records of options: each field declared once, with its parser, default and help.

    @record
    class IOThreadOptions:
        id: str = option(identifier, help="…")
        poll_max_ns: int = option(integer(0, INT64_MAX), default=32768, help="…")

`read` turns what `keyval`, JSON or TOML gave into such a record. The key of field
`poll_max_ns` is `poll-max-ns`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, dataclass_transform, overload

from vringd.control.errors import OptionError
from vringd.control.values import Parser, show

T = TypeVar("T")
D = TypeVar("D")

_META = "vringd.option"


@dataclasses.dataclass(frozen=True)
class Option:
    """One field as the user sees it."""

    field: str
    name: str
    parse: Parser[Any]
    default: Any
    help: str

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


@overload
def option(parse: Parser[T], *, help: str, name: str = "") -> T: ...
@overload
def option(parse: Parser[T], *, default: D, help: str, name: str = "") -> T | D: ...
def option(
    parse: Parser[Any], *, default: Any = dataclasses.MISSING, help: str, name: str = ""
) -> Any:
    """Declares a field of a record; without a default the user must give it.

    `name` is the option's key, where it is not the field's name with dashes.
    """
    return dataclasses.field(default=default, metadata={_META: (parse, help, name)})


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, dataclasses.field)
)
def record(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass with keyword-only fields."""
    return dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)


def options_of(cls: type[Any]) -> Iterator[Option]:
    """The options of a record, in the order of declaration."""
    for field in dataclasses.fields(cls):
        if _META in field.metadata:
            parse, text, name = field.metadata[_META]
            name = name or field.name.replace("_", "-")
            yield Option(field.name, name, parse, field.default, text)


class PathError(ValueError):
    """A value is wrong; the keys in `path` lead to it from the record's root."""

    def __init__(self, path: tuple[str, ...], problem: str) -> None:
        super().__init__((".".join(path) + problem).removeprefix(": "))
        self.path = path
        self.problem = problem


def read(cls: type[T], values: Mapping[str, Any], **fixed: Any) -> T:
    """Builds a record from `values`; `fixed` are fields that are no options.

    Raises OptionError for the first key that is unknown, missing or has a wrong value.
    """
    try:
        return _read(cls, values, fixed)
    except PathError as error:
        raise OptionError(str(error)) from None


@dataclasses.dataclass(frozen=True)
class Nested(Generic[T]):
    """The parser of a record within a record: `cache.direct=on`."""

    record: type[T]

    def __call__(self, value: Any) -> T:
        if not isinstance(value, dict):
            known = ", ".join(f".{known.name}" for known in options_of(self.record))
            raise ValueError(f"expected a group of options: {known}")
        return _read(self.record, value, {})


@dataclasses.dataclass(frozen=True)
class Variant(Generic[T]):
    """The parser of a record whose class is named by its own key `key`."""

    key: str
    records: Mapping[str, type[T]]

    def __call__(self, value: Any) -> T:
        allowed = " or ".join(self.records)
        if not isinstance(value, dict):
            raise ValueError(f"expected a group of options with .{self.key}={allowed}")
        name = value.get(self.key)
        if name is None:
            raise PathError((self.key,), f" is missing; expected {allowed}")
        if not isinstance(name, str) or name not in self.records:
            raise PathError((self.key,), f"={show(name)}: expected {allowed}")
        rest = {other: value[other] for other in value if other != self.key}
        return _read(self.records[name], rest, {})


@dataclasses.dataclass(frozen=True)
class ListOf(Generic[T]):
    """The parser of a list: `vqs.0=1,vqs.1=3`, or a JSON list."""

    element: Parser[T]
    least: int = 1

    def __call__(self, value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError("expected a list: .0=…, .1=…")
        if len(value) < self.least:
            raise ValueError("expected a list that is not empty")
        return tuple(
            _parse(str(index), self.element, element) for index, element in enumerate(value)
        )


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown WHAT 'nmae'; did you mean 'name'?`, or all the known ones."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"unknown {what} {name!r}; did you mean {near[0]!r}?"
    return f"unknown {what} {name!r}; known: {', '.join(known)}"


def _read(cls: type[T], values: Mapping[str, Any], fixed: Mapping[str, Any]) -> T:
    known = {declared.name: declared for declared in options_of(cls)}
    for name in values:
        if name not in known:
            raise PathError((), f": {unknown_name('option', name, known)}")
    arguments = dict(fixed)
    for name, declared in known.items():
        if name in values:
            arguments[declared.field] = _parse(name, declared.parse, values[name])
        elif declared.required:
            raise PathError((name,), " is missing")
    return cls(**arguments)


def _parse(name: str, parse: Parser[T], value: Any) -> T:
    try:
        return parse(value)
    except PathError as error:
        raise PathError((name, *error.path), error.problem) from None
    except ValueError as error:
        raise PathError((name,), f"={show(value)}: {error}") from None
