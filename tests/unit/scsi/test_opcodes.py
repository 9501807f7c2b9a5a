"""REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb

from .rig import GOOD, INVALID_FIELD, Rig, sense

INQUIRY = 0x12

MakeRig = Callable[..., Rig]


def all_opcodes(rig: Rig, *, rctd: bool = False) -> list[tuple[int, int, int, int]]:
    """(opcode, service action, flags, CDB length) of each descriptor."""
    data = rig.run(cdb.report_opcodes(rctd=rctd), in_=8192).data
    (length,) = struct.unpack_from(">I", data)
    assert length == len(data) - 4
    step = 20 if rctd else 8
    assert length % step == 0
    found = []
    for at in range(4, len(data), step):
        found.append(struct.unpack_from(">BxHxBH", data, at))
        if rctd:
            assert data[at + 8 : at + 10] == b"\0\x0a"
    return found


@pytest.mark.parametrize("kind", ["disk", "cdrom"])
@pytest.mark.parametrize("rctd", [False, True])
def test_every_listed_operation_is_described(make_rig: MakeRig, kind: str, rctd: bool) -> None:
    rig = make_rig(type=kind)
    listed = all_opcodes(rig, rctd=rctd)
    assert len(listed) > 30
    for opcode, action, flags, length in listed:
        has_action = flags & 1
        assert has_action or action == 0
        assert bool(flags & 2) == rctd
        good, bad = (2, 1) if has_action else (1, 2)
        data = rig.run(cdb.report_opcodes(good, opcode, action, rctd=rctd), in_=64).data
        assert data[1] == (0x83 if rctd else 0x03)
        assert struct.unpack_from(">H", data, 2)[0] == length
        assert data[4] == opcode
        assert len(data) == 4 + length + (12 if rctd else 0)
        if has_action:
            assert data[5] & 0x1F == action
        assert rig.run(cdb.report_opcodes(3, opcode, action), in_=64).data[1] == 3
        assert sense(rig.run(cdb.report_opcodes(bad, opcode, action), in_=64)) == INVALID_FIELD


@pytest.mark.parametrize("kind", ["disk", "cdrom"])
def test_no_listed_operation_is_refused_as_unknown(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(type=kind)
    for opcode, action, _flags, length in all_opcodes(rig):
        result = rig.run(bytes([opcode, action]) + bytes(length - 2), bytes(64), 512)
        assert result.code != 0x2000, hex(opcode)


@pytest.mark.parametrize("kind", ["disk", "cdrom"])
def test_bits_outside_the_usage_data_are_refused(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(type=kind)
    for opcode, action, flags, length in all_opcodes(rig):
        data = rig.run(cdb.report_opcodes(3, opcode, action), in_=64).data
        usage = data[4 : 4 + length]
        for byte in range(2 if flags & 1 else 1, length):
            for bit in range(8):
                if usage[byte] >> bit & 1 or (opcode == INQUIRY and byte == 1 and bit >= 5):
                    continue
                block = bytearray([opcode, action]) + bytes(length - 2)
                block[byte] |= 1 << bit
                result = rig.run(bytes(block), bytes(64), 512)
                assert sense(result) == INVALID_FIELD, block.hex()
                assert result.field == ("cdb", byte, bit)


@pytest.mark.parametrize("lun", range(8))
def test_a_lun_in_inquiry_as_scsi_2_had_it_is_overlooked(rig: Rig, lun: int) -> None:
    block = bytearray(cdb.inquiry(36))
    block[1] |= lun << 5
    assert rig.run(bytes(block), in_=36).data[:1] == b"\0"


def test_usage_data_have_dpo_and_fua_as_mode_sense_says(rig: Rig) -> None:
    assert rig.run(cdb.mode_sense_6(0x3F), in_=255).data[2] & 0x10
    for opcode in (0x28, 0xA8, 0x88, 0x2A, 0xAA, 0x8A, 0x89, 0x8B):
        assert rig.run(cdb.report_opcodes(1, opcode), in_=64).data[5] & 0x18 == 0x18
    for opcode in (0x2F, 0xAF, 0x8F, 0x2E, 0xAE, 0x8E):
        assert rig.run(cdb.report_opcodes(1, opcode), in_=64).data[5] & 0x10


def test_unmap_is_listed_where_it_works(make_rig: MakeRig) -> None:
    assert 0x42 in {opcode for opcode, *_ in all_opcodes(make_rig())}
    thick = make_rig(discard=False)
    assert 0x42 not in {opcode for opcode, *_ in all_opcodes(thick)}
    assert thick.run(cdb.report_opcodes(1, 0x93), in_=64).data[5] == 0x01
    assert make_rig().run(cdb.report_opcodes(1, 0x93), in_=64).data[5] == 0x09


def test_unknown_operations_are_reported_as_such(rig: Rig) -> None:
    for options, opcode, action in ((1, 0xFF, 0), (2, 0xFF, 1), (2, 0x9E, 3), (3, 0x28, 1)):
        data = rig.run(cdb.report_opcodes(options, opcode, action), in_=64).data
        assert data == bytes([0, 1, 0, 0])
    for options in range(4, 8):
        assert sense(rig.run(cdb.report_opcodes(options), in_=64)) == INVALID_FIELD
    assert len(rig.run(cdb.report_opcodes(allocation=10), in_=64).data) == 10


def test_task_management_functions(rig: Rig) -> None:
    assert rig.run(cdb.report_tmfs(), in_=64).data == bytes([0xDC, 0x03, 0, 0])
    result = rig.run(cdb.report_tmfs(repd=True), in_=64)
    assert result.status == GOOD
    assert result.data == bytes([0xDC, 0x03, 0, 12]) + bytes(12)
