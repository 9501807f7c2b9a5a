"""VERIFY, WRITE AND VERIFY, COMPARE AND WRITE, ORWRITE."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb

from .rig import (
    GOOD,
    INVALID_FIELD,
    MISCOMPARE,
    ORWRITE,
    OUT_OF_RANGE,
    PROTECTED,
    VERIFIES,
    VERIFY_10,
    VERIFY_16,
    WRITE_SAME_16,
    WRITE_VERIFIES,
    WRITE_VERIFY_10,
    Rig,
    sense,
)

MakeRig = Callable[..., Rig]
BYTCHK_ALL, BYTCHK_ONE = 1 << 1, 3 << 1


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x58]) + data[at + 1 :]


@pytest.mark.parametrize("opcode", VERIFIES)
def test_verify_compares_with_data_out(rig: Rig, opcode: int) -> None:
    data = os.urandom(rig.size)
    rig.disk.write(0, data)
    for lba, blocks in ((0, 1), (0, 256), (256, 256), (511, 1)):
        part = data[lba * 512 : (lba + blocks) * 512]
        block = cdb.transfer(opcode, lba, blocks, flags=BYTCHK_ALL)
        assert rig.run(block, part).status == GOOD
        wrong = changed(part, random.randrange(len(part)))
        assert sense(rig.run(block, wrong)) == MISCOMPARE
        # Without BYTCHK the data do not matter.
        assert rig.run(cdb.transfer(opcode, lba, blocks), wrong).status == GOOD


def test_verify_compares_in_chunks_and_across_segments(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=2048)
    data = os.urandom(rig.size)
    rig.disk.write(0, data)
    block = cdb.transfer(VERIFY_16, 0, 2048, flags=BYTCHK_ALL)
    split = (1, 262143, 5, 300000)
    assert rig.a.execute(block, data, split=split).status == GOOD
    for at in (0, 262143, 262144, 262145, 562149, rig.size - 1):
        assert sense(rig.a.execute(block, changed(data, at), split=split)) == MISCOMPARE


def test_verify_compares_every_block_with_one(rig: Rig) -> None:
    one = os.urandom(512)
    rig.disk.write(0, one * 512)
    block = cdb.transfer(VERIFY_10, 0, 512, flags=BYTCHK_ONE)
    assert rig.run(block, one).status == GOOD
    rig.disk.write(300 * 512 + 77, b"\0\1\2")
    assert sense(rig.run(block, one)) == MISCOMPARE


def test_verify_reads_the_medium(rig: Rig) -> None:
    rig.disk.fail(0, errno.EIO)
    assert sense(rig.run(cdb.transfer(VERIFY_10, 0, 1))) == (3, 0x1100)


@pytest.mark.parametrize("opcode", VERIFIES)
def test_verify_checks_its_fields(rig: Rig, opcode: int) -> None:
    assert rig.run(cdb.transfer(opcode, 0, 0, flags=BYTCHK_ALL)).status == GOOD
    assert sense(rig.run(cdb.transfer(opcode, 0, 1, flags=4), bytes(512))) == INVALID_FIELD
    for lba, blocks in ((513, 0), (512, 1), (2**31, 1), (0xFFFFFFFF, 0)):
        result = rig.run(cdb.transfer(opcode, lba, blocks, flags=BYTCHK_ALL), bytes(512))
        assert sense(result) == OUT_OF_RANGE
    assert rig.run(cdb.transfer(opcode, 0, 2, flags=BYTCHK_ALL), bytes(1023)).overrun
    assert rig.run(cdb.transfer(opcode, 0, 1, flags=0x10)).status == GOOD  # DPO


@pytest.mark.parametrize("opcode", WRITE_VERIFIES)
@pytest.mark.parametrize("flags", [0, BYTCHK_ALL, 0x10])
def test_write_and_verify_writes_durably(rig: Rig, opcode: int, flags: int) -> None:
    data = os.urandom(1024)
    result = rig.run(cdb.transfer(opcode, 510, 2, flags=flags), data + b"more")
    assert (result.status, result.transferred, result.residual) == (GOOD, 1024, 4)
    assert rig.disk.data[-1024:] == data
    assert rig.disk.durable_writes == 1
    assert rig.disk.operations[0] == 1


@pytest.mark.parametrize("opcode", [*WRITE_VERIFIES, ORWRITE])
def test_checks_of_writes_hold_for_them_too(make_rig: MakeRig, opcode: int) -> None:
    rig = make_rig()
    for lba, blocks in ((0, 0), (512, 0)):
        assert rig.run(cdb.transfer(opcode, lba, blocks)).status == GOOD
    for lba, blocks in ((513, 0), (511, 2)):
        assert sense(rig.run(cdb.transfer(opcode, lba, blocks), bytes(1024))) == OUT_OF_RANGE
    for protect in range(1, 8):
        result = rig.run(cdb.transfer(opcode, 0, 1, flags=protect << 5), bytes(512))
        assert sense(result) == INVALID_FIELD
    assert rig.run(cdb.transfer(opcode, 0, 2), bytes(1023)).overrun
    rig = make_rig(writable=False)
    assert sense(rig.run(cdb.transfer(opcode, 0, 1), bytes(512))) == PROTECTED


def test_write_and_verify_says_what_went_wrong(rig: Rig) -> None:
    rig.disk.fail(1, errno.EIO)
    assert sense(rig.run(cdb.transfer(WRITE_VERIFY_10, 0, 1), bytes(512))) == (3, 0x0C00)
    rig.disk.fail(1, 0)
    rig.disk.fail(0, errno.EIO)
    assert sense(rig.run(cdb.transfer(WRITE_VERIFY_10, 0, 1), bytes(512))) == (3, 0x1100)


def test_compare_and_write_writes_if_the_blocks_are_equal(rig: Rig) -> None:
    for blocks in (1, 2, 100, 255):
        old, new = os.urandom(blocks * 512), os.urandom(blocks * 512)
        lba = 512 - blocks
        rig.disk.write(lba * 512, old)
        block = cdb.compare_and_write(lba, blocks)
        assert rig.a.execute(block, old + new, split=(3, blocks * 512)).status == GOOD
        assert rig.disk.data[lba * 512 :] == new


@pytest.mark.parametrize("at", [0, 1, 255, 511, 512, 1023])
@pytest.mark.parametrize("descriptors", [False, True])
def test_compare_and_write_tells_where_the_difference_is(
    rig: Rig, at: int, descriptors: bool
) -> None:
    if descriptors:
        page = bytes([0, 0, 0, 0, 0x0A, 10, 4, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0])
        assert rig.run(cdb.mode_select_6(16), page).status == GOOD
    old = os.urandom(1024)
    rig.disk.write(0, old)
    result = rig.run(cdb.compare_and_write(0, 2), changed(old, at) + bytes(1024))
    assert sense(result) == MISCOMPARE
    assert result.information == at
    assert result.sense[0] & 0x7F == (0x72 if descriptors else 0x70)
    assert rig.disk.data[:1024] == old


def test_compare_and_write_checks_its_fields(make_rig: MakeRig) -> None:
    rig = make_rig()
    assert rig.run(cdb.compare_and_write(512, 0)).status == GOOD
    assert sense(rig.run(cdb.compare_and_write(512, 1), bytes(1024))) == OUT_OF_RANGE
    assert sense(rig.run(cdb.compare_and_write(0, 1, flags=0x20), bytes(1024))) == INVALID_FIELD
    assert rig.run(cdb.compare_and_write(0, 1), bytes(1023)).overrun
    assert sense(rig.run(cdb.compare_and_write(0, 1), bytes(2048))) == (5, 0x0E03)
    big = make_rig(blocks=300, block_size=4096)
    assert big.run(cdb.compare_and_write(0, 255), bytes(2 * 255 * 4096)).status == GOOD
    huge = make_rig(blocks=40, block_size=65536)
    limit = huge.run(cdb.inquiry(page=0xB0), in_=64).data[5]
    assert limit == 16
    assert sense(huge.run(cdb.compare_and_write(0, 17), bytes(34 << 16))) == INVALID_FIELD


def test_compare_and_write_fua(rig: Rig) -> None:
    assert rig.run(cdb.compare_and_write(0, 1, flags=0x08), bytes(1024)).status == GOOD
    assert rig.disk.durable_writes == 1


def test_compare_and_write_errors(rig: Rig) -> None:
    rig.disk.fail(1, errno.EIO)
    assert sense(rig.run(cdb.compare_and_write(0, 1), bytes(1024))) == (3, 0x0C00)
    rig.disk.fail(0, errno.EIO)
    assert sense(rig.run(cdb.compare_and_write(0, 1), bytes(1024))) == (3, 0x1100)
    # It left no lock behind.
    rig.disk.fail(0, 0)
    rig.disk.fail(1, 0)
    rig.write(0, bytes(512))


def test_orwrite_sets_bits(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=2048)
    old, bits = os.urandom(rig.size), os.urandom(rig.size)
    rig.disk.write(0, old)
    result = rig.a.execute(cdb.transfer(ORWRITE, 0, 2048), bits, split=(1, 300000, 7))
    assert result.status == GOOD
    assert rig.disk.data == bytes(a | b for a, b in zip(old, bits, strict=True))


def test_long_loops_do_not_use_up_the_stack(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=1 << 18, block_size=4096)
    assert rig.run(cdb.transfer(WRITE_SAME_16, 0, 1 << 18), b"x" * 4096).status == GOOD
    assert rig.run(cdb.transfer(VERIFY_16, 0, 1 << 18, flags=6), b"x" * 4096).status == GOOD
    assert rig.disk.operations[0] == rig.disk.operations[1] == 1 << 12
