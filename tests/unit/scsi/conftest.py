"""A unit with a disk in memory for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vringd.scsi.settings import UnitSettings

from .rig import Rig


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Makes rigs with settings of their own: make_rig(blocks=64, type="cdrom")."""
    made: list[Rig] = []

    def make(
        *, blocks: int = 512, block_size: int = 512, discard: bool = True, **settings: Any
    ) -> Rig:
        rig = Rig(blocks, block_size, UnitSettings(**settings), discard)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A thin disk of 512 blocks of 512 bytes."""
    return make_rig()
