"""TEST UNIT READY, REQUEST SENSE, START STOP UNIT, PREVENT ALLOW, unit attentions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb

from .rig import (
    CHECK,
    GOOD,
    INVALID_FIELD,
    NO_MEDIUM_OPEN,
    ORWRITE,
    PREFETCH_10,
    PREFETCH_16,
    READS,
    SYNC_10,
    SYNC_16,
    VERIFIES,
    WRITE_SAME_10,
    WRITE_SAME_16,
    WRITE_VERIFIES,
    WRITES,
    Rig,
    drain,
    sense,
)

MakeRig = Callable[..., Rig]
EJECT = cdb.start_stop(start=False, loej=True)
LOAD = cdb.start_stop(start=True, loej=True)
PREVENTED = (5, 0x5302)
FLUSH = 2


def test_a_disk_is_ready(rig: Rig) -> None:
    assert rig.run(cdb.TEST_UNIT_READY).status == GOOD
    data = rig.run(cdb.request_sense(), in_=252).data
    assert data == bytes([0x70, 0, 0, 0, 0, 0, 0, 10]) + bytes(10)
    assert rig.run(cdb.request_sense(descriptors=True), in_=252).data == b"\x72" + bytes(7)


def test_self_test_passes_and_defect_lists_are_empty(rig: Rig) -> None:
    assert rig.run(bytes([0x1D, 4, 0, 0, 0, 0])).status == GOOD
    assert sense(rig.run(bytes([0x1D, 0x24, 0, 0, 0, 0]))) == INVALID_FIELD
    assert sense(rig.run(bytes([0x1D, 0, 0, 0, 8, 0]), bytes(8))) == INVALID_FIELD
    ten = bytes([0x37, 0, 0x1D, 0, 0, 0, 0, 0, 32, 0])
    assert rig.run(ten, in_=32).data == bytes([0, 0x1D, 0, 0])
    twelve = bytes([0xB7, 0x18, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0])
    assert rig.run(twelve, in_=32).data == bytes([0, 0x18, 0, 0, 0, 0, 0, 0])


def test_stopping_flushes_and_changes_nothing(make_rig: MakeRig) -> None:
    for removable in (False, True):
        rig = make_rig(removable=removable)
        for start in (False, True):
            for no_flush in (False, True):
                before = rig.disk.operations[FLUSH]
                block = cdb.start_stop(start=start, no_flush=no_flush)
                assert rig.run(block).status == GOOD
                assert rig.run(cdb.TEST_UNIT_READY).status == GOOD
                assert rig.disk.operations[FLUSH] - before == (not start and not no_flush)


def test_power_conditions_do_not_eject(make_rig: MakeRig) -> None:
    rig = make_rig(removable=True)
    for power in range(1, 16):
        assert rig.run(cdb.start_stop(start=False, loej=True, power=power)).status == GOOD
        assert rig.run(cdb.TEST_UNIT_READY).status == GOOD


def test_a_fixed_disk_is_not_ejected(rig: Rig) -> None:
    assert rig.run(EJECT).status == GOOD
    assert rig.run(cdb.TEST_UNIT_READY).status == GOOD


def test_no_command_uses_an_ejected_medium(make_rig: MakeRig) -> None:
    rig = make_rig(removable=True)
    b = rig.initiator("b")
    assert rig.run(EJECT).status == GOOD
    assert rig.unit.medium == "ejected"
    commands = [
        cdb.transfer(opcode, 0, 1)
        for opcode in (
            *READS, *WRITES, *VERIFIES, *WRITE_VERIFIES, ORWRITE, PREFETCH_10, PREFETCH_16,
            SYNC_10, SYNC_16, WRITE_SAME_10, WRITE_SAME_16,
        )
    ]  # fmt: skip
    commands += [
        cdb.TEST_UNIT_READY,
        cdb.read_capacity_10(),
        cdb.read_capacity_16(),
        cdb.get_lba_status(0),
        cdb.compare_and_write(0, 1),
        cdb.unmap(24),
    ]
    for command in commands:
        assert sense(rig.run(command, bytes(1024), 1024)) == NO_MEDIUM_OPEN
    assert rig.disk.operations[:2] == [0, 0]
    assert rig.run(cdb.request_sense(), in_=18).data[12:14] == b"\x3a\x02"
    assert rig.run(cdb.inquiry(), in_=255).status == GOOD
    assert rig.run(LOAD).status == GOOD
    assert rig.run(cdb.TEST_UNIT_READY).status == GOOD
    assert drain(b) == [0x2800]
    assert drain(rig.a) == []


def test_removal_can_be_prevented(make_rig: MakeRig) -> None:
    rig = make_rig(removable=True)
    b = rig.initiator("b")
    assert rig.run(cdb.prevent_removal(1)).status == GOOD
    assert rig.run(cdb.prevent_removal(1)).status == GOOD
    assert rig.unit.prevents_removal
    assert sense(rig.run(EJECT)) == PREVENTED
    assert sense(b.execute(EJECT)) == PREVENTED
    assert rig.run(cdb.TEST_UNIT_READY).status == GOOD
    assert b.execute(cdb.prevent_removal(0)).status == GOOD
    assert sense(b.execute(EJECT)) == PREVENTED
    assert rig.run(cdb.prevent_removal(0)).status == GOOD
    assert rig.run(EJECT).status == GOOD
    assert rig.run(cdb.prevent_removal(1)).status == GOOD
    assert sense(rig.run(LOAD)) == PREVENTED
    assert rig.run(cdb.prevent_removal(0)).status == GOOD
    assert rig.run(LOAD).status == GOOD
    assert sense(rig.run(cdb.prevent_removal(2))) == INVALID_FIELD


@pytest.mark.parametrize("how", ["reset", "lose", "close"])
def test_prevention_ends_with_its_nexus_and_with_resets(make_rig: MakeRig, how: str) -> None:
    rig = make_rig(removable=True)
    b = rig.initiator("b")
    assert b.execute(cdb.prevent_removal(1)).status == GOOD
    if how == "reset":
        rig.unit.reset()
    elif how == "lose":
        b.nexus.lose()
        assert drain(b) == [0x2907]
    else:
        b.close()
        b.nexus.close()
    drain(rig.a)
    assert rig.run(EJECT).status == GOOD


def test_a_medium_can_be_changed_from_outside(make_rig: MakeRig) -> None:
    rig = make_rig(removable=True)
    rig.unit.set_medium(None)
    assert sense(rig.run(cdb.TEST_UNIT_READY)) == (2, 0x3A00)
    assert sense(rig.run(LOAD)) == (2, 0x3A00)
    assert rig.run(cdb.request_sense(), in_=18).data[2] == 2
    rig.unit.set_medium(1 << 16)
    assert drain(rig.a) == [0x2800]
    assert rig.run(cdb.read_capacity_10(), in_=8).data[:4] == (127).to_bytes(4, "big")
    with pytest.raises(ValueError, match="not removable"):
        make_rig().unit.set_medium(None)


def test_an_eject_request_is_told(make_rig: MakeRig) -> None:
    rig = make_rig(removable=True)
    rig.unit.request_eject()
    assert drain(rig.a) == [0x5A01]


def test_a_resize_is_told_to_everybody_once(rig: Rig) -> None:
    b = rig.initiator("b")
    rig.unit.set_capacity(rig.size)
    assert drain(b) == []
    rig.unit.set_capacity(rig.size // 2)
    for initiator in (rig.a, b):
        result = initiator.execute(cdb.TEST_UNIT_READY)
        assert (result.status, result.key, result.code) == (CHECK, 6, 0x2A09)
        assert initiator.execute(cdb.TEST_UNIT_READY).status == GOOD
    assert rig.run(cdb.read_capacity_10(), in_=8).data[:4] == (255).to_bytes(4, "big")


def test_unit_attentions_are_told_in_order_of_importance(rig: Rig) -> None:
    rig.unit.set_capacity(rig.size // 2)
    rig.unit.reset()
    rig.unit.reset(power_on=True)
    codes = []
    while (result := rig.run(cdb.TEST_UNIT_READY)).status == CHECK:
        codes.append(result.code)
    assert codes == [0x2900, 0x2903, 0x2A09]


def test_inquiry_does_not_take_a_unit_attention_away(rig: Rig) -> None:
    rig.unit.reset()
    assert rig.run(cdb.inquiry(), in_=255).status == GOOD
    assert rig.run(cdb.TEST_UNIT_READY).code == 0x2903


def test_an_unknown_operation_tells_of_a_reset_first(rig: Rig) -> None:
    rig.unit.reset()
    assert sense(rig.run(bytes([0xFF]) + bytes(15))) == (6, 0x2903)
