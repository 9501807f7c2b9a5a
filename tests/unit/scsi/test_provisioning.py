"""UNMAP, WRITE SAME, GET LBA STATUS, and what VPD pages say of them."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb

from .rig import (
    GOOD,
    INVALID_FIELD,
    INVALID_OPCODE,
    INVALID_PARAMETER,
    LIST_LENGTH,
    OUT_OF_RANGE,
    PROTECTED,
    WRITE_SAME_10,
    WRITE_SAME_16,
    Rig,
    sense,
)

MakeRig = Callable[..., Rig]
NDOB, UNMAP, ANCHOR = 0x01, 0x08, 0x10


def extents(rig: Rig, lba: int, allocation: int = 1024) -> list[tuple[int, int, int]]:
    result = rig.run(cdb.get_lba_status(lba, allocation), in_=allocation)
    assert result.status == GOOD
    (length,) = struct.unpack_from(">I", result.data)
    assert length == len(result.data) - 4
    return [struct.unpack_from(">QIB3x", result.data, at) for at in range(8, len(result.data), 16)]


def test_unmapped_blocks_read_as_zeros(rig: Rig) -> None:
    rig.disk.write(0, os.urandom(rig.size))
    data = cdb.unmap_list((0, 2), (10, 1), (500, 12))
    result = rig.run(cdb.unmap(len(data)), data)
    assert (result.status, result.residual) == (GOOD, 0)
    assert rig.read(0, 2) == bytes(1024)
    assert rig.read(10) == bytes(512)
    assert rig.read(500, 12) == bytes(12 * 512)
    assert rig.read(2) != bytes(512)
    assert extents(rig, 0) == [
        (0, 2, 1), (2, 8, 0), (10, 1, 1), (11, 489, 0), (500, 12, 1),
    ]  # fmt: skip


def test_get_lba_status_begins_at_the_lba_and_ends_with_the_room(rig: Rig) -> None:
    rig.disk.write(512, bytes(512))
    assert extents(rig, 0, 24) == [(0, 1, 1)]
    assert extents(rig, 1, 24) == [(1, 1, 0)]
    assert extents(rig, 511, 24) == [(511, 1, 1)]
    assert extents(rig, 0, 40) == [(0, 1, 1), (1, 1, 0)]
    for allocation in range(24):
        result = rig.run(cdb.get_lba_status(0, allocation), in_=allocation)
        assert result.status == GOOD
        assert len(result.data) == allocation
    for lba in (512, 513, 2**63, 2**64 - 1):
        assert sense(rig.run(cdb.get_lba_status(lba), in_=24)) == OUT_OF_RANGE


def test_unmap_of_nothing_is_no_error(rig: Rig) -> None:
    assert rig.run(cdb.unmap(0)).status == GOOD
    data = cdb.unmap_list()
    assert rig.run(cdb.unmap(8), data).status == GOOD
    data = cdb.unmap_list(*((i // 2, 0) for i in range(255)), (512, 0))[: 8 + 255 * 16]
    assert rig.run(cdb.unmap(len(data)), data).status == GOOD
    assert rig.run(cdb.unmap(24), cdb.unmap_list((512, 0))).status == GOOD


def test_unmap_checks_all_before_it_changes_anything(rig: Rig) -> None:
    rig.disk.write(0, b"x" * rig.size)
    data = cdb.unmap_list((0, 1), (511, 2))
    result = rig.run(cdb.unmap(len(data)), data)
    assert sense(result) == OUT_OF_RANGE
    assert rig.disk.data == b"x" * rig.size
    data = cdb.unmap_list(*[(0, 1)] * 256)
    result = rig.run(cdb.unmap(len(data)), data)
    assert sense(result) == INVALID_PARAMETER
    assert result.field == ("list", 2, None)
    assert sense(rig.run(cdb.unmap(7), bytes(7))) == LIST_LENGTH
    assert rig.run(cdb.unmap(24), cdb.unmap_list((0, 1))[:20]).overrun
    result = rig.run(cdb.unmap(24, anchor=True), cdb.unmap_list((0, 1)))
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 1, 0)
    assert rig.disk.data == b"x" * rig.size


def test_unmap_leaves_out_what_is_beyond_the_list(rig: Rig) -> None:
    rig.disk.write(0, b"x" * rig.size)
    data = cdb.unmap_list((0, 1), (1, 1), (2, 1))
    assert rig.run(cdb.unmap(len(data) - 1), data).status == GOOD
    short = data[:2] + struct.pack(">H", 16) + data[4:]
    assert rig.run(cdb.unmap(len(short)), short).status == GOOD
    assert rig.read(0, 3) == bytes(1024) + b"x" * 512


def test_more_blocks_than_the_limit_are_not_unmapped(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=(1 << 20) + 2)
    data = cdb.unmap_list((0, 1 << 20), (1 << 20, 1))
    result = rig.run(cdb.unmap(len(data)), data)
    assert sense(result) == INVALID_PARAMETER
    assert result.field == ("list", 32, None)
    assert rig.run(cdb.unmap(24), data[:24]).status == GOOD


@pytest.mark.parametrize("opcode", [WRITE_SAME_10, WRITE_SAME_16])
@pytest.mark.parametrize("flags", [0, UNMAP])
def test_write_same_repeats_a_block(rig: Rig, opcode: int, flags: int) -> None:
    one = os.urandom(512)
    for lba, blocks in ((0, 1), (0, 512), (500, 12), (100, 256)):
        rig.disk.write(0, bytes(rig.size))
        result = rig.run(cdb.transfer(opcode, lba, blocks, flags=flags), one)
        assert (result.status, result.transferred) == (GOOD, 512)
        assert rig.disk.data == bytes(lba * 512) + one * blocks + bytes((512 - lba - blocks) * 512)


@pytest.mark.parametrize("opcode", [WRITE_SAME_10, WRITE_SAME_16])
def test_write_same_of_zeros_unmaps_if_asked(rig: Rig, opcode: int) -> None:
    rig.disk.write(0, os.urandom(rig.size))
    assert rig.run(cdb.transfer(opcode, 8, 8), bytes(512)).status == GOOD
    assert rig.run(cdb.transfer(opcode, 16, 8, flags=UNMAP), bytes(512)).status == GOOD
    assert rig.read(8, 16) == bytes(16 * 512)
    assert extents(rig, 0)[:2] == [(0, 16, 0), (16, 8, 1)]
    assert rig.disk.operations[1] == 0  # nothing was written


def test_write_same_without_data(rig: Rig) -> None:
    rig.disk.write(0, os.urandom(rig.size))
    result = rig.run(cdb.transfer(WRITE_SAME_16, 0, 4, flags=NDOB | UNMAP))
    assert (result.status, result.transferred) == (GOOD, 0)
    assert rig.read(0, 4) == bytes(2048)
    result = rig.run(cdb.transfer(WRITE_SAME_10, 0, 4, flags=NDOB))
    assert sense(result) == INVALID_FIELD


@pytest.mark.parametrize("opcode", [WRITE_SAME_10, WRITE_SAME_16])
def test_write_same_checks_its_fields(make_rig: MakeRig, opcode: int) -> None:
    rig = make_rig()
    one = b"y" * 512
    result = rig.run(cdb.transfer(opcode, 0, 0), one)
    assert sense(result) == INVALID_FIELD  # WSNZ
    assert result.field is not None
    for flags, bit in ((ANCHOR, 4), (ANCHOR | UNMAP, 4), (0x20, 5)):
        result = rig.run(cdb.transfer(opcode, 0, 1, flags=flags), one)
        assert sense(result) == INVALID_FIELD
        assert result.field == ("cdb", 1, bit)
    for lba, blocks in ((512, 1), (511, 2), (2**32 - 1, 1)):
        assert sense(rig.run(cdb.transfer(opcode, lba, blocks), one)) == OUT_OF_RANGE
    assert rig.run(cdb.transfer(opcode, 0, 1), one[:256]).overrun
    assert sense(rig.run(cdb.transfer(opcode, 0, 1), one * 2)) == (5, 0x0E03)
    assert rig.disk.data == bytes(rig.size)
    rig = make_rig(writable=False)
    assert sense(rig.run(cdb.transfer(opcode, 0, 1), one)) == PROTECTED


def test_write_same_has_a_limit(make_rig: MakeRig) -> None:
    rig = make_rig()
    page = rig.run(cdb.inquiry(page=0xB0), in_=64).data
    (limit,) = struct.unpack_from(">Q", page, 36)
    assert limit == (1 << 30) // 512
    result = rig.run(cdb.transfer(WRITE_SAME_16, 0, limit + 1), bytes(512))
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 10, None)


def test_errors_of_the_disk_are_told(rig: Rig) -> None:
    rig.disk.fail(4, errno.EIO)
    rig.disk.fail(1, errno.ENOSPC)
    assert sense(rig.run(cdb.unmap(24), cdb.unmap_list((0, 1)))) == (3, 0x0C00)
    assert sense(rig.run(cdb.transfer(WRITE_SAME_16, 0, 1), bytes(512))) == (3, 0x0C00)
    assert sense(rig.run(cdb.transfer(WRITE_SAME_16, 0, 1), b"x" * 512)) == (7, 0x2707)


def test_a_thick_disk_says_so_and_does_not_unmap(make_rig: MakeRig) -> None:
    rig = make_rig(discard=False)
    assert rig.run(cdb.read_capacity_16(), in_=32).data[14] == 0
    assert rig.run(cdb.inquiry(page=0xB2), in_=64).data == bytes.fromhex("00b2000400000000")
    limits = rig.run(cdb.inquiry(page=0xB0), in_=64).data
    assert limits[20:36] == bytes(16)
    assert sense(rig.run(cdb.unmap(0))) == INVALID_OPCODE
    for opcode in (WRITE_SAME_10, WRITE_SAME_16):
        result = rig.run(cdb.transfer(opcode, 0, 1, flags=UNMAP), bytes(512))
        assert sense(result) == INVALID_FIELD
        assert result.field == ("cdb", 1, 3)
        assert rig.run(cdb.transfer(opcode, 0, 1), b"z" * 512).status == GOOD
    assert extents(rig, 0)[0] == (0, 1, 0)


def test_a_thin_disk_says_so(rig: Rig) -> None:
    assert rig.run(cdb.read_capacity_16(), in_=32).data[14] == 0xC0
    assert rig.run(cdb.inquiry(page=0xB2), in_=64).data == bytes.fromhex("00b2000400e40200")
    limits = rig.run(cdb.inquiry(page=0xB0), in_=64).data
    assert struct.unpack_from(">III", limits, 20) == (1 << 20, 255, 1)
