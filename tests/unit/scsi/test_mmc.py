"""A CD-ROM, as installers use it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from vringd.block.backend import BlockLimits
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiUnit
from vringd.testing import scsi_cdb as cdb

from .rig import GOOD, INVALID_FIELD, INVALID_OPCODE, READ_10, READ_12, WRITE_10, Rig, sense

MakeRig = Callable[..., Rig]
EJECT = cdb.start_stop(start=False, loej=True)
LOAD = cdb.start_stop(start=True, loej=True)


@pytest.fixture
def cd(make_rig: MakeRig) -> Rig:
    return make_rig(blocks=1000, block_size=2048, type="cdrom")


def test_it_is_a_removable_cdrom_with_blocks_of_2048_bytes(cd: Rig) -> None:
    data = cd.run(cdb.inquiry(), in_=255).data
    assert data[:2] == b"\x05\x80"
    assert data[16:22] == b"CD-ROM"
    assert struct.unpack_from(">H", data, 62)[0] == 0x04E0
    assert cd.run(cdb.read_capacity_10(), in_=8).data == struct.pack(">II", 999, 2048)


@pytest.mark.parametrize("opcode", [READ_10, READ_12])
def test_it_is_read(cd: Rig, opcode: int) -> None:
    cd.disk.write(0, os.urandom(cd.size))
    result = cd.run(cdb.transfer(opcode, 16, 2), in_=4096)
    assert result.data == cd.disk.data[16 * 2048 : 18 * 2048]


def test_it_is_never_written(cd: Rig) -> None:
    for opcode in (WRITE_10, 0x2E, 0x35, 0x41, 0x42, 0x89, 0x93):
        assert sense(cd.run(bytes([opcode]) + bytes(15), bytes(2048))) == INVALID_OPCODE


def test_configuration(make_rig: MakeRig, cd: Rig) -> None:
    data = cd.run(cdb.get_configuration(), in_=4096).data
    assert struct.unpack_from(">IHH", data) == (len(data) - 4, 0, 0x08)
    features = {}
    at = 8
    while at < len(data):
        code, flags, length = struct.unpack_from(">HBB", data, at)
        features[code] = flags & 1
        at += 4 + length
    assert at == len(data)
    assert list(features) == [0, 1, 2, 3, 0x10, 0x1E, 0x1F, 0x100, 0x105]
    assert features[0x1E] == 1
    assert features[0x1F] == 0
    one = cd.run(cdb.get_configuration(0x10, kind=2), in_=64).data
    assert one[8:] == bytes.fromhex("0010 01 08 00000800 0001 00 00")
    current = cd.run(cdb.get_configuration(0x1E, kind=1), in_=64).data
    assert struct.unpack_from(">H", current, 8)[0] == 0x1E
    assert cd.run(cdb.get_configuration(0x1234, kind=2), in_=64).data[:4] == bytes([0, 0, 0, 4])
    assert sense(cd.run(cdb.get_configuration(kind=3), in_=64)) == INVALID_FIELD
    dvd = make_rig(blocks=400_000, block_size=2048, type="cdrom")
    assert dvd.run(cdb.get_configuration(), in_=4096).data[6:8] == b"\0\x10"
    cd.run(EJECT)
    assert cd.run(cdb.get_configuration(), in_=4096).data[6:8] == b"\0\0"


def test_media_events_are_told_once(cd: Rig) -> None:
    def event() -> tuple[int, int]:
        data = cd.run(cdb.get_event_status(), in_=64).data
        assert data[:4] == bytes([0, 6, 4, 0x10])
        return data[4], data[5]

    assert event() == (0, 2)
    cd.run(EJECT)
    assert event() == (3, 1)
    assert event() == (0, 1)
    cd.run(LOAD)
    assert event() == (2, 2)
    cd.unit.request_eject()
    assert event() == (1, 2)
    assert event() == (0, 2)
    assert cd.run(cdb.get_event_status(0x40), in_=64).data == bytes([0, 2, 0x80, 0x10])
    assert sense(cd.run(bytes([0x4A, 0, 0, 0, 0x10, 0, 0, 0, 8, 0]), in_=8)) == INVALID_FIELD


def test_table_of_contents(cd: Rig) -> None:
    data = cd.run(cdb.read_toc(), in_=4096).data
    assert data == bytes.fromhex("0012 01 01 00140100 00000000 0014aa00 000003e8")
    data = cd.run(cdb.read_toc(msf=True), in_=4096).data
    assert data == bytes.fromhex("0012 01 01 00140100 00000200 0014aa00 00000f19")
    assert len(cd.run(cdb.read_toc(track=0xAA), in_=4096).data) == 12
    assert sense(cd.run(cdb.read_toc(track=2), in_=4096)) == INVALID_FIELD
    data = cd.run(cdb.read_toc(kind=1), in_=4096).data
    assert data == bytes.fromhex("000a 01 01 00140100 00000000")
    data = cd.run(cdb.read_toc(kind=2), in_=4096).data
    assert [data[at + 3] for at in range(4, len(data), 11)] == [0xA0, 0xA1, 0xA2, 1]
    assert sense(cd.run(cdb.read_toc(kind=3), in_=4096)) == INVALID_FIELD
    atapi = bytes([0x43, 0, 0, 0, 0, 0, 0, 16, 0, 0x40])
    assert cd.run(atapi, in_=4096).data[:2] == b"\0\x0a"


def test_disc_information_and_mechanism_status(cd: Rig) -> None:
    data = cd.run(bytes([0x51, 0, 0, 0, 0, 0, 0, 0, 64, 0]), in_=64).data
    assert data[:8] == bytes.fromhex("0020 0e 01 01 01 01 20")
    assert sense(cd.run(bytes([0x51, 1, 0, 0, 0, 0, 0, 0, 64, 0]), in_=64)) == INVALID_FIELD
    status = bytes([0xBD, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0])
    assert cd.run(status, in_=8).data == bytes(8)
    cd.run(EJECT)
    assert cd.run(status, in_=8).data[1] == 0x10


def test_capabilities_tell_of_the_lock(cd: Rig) -> None:
    page = cd.run(cdb.mode_sense_10(0x2A), in_=255).data
    assert struct.unpack_from(">HBBBxH", page) == (28, 0, 0, 0, 0)
    assert page[8:10] == b"\x2a\x14"
    assert page[14] == 0x29
    assert cd.run(cdb.prevent_removal(1)).status == GOOD
    assert cd.run(cdb.mode_sense_10(0x2A), in_=255).data[14] == 0x2B


def test_an_empty_drive(make_rig: MakeRig) -> None:
    unit = ScsiUnit(UnitSettings(type="cdrom"), BlockLimits(), None)
    assert unit.medium == "absent"
    assert unit.capacity == 0


def test_a_disk_of_larger_blocks_is_no_cd() -> None:
    with pytest.raises(ValueError, match="blocks of 2048"):
        ScsiUnit(UnitSettings(type="cdrom"), BlockLimits(block_size=4096), 1 << 20)
