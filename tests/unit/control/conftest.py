"""Option lines as a user types them, turned into checked options."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import cast

import pytest

from vringd.control.build import Kind, build, from_argument
from vringd.control.schema import ServeOptions


def _build_line(line: str) -> ServeOptions:
    words = iter(shlex.split(line))
    return build(
        [from_argument(cast(Kind, word.removeprefix("--")), next(words)) for word in words]
    )


@pytest.fixture
def build_line() -> Callable[[str], ServeOptions]:
    return _build_line
