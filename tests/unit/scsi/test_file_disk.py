"""A unit over a real file, whose channel completes from threads of its own."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from vringd.block.file import FileBackend
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiUnit
from vringd.testing import scsi_cdb as cdb
from vringd.testing.scsi_initiator import Initiator

from .rig import (
    GOOD,
    MISCOMPARE,
    ORWRITE,
    READ_16,
    SYNC_10,
    VERIFY_16,
    WRITE_16,
    WRITE_SAME_16,
    WRITE_VERIFY_16,
    drain,
    sense,
)

SIZE = 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileBackend]:
    path = tmp_path / "disk"
    path.write_bytes(os.urandom(SIZE))
    backend = FileBackend("disk", str(path), aio="threads", discard="unmap")
    yield backend
    backend.close()


@pytest.fixture
def who(disk: FileBackend) -> Iterator[Initiator]:
    unit = ScsiUnit(UnitSettings(), disk.limits, disk.size)
    initiator = Initiator(unit, disk.open_channel(io_uring=False), "x")
    drain(initiator)
    yield initiator
    initiator.close()


def test_every_kind_of_transfer(who: Initiator, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    data = os.urandom(1 << 20)
    blocks = len(data) // 512
    assert who.execute(cdb.transfer(WRITE_16, 100, blocks), data).status == GOOD
    assert who.execute(cdb.transfer(READ_16, 100, blocks), data_in=len(data)).data == data
    assert who.execute(cdb.transfer(VERIFY_16, 100, blocks, flags=2), data).status == GOOD
    wrong = data[:-1] + bytes([data[-1] ^ 1])
    assert sense(who.execute(cdb.transfer(VERIFY_16, 100, blocks, flags=2), wrong)) == MISCOMPARE
    assert who.execute(cdb.transfer(WRITE_VERIFY_16, 0, 8, flags=2), data[:4096]).status == GOOD
    assert who.execute(cdb.transfer(SYNC_10, 0, 0)).status == GOOD
    pair = data[:512] + b"c" * 512
    assert who.execute(cdb.compare_and_write(0, 1), pair).status == GOOD
    assert sense(who.execute(cdb.compare_and_write(0, 1), pair)) == MISCOMPARE
    assert who.execute(cdb.transfer(ORWRITE, 0, 1), b"\x80" * 512).status == GOOD
    assert who.execute(cdb.transfer(WRITE_SAME_16, 4000, 2000), b"s" * 512).status == GOOD
    expected = bytes([ord("c") | 0x80]) * 512 + data[512:4096]
    content = path.read_bytes()
    assert content[:4096] == expected
    assert content[100 * 512 : 100 * 512 + len(data)] == data
    assert content[4000 * 512 : 6000 * 512] == b"s" * 512 * 2000


def test_holes_are_reported(who: Initiator, disk: FileBackend) -> None:
    if not disk.limits.discard:
        pytest.skip("the file system of the test's folder cannot punch holes")
    data = cdb.unmap_list((128, 256), (1024, 64))
    assert who.execute(cdb.unmap(len(data)), data).status == GOOD
    assert who.execute(cdb.transfer(READ_16, 128, 256), data_in=256 * 512).data == bytes(131072)
    result = who.execute(cdb.get_lba_status(0), data_in=1024).data
    found = [struct.unpack_from(">QIB", result, at) for at in range(8, len(result), 16)]
    assert found[:4] == [(0, 128, 0), (128, 256, 1), (384, 640, 0), (1024, 64, 1)]
    assert sum(blocks for _lba, blocks, _kind in found) == SIZE // 512
