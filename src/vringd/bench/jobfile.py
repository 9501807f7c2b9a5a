"""Job files and command-line words: ordered (name, options) pairs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vringd.bench.errors import JobOptionError

Section = tuple[str, dict[str, str]]

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_file(path: Path, environment: Mapping[str, str] = os.environ) -> list[Section]:
    """The jobs of a file, each with the options of the [global] sections before it.

    Raises JobOptionError for a file that cannot be read or a line outside any section.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise JobOptionError(f"{path}: {error}; name a job file") from None
    return _read_text(text, str(path), environment)[1]


def read_global(text: str) -> dict[str, str]:
    """The options of the [global] sections of a job file's text. Raises JobOptionError."""
    return _read_text(text, "job", {})[0]


def _read_text(
    text: str, path: str, environment: Mapping[str, str]
) -> tuple[dict[str, str], list[Section]]:
    shared: dict[str, str] = {}
    jobs: list[Section] = []
    current: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            if not line.endswith("]") or len(line) == 2:
                raise JobOptionError(f"{path}:{number}: not a section: {line}")
            if line == "[global]":
                current = shared
            else:
                current = dict(shared)
                jobs.append((line[1:-1], current))
            continue
        if current is None:
            raise JobOptionError(f"{path}:{number}: {line}: an option before the first section")
        key, _, value = line.partition("=")
        _set(current, key.strip(), _expand(value.strip(), environment, f"{path}:{number}"))
    return shared, jobs


def read_words(words: Sequence[str]) -> list[Section]:
    """The jobs of a command line: --name=NAME begins one, what stands before is for all."""
    shared: dict[str, str] = {}
    jobs: list[Section] = []
    current = shared
    for word in words:
        if not word.startswith("--"):
            raise JobOptionError(f"{word}: neither a job file nor an option such as --rw=randread")
        key, _, value = word[2:].partition("=")
        if key == "name":
            current = dict(shared)
            jobs.append((value, current))
        else:
            _set(current, key, value)
    if not jobs and shared:
        jobs.append(("job", shared))
    return jobs


def _set(options: dict[str, str], key: str, value: str) -> None:
    """The last of several values counts, and in the order of its place."""
    options.pop(key, None)
    options[key] = value


def _expand(text: str, environment: Mapping[str, str], where: str) -> str:
    def look_up(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise JobOptionError(f"{where}: the variable {match[1]} is not set")
        return environment[match[1]]

    return _VARIABLE.sub(look_up, text)
