"""Values as fio writes them: sizes, times, percentages, lists. Every parser raises ValueError
with what would be right."""

from __future__ import annotations

import re

from vringd.bench.spec import BlockSizes, Splits

_SIZE = re.compile(r"(\d+)\s*(?:([kmgtp])(?:i?b)?|b)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(us|usec|ms|msec|s|m|h|d)?", re.IGNORECASE)
_SECONDS = {"us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1, "m": 60, "h": 3600}
_SECONDS["d"] = 86400
SECTOR = 512
MAX_BLOCK = 64 << 20


def size(text: str) -> int:
    """Bytes: 4096, 4k, 1M, 2GiB; units of 1024, as fio has them unless told otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size such as 4096, 4k or 1g")
    unit = match[2].lower() if match[2] else ""
    return int(match[1]) << 10 * " kmgtp".index(unit or " ")


def seconds(text: str, unit: float = 1.0) -> float:
    """A time: 10, 500ms, 2m; without a unit in `unit` seconds."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a time such as 10, 500ms or 2m")
    return float(match[1]) * (_SECONDS[match[2].lower()] if match[2] else unit)


def count(text: str) -> int:
    """A number of 1 or more; k, m, … multiply it."""
    number = size(text)
    if number < 1:
        raise ValueError("must be 1 or more")
    return number


def flag(text: str) -> bool:
    """0 or 1; the bare word means 1."""
    if text in ("", "1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise ValueError("not 0 or 1")


def percent(text: str) -> int:
    if not text.rstrip("%").isdigit() or int(text.rstrip("%")) > 100:
        raise ValueError("not a percentage from 0 to 100")
    return int(text.rstrip("%"))


def cpus(text: str) -> tuple[int, ...]:
    """A list of CPUs such as 0-3,8."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError("not a list of CPUs such as 0-3,8")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or max(found) > 1023:
        raise ValueError("not a list of CPUs from 0 to 1023")
    return tuple(found)


def block(text: str) -> int:
    """The size of a request."""
    value = size(text)
    if value == 0 or value % SECTOR or value > MAX_BLOCK:
        raise ValueError("not a multiple of 512 up to 64m")
    return value


def blocks(text: str) -> BlockSizes:
    value = block(text)
    return BlockSizes(value, value)


def block_range(text: str) -> BlockSizes:
    """4k-64k: multiples of the first."""
    least, dash, most = text.partition("-")
    if not dash:
        raise ValueError("not a range such as 4k-64k")
    sizes = BlockSizes(block(least), block(most))
    if sizes.most < sizes.least:
        raise ValueError("the range's end is below its begin")
    return sizes


def block_splits(text: str) -> BlockSizes:
    """4k/60:64k/40; sizes without a percentage share what is left, and if all have one, what is
    left is the last size's, as fio does it."""
    parts: list[tuple[int, int | None]] = []
    for part in text.split(":"):
        name, _, typed = part.partition("/")
        parts.append((block(name), percent(typed) if typed else None))
    left = 100 - sum(fixed for _, fixed in parts if fixed is not None)
    open_parts = sum(fixed is None for _, fixed in parts)
    if left < 0:
        raise ValueError(f"the percentages make {100 - left}, more than 100")
    if left > 0 and not open_parts:
        value, fixed = parts[-1]
        parts[-1] = value, (fixed or 0) + left
    splits: list[tuple[int, int]] = []
    for value, fixed in parts:
        share = fixed
        if share is None:
            share = left // open_parts
            left -= share
            open_parts -= 1
        splits.append((value, share))
    used: Splits = tuple(splits)
    return BlockSizes(min(v for v, _ in used), max(v for v, _ in used), used)
