"""Logical units by number, nexuses and lanes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vringd.block.backend import BlockLimits
from vringd.block.null import NullBackend
from vringd.scsi.settings import UnitSettings
from vringd.scsi.target import ScsiTarget
from vringd.scsi.unit import ScsiUnit
from vringd.testing import scsi_cdb as cdb
from vringd.testing.scsi_initiator import Initiator, MemoryDisk

from .rig import GOOD, INVALID_FIELD, READ_10, Rig, drain, sense

MakeRig = Callable[..., Rig]


def luns(data: bytes) -> list[bytes]:
    assert int.from_bytes(data[:4], "big") == len(data) - 8
    return [data[at : at + 8] for at in range(8, len(data), 8)]


@pytest.fixture
def target(rig: Rig) -> Initiator:
    """An initiator whose target has unit a at LUN 5."""
    target = ScsiTarget()
    rig.a.close()
    made = Initiator(rig.unit, rig.disk.open_channel(), nexus=rig.a.nexus, target=target)
    rig.initiators[0] = made
    target.add(5, rig.a.nexus)
    return made


def test_report_luns_lists_them_in_both_forms(rig: Rig, target: Initiator) -> None:
    inventory = ScsiTarget()
    units = [ScsiUnit(UnitSettings(), BlockLimits(), 1 << 20) for _ in range(5)]
    for lun, unit in zip((16383, 0, 255, 256, 300), units, strict=True):
        inventory.add(lun, unit.open_nexus("x"))
    assert inventory.luns == [0, 255, 256, 300, 16383]
    asker = Initiator(units[0], MemoryDisk(512).open_channel(), "asker", target=inventory)
    data = asker.execute(cdb.report_luns(), data_in=4096).data
    assert [lun[:2].hex() for lun in luns(data)] == ["0000", "00ff", "4100", "412c", "7fff"]
    assert all(lun[2:] == bytes(6) for lun in luns(data))
    short = asker.execute(cdb.report_luns(16), data_in=16).data
    assert short == data[:16]
    assert len(asker.execute(cdb.report_luns(select=1), data_in=64).data) == 8
    assert len(asker.execute(cdb.report_luns(select=2), data_in=64).data) == 48
    asker.close()


def test_report_luns_checks_its_fields(rig: Rig) -> None:
    assert sense(rig.run(cdb.report_luns(15), in_=15)) == INVALID_FIELD
    assert sense(rig.run(cdb.report_luns(select=3), in_=64)) == INVALID_FIELD
    assert rig.run(cdb.report_luns(), in_=64).data == bytes([0, 0, 0, 8]) + bytes(12)


def test_commands_reach_the_unit_at_their_lun(target: Initiator) -> None:
    assert target.execute_lun(5, cdb.TEST_UNIT_READY).status == GOOD
    assert target.execute_lun(5, cdb.transfer(READ_10, 0, 1), 512).status == GOOD


def test_there_is_nothing_at_other_luns(target: Initiator) -> None:
    for lun in (0, 4, 6, 255, 256, 16383, 16384, 2**32 - 1):
        assert target.execute_lun(lun, cdb.inquiry(), 255).data[0] == 0x7F
        assert sense(target.execute_lun(lun, cdb.inquiry(page=0), 255)) == INVALID_FIELD
        assert sense(target.execute_lun(lun, cdb.TEST_UNIT_READY)) == (5, 0x2500)
        assert sense(target.execute_lun(lun, cdb.transfer(READ_10, 0, 1), 512)) == (5, 0x2500)
        data = target.execute_lun(lun, cdb.request_sense(), 252).data
        assert (data[2], data[12]) == (5, 0x25)
        data = target.execute_lun(lun, cdb.report_luns(), 4096).data
        assert [one[:2].hex() for one in luns(data)] == ["0005"]


def test_adding_and_removing_units_is_told(rig: Rig, target: Initiator) -> None:
    other = ScsiUnit(UnitSettings(), BlockLimits(), 1 << 20)
    nexus = other.open_nexus("a")
    assert target.target is not None
    target.target.add(6, nexus)
    result = target.execute_lun(5, cdb.TEST_UNIT_READY)
    assert (result.key, result.code) == (6, 0x3F0E)
    with pytest.raises(ValueError, match="in use"):
        target.target.add(6, nexus)
    with pytest.raises(ValueError, match="16383"):
        target.target.add(16384, nexus)
    assert target.target.remove(6) is nexus
    # REPORT LUNS itself tells of the change.
    target.execute_lun(5, cdb.report_luns(), 4096)
    assert target.execute_lun(5, cdb.TEST_UNIT_READY).status == GOOD
    with pytest.raises(KeyError):
        target.target.remove(6)


def test_nexuses_and_lanes_are_checked(rig: Rig) -> None:
    for name in ("", "with blank", "naïve", "x" * 224):
        with pytest.raises(ValueError, match="initiator"):
            rig.unit.open_nexus(name)
    with pytest.raises(ValueError, match="has a nexus"):
        rig.unit.open_nexus("a")
    assert rig.unit.open_nexus("a", port=2).initiator == "a"
    with pytest.raises(ValueError, match="port"):
        rig.unit.open_nexus("c", port=0)
    channel = rig.disk.open_channel()
    with pytest.raises(ValueError, match="open already"):
        rig.a.nexus.open_lane(0, channel)
    with pytest.raises(ValueError, match="lane 64"):
        rig.a.nexus.open_lane(64, channel)
    with pytest.raises(ValueError, match="not open"):
        rig.a.nexus.close_lane(1)


def test_what_is_in_use_is_not_closed(rig: Rig) -> None:
    rig.disk.hold(0)
    command = rig.a.start(cdb.transfer(READ_10, 0, 1), data_in=512)
    assert rig.a.nexus.running() == 1
    with pytest.raises(RuntimeError, match="tasks"):
        rig.a.nexus.close_lane(0)
    with pytest.raises(RuntimeError, match="tasks"):
        rig.a.nexus.close()
    rig.disk.hold(-1)
    rig.a.release()
    assert command.result.status == GOOD
    assert rig.a.nexus.running() == 0


def test_a_null_disk(rig: Rig) -> None:
    disk = NullBackend("n", size=1 << 20)
    unit = ScsiUnit(UnitSettings(), disk.limits, disk.size)
    who = Initiator(unit, disk.open_channel(io_uring=False), "x")
    drain(who)
    assert who.execute(cdb.transfer(READ_10, 0, 8), data_in=4096).status == GOOD
    assert who.execute(cdb.get_lba_status(0), data_in=24).data[8:21] == bytes(10) + b"\x08\0\0"
    who.close()
