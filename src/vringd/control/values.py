"""Parsers of single option values.

A value arrives as a string (from key=value) or already typed (from JSON or TOML); each
parser takes both, so an option means the same everywhere. A parser raises ValueError with
the end of the sentence "key=value: …", saying what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

T = TypeVar("T")
Parser = Callable[[Any], T]

UINT64_MAX = 2**64 - 1
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

_TRUE = ("on", "yes", "true", "y")
_FALSE = ("off", "no", "false", "n")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
# C's rules: 0x… is hexadecimal, a leading 0 octal.
_INTEGER = re.compile(r"[+-]?(?:(0[xX][0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([bkmgtpe]?)", re.IGNORECASE)
_SIZE_SHIFT = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}


def show(value: object) -> str:
    """How a value is quoted in a message: as a user would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return "{…}"
    if isinstance(value, list):
        return "[…]"
    return str(value)


def switch(value: Any) -> bool:
    """on|off, and QEMU's other spellings of them."""
    if isinstance(value, bool):
        return value
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError("expected on or off")


def only_off(value: Any) -> bool:
    """The switch of something that vringd does not have."""
    if switch(value):
        raise ValueError("not supported; expected off")
    return False


def text(value: Any) -> str:
    """Any text that is not empty and has no NUL byte."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("expected a text that is not empty")
    return value


def any_text(value: Any) -> str:
    """Any text, the empty one included."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("expected a text")
    return value


def limited_text(most: int) -> Parser[str]:
    """Text of at most `most` bytes."""

    def parse(value: Any) -> str:
        result = any_text(value)
        if len(result.encode()) > most:
            raise ValueError(f"expected at most {most} bytes, this has {len(result.encode())}")
        return result

    return parse


def identifier(value: Any) -> str:
    """A name as QEMU allows it for ids and nodes."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise ValueError("expected a letter, then letters, digits, '-', '.' or '_'")
    return value


def node_name(value: Any) -> str:
    """An identifier of at most 31 characters, QEMU's limit for nodes."""
    name = identifier(value)
    if len(name) > 31:
        raise ValueError(f"expected at most 31 characters, this has {len(name)}")
    return name


def names(value: Any) -> tuple[str, ...]:
    """One identifier, or a list of them that is not empty."""
    if isinstance(value, list):
        if not value:
            raise ValueError("expected a list that is not empty")
        return tuple(identifier(element) for element in value)
    return (identifier(value),)


def thread_count(value: Any) -> int | str:
    """A number of threads, or the word per-vq."""
    if value == "per-vq":
        return "per-vq"
    if value == "auto":
        raise ValueError("automatic mapping is not available; give a number of threads or per-vq")
    try:
        return integer(1, 256)(value)
    except ValueError:
        raise ValueError("expected a number from 1 to 256, or per-vq") from None


def integer(least: int, most: int) -> Parser[int]:
    """A whole number within [least, most]; 0x… and octal 0… as in C."""
    expected = f"expected a whole number from {least} to {most}"
    if most in (INT64_MAX, UINT64_MAX):
        expected = f"expected a whole number, {least} or more"

    def parse(value: Any) -> int:
        number = _whole(value)
        if number is None or not least <= number <= most:
            raise ValueError(expected)
        return number

    return parse


def size(least: int, most: int = INT64_MAX) -> Parser[int]:
    """A number of bytes within [least, most], with a suffix K, M, G, T, P or E (1024)."""
    upto = "" if most == INT64_MAX else f" to {show_size(most)}"
    expected = (
        f"expected a size from {show_size(least)}{upto} (suffixes K, M, G, T: powers of 1024)"
    )
    if not upto:
        expected = expected.replace(f"from {show_size(least)}", f"of {show_size(least)} or more")

    def parse(value: Any) -> int:
        number = _bytes(value)
        if number is None or not least <= number <= most:
            raise ValueError(expected)
        return number

    return parse


def power_of_two(parse_number: Parser[int]) -> Parser[int]:
    """Whatever `parse_number` takes, if it is a power of two."""

    def parse(value: Any) -> int:
        number = parse_number(value)
        if number & (number - 1):
            raise ValueError(f"expected a power of two, such as {1 << number.bit_length() - 1}")
        return number

    return parse


def show_size(number: int) -> str:
    """The shortest exact spelling: 1073741824 is 1G."""
    for suffix in "EPTGMK":
        shift = _SIZE_SHIFT[suffix.lower()]
        if number and number % (1 << shift) == 0:
            return f"{number >> shift}{suffix}"
    return str(number)


def choice(*allowed: str) -> Parser[Any]:
    """One of a few words."""
    listing = ", ".join(allowed[:-1]) + f" or {allowed[-1]}" if len(allowed) > 1 else allowed[0]

    def parse(value: Any) -> str:
        # TOML and JSON users write true where QEMU's word is 'on'.
        if isinstance(value, bool):
            value = show(value)
        if value not in allowed:
            raise ValueError(f"expected {listing}")
        return str(value)

    return parse


def cpu_list(value: Any) -> tuple[int, ...]:
    """CPU numbers, ascending: "0-3,8", a number, or a list of such."""
    items = value if isinstance(value, list) else [value]
    cpus: set[int] = set()
    for item in items:
        if isinstance(item, int) and not isinstance(item, bool):
            item = str(item)
        if not isinstance(item, str):
            raise ValueError(_CPU_LIST)
        for part in item.split(","):
            cpus.update(_cpu_range(part.strip()))
    if not cpus:
        raise ValueError(_CPU_LIST)
    return tuple(sorted(cpus))


_CPU_LIST = "expected CPU numbers such as 0-3,8"
_MOST_CPUS = 8192  # Linux's own limit, CONFIG_NR_CPUS


def _cpu_range(part: str) -> range:
    match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
    if match is None:
        raise ValueError(_CPU_LIST)
    first = int(match[1])
    last = int(match[2] or first)
    if last < first or last >= _MOST_CPUS:
        raise ValueError(_CPU_LIST)
    return range(first, last + 1)


def _whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _INTEGER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    hexadecimal, octal, decimal = match.groups()
    number = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -number if value.startswith("-") else number


def _bytes(value: Any) -> int | None:
    if not isinstance(value, str):
        return _whole(value)
    if value[:2] in ("0x", "0X"):
        return _whole(value)
    match = _SIZE.fullmatch(value)
    if match is None:
        return None
    number, suffix = match.groups()
    return int(Decimal(number) * (1 << _SIZE_SHIFT[suffix.lower()]))
