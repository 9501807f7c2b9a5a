"""Guest memory for the tests of the engine and of the drivers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vringd.testing.memory import GuestRam


@pytest.fixture
def ram() -> Iterator[GuestRam]:
    """Three regions of 1 MiB, checked for overruns at the end."""
    with GuestRam((1 << 20,) * 3) as ram:
        yield ram
        ram.check()
