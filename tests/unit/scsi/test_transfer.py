"""READ, WRITE, PRE-FETCH, SYNCHRONIZE CACHE."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb

from .rig import (
    CHECK,
    GOOD,
    INVALID_FIELD,
    OUT_OF_RANGE,
    PREFETCH_10,
    PREFETCH_16,
    PROTECTED,
    READ_6,
    READ_10,
    READ_16,
    READS,
    SYNC_10,
    SYNC_16,
    WRITE_6,
    WRITE_10,
    WRITE_16,
    WRITES,
    Rig,
    sense,
)

MakeRig = Callable[..., Rig]
FLUSH = 2


@pytest.mark.parametrize("opcode", WRITES)
def test_what_is_written_is_on_the_disk(rig: Rig, opcode: int) -> None:
    data = os.urandom(3 * 512)
    result = rig.run(cdb.transfer(opcode, 7, 3), data)
    assert (result.status, result.transferred, result.residual) == (GOOD, 1536, 0)
    assert rig.disk.data[7 * 512 : 10 * 512] == data


@pytest.mark.parametrize("opcode", READS)
def test_what_is_on_the_disk_is_read(rig: Rig, opcode: int) -> None:
    rig.disk.write(0, os.urandom(rig.size))
    result = rig.run(cdb.transfer(opcode, 500, 12), in_=12 * 512)
    assert result.status == GOOD
    assert result.data == rig.disk.data[500 * 512 :]


@pytest.mark.parametrize("opcode", [*READS[1:], *WRITES[1:]])
@pytest.mark.parametrize(
    ("lba", "blocks"), [(513, 0), (512, 1), (511, 2), (0, 513), (0xFFFFFFFF, 1)]
)
def test_a_range_beyond_the_end_is_refused(rig: Rig, opcode: int, lba: int, blocks: int) -> None:
    data = bytes(blocks * 512)
    reads = opcode in READS
    result = rig.run(cdb.transfer(opcode, lba, blocks), b"" if reads else data, len(data) * reads)
    assert sense(result) == OUT_OF_RANGE
    assert result.information == max(lba, 512)


def test_a_64_bit_range_cannot_wrap(rig: Rig) -> None:
    for lba in (2**64 - 1, 2**63, 2**55):
        for blocks in (1, 2, 0xFFFFFFFF):
            assert sense(rig.run(cdb.transfer(READ_16, lba, blocks), in_=512)) == OUT_OF_RANGE


@pytest.mark.parametrize("opcode", [*READS[1:], *WRITES[1:]])
def test_no_blocks_at_the_end_are_no_error(rig: Rig, opcode: int) -> None:
    for lba in (0, 512):
        result = rig.run(cdb.transfer(opcode, lba, 0))
        assert (result.status, result.transferred) == (GOOD, 0)


def test_a_length_of_0_in_6_byte_commands_is_256_blocks(rig: Rig) -> None:
    data = os.urandom(256 * 512)
    assert rig.run(cdb.transfer(WRITE_6, 100, 0), data).status == GOOD
    assert rig.run(cdb.transfer(READ_6, 100, 0), in_=256 * 512).data == data


@pytest.mark.parametrize("opcode", [*READS[1:], *WRITES[1:]])
def test_protection_fields_are_refused(rig: Rig, opcode: int) -> None:
    for protect in range(1, 8):
        result = rig.run(cdb.transfer(opcode, 0, 1, flags=protect << 5), bytes(512), 0)
        assert sense(result) == INVALID_FIELD
        assert result.field is not None
        assert result.field[:2] == ("cdb", 1)


@pytest.mark.parametrize("flags", [0x08, 0x10, 0x18, 0x02])
def test_dpo_and_fua_are_accepted(rig: Rig, flags: int) -> None:
    assert rig.run(cdb.transfer(WRITE_10, 0, 1, flags=flags), bytes(512)).status == GOOD
    assert rig.disk.durable_writes == (1 if flags & 8 else 0)
    assert rig.run(cdb.transfer(READ_10, 0, 1, flags=flags), in_=512).status == GOOD
    assert rig.disk.operations[FLUSH] == (1 if flags & 8 else 0)


def test_without_a_write_cache_every_write_is_durable(make_rig: MakeRig) -> None:
    rig = make_rig(writethrough=True)
    rig.write(0, bytes(512))
    assert rig.disk.durable_writes == 1


def test_buffers_may_be_in_pieces(rig: Rig) -> None:
    data = os.urandom(4 * 512)
    write = cdb.transfer(WRITE_16, 3, 4)
    assert rig.a.execute(write, data, split=(1, 700, 3, 511)).status == GOOD
    read = cdb.transfer(READ_16, 3, 4)
    result = rig.a.execute(read, data_in=4 * 512, split=(512, 5, 1000))
    assert result.data == data
    assert result.guards_intact


def test_a_longer_buffer_has_a_residual(rig: Rig) -> None:
    rig.disk.write(0, os.urandom(1024))
    result = rig.a.execute(cdb.transfer(READ_10, 0, 1), data_in=10000, split=(100, 600))
    assert (result.status, result.transferred, result.residual) == (GOOD, 512, 9488)
    assert result.data == rig.disk.data[:512]
    result = rig.run(cdb.transfer(WRITE_10, 0, 1), b"b" * 1024)
    assert (result.status, result.residual) == (GOOD, 512)
    assert rig.disk.data[512:1024] != b"b" * 512


def test_a_shorter_buffer_is_an_overrun_and_nothing_is_transferred(rig: Rig) -> None:
    rig.disk.write(0, b"x" * 1024)
    for size in (0, 200, 512, 1023):
        result = rig.run(cdb.transfer(READ_10, 0, 2), in_=size)
        assert result.overrun
        assert result.status == CHECK
        result = rig.run(cdb.transfer(WRITE_10, 0, 2), b"y" * size)
        assert result.overrun
    assert rig.disk.data[:1024] == b"x" * 1024


def test_a_read_only_disk_refuses_writes(make_rig: MakeRig) -> None:
    rig = make_rig(writable=False)
    for opcode in WRITES:
        assert sense(rig.run(cdb.transfer(opcode, 0, 1), bytes(512))) == PROTECTED
    assert rig.read(0) == bytes(512)
    mode = rig.run(cdb.mode_sense_6(0x3F), in_=255).data
    assert mode[2] == 0x90


def test_a_maximum_transfer_length_is_enforced(make_rig: MakeRig) -> None:
    rig = make_rig(max_transfer=4096)
    assert rig.run(cdb.transfer(READ_10, 0, 8), in_=4096).status == GOOD
    result = rig.run(cdb.transfer(READ_10, 0, 9), in_=9 * 512)
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 7, None)


@pytest.mark.parametrize("opcode", [PREFETCH_10, PREFETCH_16, SYNC_10, SYNC_16])
def test_cache_commands_check_their_range(rig: Rig, opcode: int) -> None:
    for lba, blocks in ((0, 0), (512, 0), (0, 512), (511, 1)):
        assert rig.run(cdb.transfer(opcode, lba, blocks, group=3)).status == GOOD
        assert rig.run(cdb.transfer(opcode, lba, blocks, flags=2)).status == GOOD
    for lba, blocks in ((513, 0), (511, 2), (0, 513)):
        assert sense(rig.run(cdb.transfer(opcode, lba, blocks))) == OUT_OF_RANGE


def test_synchronize_cache_flushes(rig: Rig) -> None:
    rig.run(cdb.transfer(SYNC_10, 0, 0))
    assert rig.disk.operations[FLUSH] == 1
    rig.disk.fail(FLUSH, errno.EIO)
    assert sense(rig.run(cdb.transfer(SYNC_16, 0, 0))) == (4, 0x4400)


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        (errno.EIO, (3, 0x1100), (3, 0x0C00)),
        (errno.ENOSPC, (7, 0x2707), (7, 0x2707)),
        (errno.ENOMEM, (0xB, 0x5503), (0xB, 0x5503)),
    ],
)
def test_errors_of_the_disk_become_sense_data(
    rig: Rig, error: int, read: tuple[int, int], write: tuple[int, int]
) -> None:
    rig.disk.fail(0, error)
    rig.disk.fail(1, error)
    result = rig.run(cdb.transfer(READ_16, 0, 1), in_=512)
    assert sense(result) == read
    assert (result.transferred, result.residual) == (0, 512)
    assert sense(rig.run(cdb.transfer(WRITE_16, 0, 1), bytes(512))) == write


def test_4096_byte_blocks(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=16, block_size=4096)
    data = os.urandom(8192)
    rig.write(14, data)
    assert rig.read(14, 2) == data
    assert sense(rig.run(cdb.transfer(READ_10, 15, 2), in_=8192)) == OUT_OF_RANGE
