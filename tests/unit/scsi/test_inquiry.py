"""INQUIRY, READ CAPACITY, and the checks before any command."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from vringd.block.backend import BlockLimits
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiUnit
from vringd.testing import scsi_cdb as cdb

from .rig import CHECK, GOOD, INVALID_FIELD, INVALID_OPCODE, Rig, sense

MakeRig = Callable[..., Rig]


def test_standard_inquiry(make_rig: MakeRig) -> None:
    rig = make_rig(vendor="ACME", product="Anvil", revision="7", removable=True)
    data = rig.run(cdb.inquiry(), in_=255).data
    assert len(data) == data[4] + 5 == 96
    assert data[:8] == bytes([0x00, 0x80, 0x06, 0x12, 91, 0, 0, 0x02])
    assert data[8:36] == b"ACME    Anvil           7   "
    assert struct.unpack_from(">HHH", data, 58) == (0x00A0, 0x0460, 0x04C0)


def test_inquiry_is_cut_to_the_allocation_length(rig: Rig) -> None:
    whole = rig.run(cdb.inquiry(512), in_=512).data
    for allocation in range(96):
        result = rig.run(cdb.inquiry(allocation), in_=255)
        assert result.data == whole[:allocation]
        assert result.residual == 255 - allocation
    assert rig.run(cdb.inquiry(96), in_=95).overrun


def test_page_codes_without_evpd_and_unknown_pages_are_refused(rig: Rig) -> None:
    result = rig.run(bytes([0x12, 0, 0x80, 0, 255, 0]), in_=255)
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 2, None)
    assert sense(rig.run(cdb.inquiry(page=0xC0), in_=255)) == INVALID_FIELD
    assert sense(rig.run(bytes([0x12, 2, 0, 0, 255, 0]), in_=255)) == INVALID_FIELD  # CMDDT


@pytest.mark.parametrize(
    ("kind", "pages"),
    [("disk", [0x00, 0x80, 0x83, 0x86, 0xB0, 0xB1, 0xB2]), ("cdrom", [0x00, 0x80, 0x83, 0x86])],
)
def test_every_supported_page_has_its_header(
    make_rig: MakeRig, kind: str, pages: list[int]
) -> None:
    rig = make_rig(type=kind)
    listed = rig.run(cdb.inquiry(page=0), in_=255).data
    assert list(listed[4:]) == pages
    for page in pages:
        data = rig.run(cdb.inquiry(page=page), in_=255).data
        assert data[0] == (0 if kind == "disk" else 5)
        assert data[1] == page
        assert len(data) == struct.unpack_from(">H", data, 2)[0] + 4


def test_identification(make_rig: MakeRig) -> None:
    rig = make_rig(serial="S1", device_id="dev", wwn=0x5000C50015EA71AA)
    assert rig.run(cdb.inquiry(page=0x80), in_=255).data[4:] == b"S1"
    data = rig.run(cdb.inquiry(page=0x83), in_=255).data
    naa = bytes.fromhex("01030008 5000c50015ea71aa")
    t10 = bytes.fromhex("0201000b") + b"vringd  dev"
    port = bytes.fromhex("01140004 00000001")
    assert data[4:] == naa + t10 + port
    rig = make_rig(serial="S2")
    assert b"vringd  S2" in rig.run(cdb.inquiry(page=0x83), in_=255).data


def test_block_limits_and_characteristics(make_rig: MakeRig) -> None:
    rig = make_rig(rotation_rate=7200, max_transfer=1 << 20)
    limits = rig.run(cdb.inquiry(page=0xB0), in_=64).data
    assert limits[4:6] == bytes([1, 255])  # WSNZ, MAXIMUM COMPARE AND WRITE LENGTH
    assert struct.unpack_from(">HII", limits, 6) == (8, 2048, 0)
    assert rig.run(cdb.inquiry(page=0xB1), in_=64).data[4:6] == struct.pack(">H", 7200)


def test_capacity(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=100, block_size=4096)
    assert rig.run(cdb.read_capacity_10(), in_=8).data == struct.pack(">II", 99, 4096)
    data = rig.run(cdb.read_capacity_16(), in_=32).data
    assert data == struct.pack(">QIBB", 99, 4096, 0, 0) + b"\xc0" + bytes(17)
    for allocation in range(33):
        assert len(rig.run(cdb.read_capacity_16(allocation), in_=32).data) == allocation
    rig = make_rig()
    assert rig.run(cdb.read_capacity_16(), in_=32).data[13] == 3  # 8 blocks in a physical one


def test_a_disk_of_more_than_32_bits() -> None:
    with pytest.raises(ValueError, match="not removable"):
        ScsiUnit(UnitSettings(), BlockLimits(), None)
    unit = ScsiUnit(UnitSettings(), BlockLimits(), 1 << 50)
    assert unit.capacity == 1 << 50


@pytest.mark.parametrize("opcode", [0x01, 0x7F, 0x42 + 0x80, 0xFF, 0x83, 0x84])
def test_unknown_operations_are_refused(rig: Rig, opcode: int) -> None:
    assert sense(rig.run(bytes([opcode]) + bytes(15))) == INVALID_OPCODE


def test_a_reserved_bit_is_pointed_at(rig: Rig) -> None:
    result = rig.run(bytes([0, 0, 0x20, 0, 0, 0]))
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 2, 5)
    result = rig.run(bytes([0, 0, 0, 0, 0, 4]))  # NACA
    assert result.field == ("cdb", 5, 2)
    assert rig.run(bytes(6) + b"\xff" * 26).status == GOOD  # bytes beyond the CDB do not count


def test_an_unknown_service_action_is_pointed_at(rig: Rig) -> None:
    result = rig.run(bytes([0x9E, 0x1F]) + bytes(14))
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 1, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "tape"}, "neither disk nor cdrom"),
        ({"vendor": "muchtoolong"}, "vendor"),
        ({"product": "naïve"}, "product"),
        ({"serial": "x" * 64}, "serial"),
        ({"wwn": 1 << 64}, "wwn"),
        ({"rotation_rate": 2}, "rotation-rate"),
        ({"max_transfer": 100}, "max-transfer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScsiUnit(UnitSettings(**settings), BlockLimits(), 1 << 20)  # type: ignore[arg-type]


def test_the_first_command_of_an_initiator_tells_of_the_power_on(rig: Rig) -> None:
    b = rig.initiator("b", quiet=False)
    assert b.execute(cdb.inquiry(), data_in=255).status == GOOD
    assert b.execute(cdb.report_luns(), data_in=4096).status == GOOD
    result = b.execute(cdb.TEST_UNIT_READY)
    assert (result.status, result.key, result.code) == (CHECK, 6, 0x2900)
    assert b.execute(cdb.TEST_UNIT_READY).status == GOOD
