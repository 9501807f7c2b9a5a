"""MODE SENSE and MODE SELECT."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb

from .rig import (
    GOOD,
    INVALID_FIELD,
    INVALID_PARAMETER,
    LIST_LENGTH,
    OUT_OF_RANGE,
    READ_16,
    SOFTWARE_PROTECTED,
    WRITE_10,
    Rig,
    drain,
    sense,
)

MakeRig = Callable[..., Rig]
RECOVERY, CACHING, CONTROL, EXCEPTIONS, CAPABILITIES, ALL = 0x01, 0x08, 0x0A, 0x1C, 0x2A, 0x3F
CURRENT, CHANGEABLE, DEFAULT, SAVED = range(4)
WCE, D_SENSE, SWP = 0x04, 0x04, 0x08
FLUSH = 2


def page(rig: Rig, code: int, control: int = CURRENT) -> bytearray:
    data = rig.run(cdb.mode_sense_6(code, control=control, dbd=True), in_=255).data
    assert data[0] == len(data) - 1
    return bytearray(data[4:])


def select(rig: Rig, body: bytes) -> bytes:
    return bytes(4) + body


def set_bit(rig: Rig, code: int, byte: int, bit: int, on: bool) -> None:
    body = page(rig, code)
    body[byte] = body[byte] | bit if on else body[byte] & ~bit
    data = select(rig, body)
    assert rig.run(cdb.mode_select_6(len(data)), data).status == GOOD


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("disk", [RECOVERY, CACHING, CONTROL, EXCEPTIONS]),
        ("cdrom", [RECOVERY, CONTROL, EXCEPTIONS, CAPABILITIES]),
    ],
)
@pytest.mark.parametrize("control", [CURRENT, CHANGEABLE, DEFAULT])
def test_all_pages_are_the_single_pages_in_order(
    make_rig: MakeRig, kind: str, codes: list[int], control: int
) -> None:
    rig = make_rig(type=kind)
    singles = [bytes(page(rig, code, control)) for code in codes]
    assert bytes(page(rig, ALL, control)) == b"".join(singles)
    for code, single in zip(codes, singles, strict=True):
        assert (single[0], single[1]) == (code, len(single) - 2)
    every = rig.run(cdb.mode_sense_6(ALL, subpage=0xFF, control=control, dbd=True), in_=255)
    assert every.data[4:] == b"".join(singles)


def test_block_descriptors(rig: Rig) -> None:
    short = struct.pack(">II", 512, 512)
    data = rig.run(cdb.mode_sense_6(CACHING), in_=255).data
    assert data[:4] == bytes([31, 0, 0x10, 8])
    assert data[4:12] == short
    data = rig.run(cdb.mode_sense_10(CACHING), in_=255).data
    assert struct.unpack_from(">HBBBxH", data) == (34, 0, 0x10, 0, 8)
    assert data[8:16] == short
    data = rig.run(cdb.mode_sense_10(CACHING, llbaa=True), in_=255).data
    assert struct.unpack_from(">HBBBxH", data) == (42, 0, 0x10, 1, 16)
    assert data[8:24] == struct.pack(">QII", 512, 0, 512)


def test_unknown_pages_and_saved_values_are_refused(rig: Rig) -> None:
    for code in (0x02, 0x2A, 0x00):
        assert sense(rig.run(cdb.mode_sense_6(code), in_=255)) == INVALID_FIELD
    assert sense(rig.run(cdb.mode_sense_6(CONTROL, subpage=1), in_=255)) == INVALID_FIELD
    result = rig.run(cdb.mode_sense_10(ALL, control=SAVED), in_=255)
    assert sense(result) == (5, 0x3900)


def test_the_write_cache_can_be_switched(rig: Rig) -> None:
    assert page(rig, CACHING)[2] & WCE
    assert page(rig, CACHING, CHANGEABLE) == bytes([CACHING, 18, WCE]) + bytes(17)
    set_bit(rig, CACHING, 2, WCE, False)
    assert not rig.unit.writeback
    assert rig.disk.operations[FLUSH] == 1  # what was in the cache is durable now
    assert page(rig, CACHING, DEFAULT)[2] & WCE
    rig.write(0, bytes(512))
    assert rig.disk.durable_writes == 1
    set_bit(rig, CACHING, 2, WCE, True)
    rig.write(0, bytes(512))
    assert rig.disk.durable_writes == 1
    assert rig.disk.operations[FLUSH] == 1


def test_a_failed_flush_is_told(rig: Rig) -> None:
    rig.disk.fail(FLUSH, 5)
    body = page(rig, CACHING)
    body[2] &= ~WCE
    data = select(rig, body)
    assert sense(rig.run(cdb.mode_select_6(len(data)), data)) == (4, 0x4400)


def test_descriptor_format_sense_data_can_be_chosen(rig: Rig) -> None:
    set_bit(rig, CONTROL, 2, D_SENSE, True)
    result = rig.run(cdb.transfer(READ_16, 2**64 - 1, 1), in_=512)
    assert sense(result) == OUT_OF_RANGE
    assert result.sense[0] == 0x72
    assert result.information == 2**64 - 1
    assert result.sense[7] == len(result.sense) - 8
    result = rig.run(cdb.mode_sense_6(0x02), in_=255)
    assert result.field == ("cdb", 2, 5)
    set_bit(rig, CONTROL, 2, D_SENSE, False)
    result = rig.run(cdb.transfer(READ_16, 2**64 - 1, 1), in_=512)
    assert result.sense[0] == 0x70
    assert result.information is None  # it does not fit


def test_software_write_protection(rig: Rig) -> None:
    set_bit(rig, CONTROL, 4, SWP, True)
    assert sense(rig.run(cdb.transfer(WRITE_10, 0, 1), bytes(512))) == SOFTWARE_PROTECTED
    assert rig.run(cdb.mode_sense_6(ALL), in_=255).data[2] == 0x90
    rig.read(0)
    set_bit(rig, CONTROL, 4, SWP, False)
    rig.write(0, bytes(512))


def test_other_initiators_are_told_of_changed_parameters(rig: Rig) -> None:
    b = rig.initiator("b")
    set_bit(rig, CACHING, 2, WCE, False)
    assert drain(b) == [0x2A01]
    assert drain(rig.a) == []
    set_bit(rig, CACHING, 2, WCE, False)  # no change
    assert drain(b) == []


def test_a_reset_brings_the_defaults_back(rig: Rig) -> None:
    set_bit(rig, CACHING, 2, WCE, False)
    set_bit(rig, CONTROL, 2, D_SENSE, True)
    set_bit(rig, CONTROL, 4, SWP, True)
    rig.unit.reset()
    assert drain(rig.a) == [0x2903]
    assert rig.unit.writeback
    assert page(rig, CONTROL) == page(rig, CONTROL, DEFAULT)
    rig.write(0, bytes(512))


@pytest.mark.parametrize("ten", [False, True])
def test_block_descriptors_may_repeat_what_is(rig: Rig, ten: bool) -> None:
    body = page(rig, CACHING)
    for blocks, size, status in (
        (512, 512, GOOD),
        (0, 512, GOOD),
        (0xFFFFFFFF, 0, GOOD),
        (511, 512, 2),
        (0, 4096, 2),
    ):
        descriptor = struct.pack(">II", blocks, size)
        header = struct.pack(">6xH", 8) if ten else bytes([0, 0, 0, 8])
        data = header + descriptor + body
        block = cdb.mode_select_10(len(data)) if ten else cdb.mode_select_6(len(data))
        assert rig.run(block, data).status == status


def test_long_block_descriptors(rig: Rig) -> None:
    body = page(rig, CACHING)
    data = struct.pack(">4xBxHQII", 1, 16, 512, 0, 512) + body
    assert rig.run(cdb.mode_select_10(len(data)), data).status == GOOD
    data = struct.pack(">4xBxHQII", 1, 16, 512, 0, 1024) + body
    assert sense(rig.run(cdb.mode_select_10(len(data)), data)) == INVALID_PARAMETER


def test_what_cannot_be_changed_is_pointed_at(rig: Rig) -> None:
    for byte, bit in ((2, 0), (3, 7), (12, 5)):
        body = page(rig, CACHING)
        body[byte] ^= 1 << bit
        body[2] ^= WCE
        data = select(rig, body)
        result = rig.run(cdb.mode_select_6(len(data)), data)
        assert sense(result) == INVALID_PARAMETER
        assert result.field == ("list", 4 + byte, bit)
        assert rig.unit.writeback  # nothing of the page was taken over
    good, bad = page(rig, CACHING), page(rig, CONTROL)
    good[2] ^= WCE
    bad[3] ^= 1
    data = select(rig, good + bad)
    assert sense(rig.run(cdb.mode_select_6(len(data)), data)) == INVALID_PARAMETER
    assert rig.unit.writeback


def test_parameter_lists_of_a_wrong_length_are_refused(rig: Rig) -> None:
    body = page(rig, CACHING)
    data = select(rig, body)
    assert rig.run(cdb.mode_select_6(0)).status == GOOD
    assert rig.run(cdb.mode_select_6(4), data).status == GOOD
    for size in (1, 2, 3, 5, 6, 23):
        assert sense(rig.run(cdb.mode_select_6(size), data)) == LIST_LENGTH
    assert rig.run(cdb.mode_select_6(24), data[:23]).overrun
    assert sense(rig.run(cdb.mode_select_10(4097), bytes(4097))) == LIST_LENGTH
    assert sense(rig.run(cdb.mode_select_6(4), bytes([0, 0, 0, 8]))) == LIST_LENGTH
    body[1] = 17
    assert sense(rig.run(cdb.mode_select_6(23), select(rig, body)[:23])) == INVALID_PARAMETER
    assert sense(rig.run(cdb.mode_select_6(24, sp=True), data)) == INVALID_FIELD
    assert sense(rig.run(cdb.mode_select_6(24, pf=False), data)) == INVALID_FIELD
