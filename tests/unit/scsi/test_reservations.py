"""PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from vringd.scsi.reservation_file import load_reservations
from vringd.testing import scsi_cdb as cdb
from vringd.testing.scsi_initiator import Initiator, Result

from .rig import (
    BUSY,
    CONFLICT,
    GOOD,
    INVALID_FIELD,
    INVALID_PARAMETER,
    LIST_LENGTH,
    READ_10,
    WRITE_10,
    Rig,
    drain,
    sense,
)

MakeRig = Callable[..., Rig]
REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_ABORT, IGNORE, MOVE = range(8)
READ_KEYS, READ_RESERVATION, CAPABILITIES, FULL_STATUS = range(4)
TYPES = (1, 3, 5, 6, 7, 8)
ALL_REGISTRANTS = (7, 8)
APTPL = 1
RESERVE_6, RELEASE_6 = bytes([0x16, 0, 0, 0, 0, 0]), bytes([0x17, 0, 0, 0, 0, 0])
RESERVE_10, RELEASE_10 = bytes([0x56]) + bytes(9), bytes([0x57]) + bytes(9)
READ, WRITE = cdb.transfer(READ_10, 0, 1), cdb.transfer(WRITE_10, 0, 1)


def out(
    who: Initiator, action: int, key: int = 0, other: int = 0, kind: int = 0, *, flags: int = 0
) -> Result:
    data = cdb.persistent_list(key, other, flags=flags)
    return who.execute(cdb.persistent_out(action, kind), data)


def register(who: Initiator, key: int, *, flags: int = 0) -> None:
    assert out(who, IGNORE, other=key, flags=flags).status == GOOD


def reserve(who: Initiator, key: int, kind: int) -> None:
    assert out(who, RESERVE, key, kind=kind).status == GOOD


def keys(who: Initiator) -> list[int]:
    data = who.execute(cdb.persistent_in(READ_KEYS), data_in=8192).data
    assert struct.unpack_from(">I", data, 4)[0] == len(data) - 8
    return list(struct.unpack_from(f">{(len(data) - 8) // 8}Q", data, 8))


def generation(who: Initiator) -> int:
    data = who.execute(cdb.persistent_in(READ_KEYS, 8), data_in=8).data
    return int.from_bytes(data[:4], "big")


def reservation(who: Initiator) -> tuple[int, int] | None:
    """(key, type) of the reservation that there is."""
    data = who.execute(cdb.persistent_in(READ_RESERVATION), data_in=8192).data
    if len(data) == 8:
        return None
    assert len(data) == 24
    key, kind = struct.unpack_from(">Q4xxB", data, 8)
    return key, kind


def may(who: Initiator) -> tuple[bool, bool]:
    """Whether the initiator may read and write."""
    read, write = who.execute(READ, data_in=512), who.execute(WRITE, bytes(512))
    assert {read.status, write.status} <= {GOOD, CONFLICT}
    return read.status == GOOD, write.status == GOOD


# ---- registering --------------------------------------------------------------------------------


def test_registering_and_unregistering(rig: Rig) -> None:
    assert keys(rig.a) == []
    assert out(rig.a, REGISTER, 5, 1).status == CONFLICT
    assert out(rig.a, REGISTER, 0, 1).status == GOOD
    assert keys(rig.a) == [1]
    assert out(rig.a, REGISTER, 0, 2).status == CONFLICT
    assert out(rig.a, REGISTER, 1, 2).status == GOOD
    assert keys(rig.a) == [2]
    assert out(rig.a, IGNORE, 99, 3).status == GOOD
    assert keys(rig.a) == [3]
    assert out(rig.a, REGISTER, 3, 0).status == GOOD
    assert keys(rig.a) == []
    assert generation(rig.a) == 4
    assert out(rig.a, REGISTER, 0, 0).status == GOOD
    assert out(rig.a, IGNORE, 0, 0).status == GOOD
    assert generation(rig.a) == 4


def test_read_keys_is_cut_but_tells_the_whole_length(rig: Rig) -> None:
    register(rig.a, 7)
    data = rig.run(cdb.persistent_in(READ_KEYS, 8), in_=8).data
    assert data == struct.pack(">II", 1, 8)


def test_there_is_room_for_128_registrations(rig: Rig) -> None:
    for i in range(128):
        register(rig.initiator(f"i{i}"), i + 1)
    assert sense(out(rig.a, IGNORE, other=200)) == (5, 0x5504)
    assert keys(rig.a) == list(range(1, 129))
    assert len(rig.run(cdb.persistent_in(FULL_STATUS, 65535), in_=65535).data) > 128 * 48


def test_capabilities(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig()
    assert rig.run(cdb.persistent_in(CAPABILITIES), in_=64).data == bytes.fromhex(
        "00081080ea010000"
    )
    result = out(rig.a, REGISTER, other=1, flags=APTPL)
    assert sense(result) == INVALID_PARAMETER
    assert result.field == ("list", 20, 0)
    rig = make_rig(pr_file=str(tmp_path / "pr"))
    assert rig.run(cdb.persistent_in(CAPABILITIES), in_=64).data == bytes.fromhex(
        "00081180ea010000"
    )
    register(rig.a, 1, flags=APTPL)
    assert rig.run(cdb.persistent_in(CAPABILITIES), in_=64).data == bytes.fromhex(
        "00081181ea010000"
    )


def test_unknown_service_actions_are_refused(rig: Rig) -> None:
    for action in range(4, 32):
        assert sense(rig.run(cdb.persistent_in(action), in_=64)) == INVALID_FIELD
    for action in range(8, 32):
        assert sense(out(rig.a, action)) == INVALID_FIELD


def test_parameters_are_checked(rig: Rig) -> None:
    for size in (0, 8, 23, 25, 48, 5000):
        block = cdb.persistent_out(REGISTER, size=size)
        assert sense(rig.run(block, bytes(size))) == LIST_LENGTH
    assert rig.run(cdb.persistent_out(REGISTER), bytes(23)).overrun
    for flag, bit in ((8, 3), (4, 2)):
        result = out(rig.a, REGISTER, other=1, flags=flag)
        assert sense(result) == INVALID_PARAMETER
        assert result.field == ("list", 20, bit)
    register(rig.a, 1)
    data = cdb.persistent_list(1)
    for kind in (0, 2, 4, 9, 15):
        result = rig.run(cdb.persistent_out(RESERVE, kind), data)
        assert sense(result) == INVALID_FIELD
        assert result.field == ("cdb", 2, 3)
    result = rig.run(cdb.persistent_out(RESERVE, 1, scope=1), data)
    assert sense(result) == INVALID_FIELD
    assert result.field == ("cdb", 2, 7)


# ---- reserving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_reserving_and_releasing(rig: Rig, kind: int) -> None:
    assert out(rig.a, RESERVE, 0, kind=kind).status == CONFLICT
    register(rig.a, 1)
    assert out(rig.a, RESERVE, 2, kind=kind).status == CONFLICT
    before = generation(rig.a)
    reserve(rig.a, 1, kind)
    reserve(rig.a, 1, kind)
    assert reservation(rig.a) == (0 if kind in ALL_REGISTRANTS else 1, kind)
    assert out(rig.a, RESERVE, 1, kind=3 if kind == 1 else 1).status == CONFLICT
    assert sense(out(rig.a, RELEASE, 1, kind=3 if kind == 1 else 1)) == (5, 0x2604)
    assert out(rig.a, RELEASE, 2, kind=kind).status == CONFLICT
    assert out(rig.a, RELEASE, 1, kind=kind).status == GOOD
    assert reservation(rig.a) is None
    assert out(rig.a, RELEASE, 1, kind=kind).status == GOOD
    assert generation(rig.a) == before


@pytest.mark.parametrize(
    ("kind", "registered", "unregistered"),
    [
        (1, (True, False), (True, False)),
        (3, (False, False), (False, False)),
        (5, (True, True), (True, False)),
        (6, (True, True), (False, False)),
        (7, (True, True), (True, False)),
        (8, (True, True), (False, False)),
    ],
)
def test_who_may_do_what(
    rig: Rig, kind: int, registered: tuple[bool, bool], unregistered: tuple[bool, bool]
) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    reserve(rig.a, 1, kind)
    assert may(rig.a) == (True, True)
    assert may(b) == registered
    assert out(b, REGISTER, 2, 0).status == GOOD
    assert may(b) == unregistered
    assert may(rig.initiator("newcomer")) == unregistered
    assert out(rig.a, RELEASE, 1, kind=kind).status == GOOD
    assert may(b) == (True, True)


@pytest.mark.parametrize("kind", TYPES)
def test_ownership_of_the_second_registrant(rig: Rig, kind: int) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    reserve(rig.a, 1, kind)
    shared = kind in ALL_REGISTRANTS
    assert out(b, RESERVE, 2, kind=kind).status == (GOOD if shared else CONFLICT)
    # Who does not hold it releases nothing.
    assert out(b, RELEASE, 2, kind=kind).status == GOOD
    assert (reservation(b) is None) == shared


@pytest.mark.parametrize("kind", TYPES)
def test_what_ends_with_the_holders_registration(rig: Rig, kind: int) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    reserve(rig.a, 1, kind)
    assert out(rig.a, REGISTER, 1, 0).status == GOOD
    if kind in ALL_REGISTRANTS:
        assert reservation(b) == (0, kind)
        assert drain(b) == []
        assert out(b, REGISTER, 2, 0).status == GOOD
    assert drain(b) == ([0x2A04] if kind in (5, 6) else [])
    assert reservation(b) is None


@pytest.mark.parametrize("kind", TYPES)
def test_a_release_is_told_to_who_had_rights_by_it(rig: Rig, kind: int) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    register(rig.a, 1)
    register(b, 2)
    reserve(rig.a, 1, kind)
    assert out(rig.a, RELEASE, 1, kind=kind).status == GOOD
    assert drain(b) == ([0x2A04] if kind >= 5 else [])
    assert drain(c) == drain(rig.a) == []


@pytest.mark.parametrize("kind", [1, 3])
def test_commands_that_conflict_and_that_do_not(rig: Rig, kind: int) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    reserve(rig.a, 1, kind)
    always = [
        cdb.TEST_UNIT_READY, cdb.inquiry(), cdb.request_sense(), cdb.report_luns(),
        cdb.read_capacity_10(), cdb.read_capacity_16(), cdb.persistent_in(READ_KEYS),
        cdb.prevent_removal(0), cdb.start_stop(start=True),
    ]  # fmt: skip
    reading = [
        READ, cdb.mode_sense_6(0x3F), cdb.get_lba_status(0), cdb.report_opcodes(),
        cdb.transfer(0x2F, 0, 1), cdb.transfer(0x34, 0, 1),
    ]  # fmt: skip
    writing = [
        cdb.transfer(0x35, 0, 1), cdb.unmap(0), cdb.transfer(0x41, 0, 1), cdb.mode_select_6(0),
        cdb.compare_and_write(0, 1), cdb.start_stop(start=False), cdb.prevent_removal(1),
        cdb.transfer(0x2E, 0, 1), cdb.transfer(0x8B, 0, 1), bytes([0x1D, 4, 0, 0, 0, 0]),
    ]  # fmt: skip
    for command in always:
        assert b.execute(command, data_in=8192).status == GOOD, command.hex()
    for command in reading:
        status = b.execute(command, data_in=8192).status
        assert status == (GOOD if kind == 1 else CONFLICT), command.hex()
    for command in writing:
        assert b.execute(command, bytes(1024)).status == CONFLICT, command.hex()


def test_a_reset_is_told_before_a_conflict_and_other_conditions_after_it(rig: Rig) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    reserve(rig.a, 1, 3)
    rig.unit.set_capacity(rig.size // 2)
    rig.unit.reset()
    assert sense(b.execute(READ, data_in=512)) == (6, 0x2903)
    assert b.execute(READ, data_in=512).status == CONFLICT
    drain(rig.a)
    assert reservation(rig.a) == (1, 3)
    assert out(rig.a, RELEASE, 1, kind=3).status == GOOD
    assert sense(b.execute(READ, data_in=512)) == (6, 0x2A09)


def test_full_status(rig: Rig) -> None:
    b = rig.initiator("iqn.2026-01.org.example:a-long-name")
    register(rig.a, 1)
    register(b, 2)
    reserve(b, 2, 5)
    data = rig.run(cdb.persistent_in(FULL_STATUS), in_=8192).data
    assert struct.unpack_from(">II", data) == (2, len(data) - 8)
    at, seen = 8, []
    while at < len(data):
        key, holder, kind, port, length = struct.unpack_from(">Q4xBB4xHI", data, at)
        identity = data[at + 24 : at + 24 + length]
        assert identity[:2] == b"\x05\0"
        assert struct.unpack_from(">H", identity, 2)[0] == length - 4
        assert length % 4 == 0
        assert length >= 24
        seen.append((key, holder, kind, port, identity[4:].rstrip(b"\0").decode()))
        at += 24 + length
    assert seen == [(1, 0, 0, 1, "a"), (2, 1, 5, 1, "iqn.2026-01.org.example:a-long-name")]


# ---- clearing and preempting --------------------------------------------------------------------


def test_clear_ends_everything(rig: Rig) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    reserve(b, 2, 3)
    assert out(rig.a, CLEAR, 9).status == CONFLICT
    before = generation(rig.a)
    assert out(rig.a, CLEAR, 1).status == GOOD
    assert keys(rig.a) == []
    assert reservation(rig.a) is None
    assert generation(rig.a) == before + 1
    assert drain(b) == [0x2A03]
    assert drain(rig.a) == []


@pytest.mark.parametrize("action", [PREEMPT, PREEMPT_ABORT])
def test_preempting_a_registration(rig: Rig, action: int) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    register(rig.a, 1)
    register(b, 2)
    register(c, 2)
    before = generation(rig.a)
    assert out(rig.a, action, 1, 9, kind=3).status == CONFLICT
    assert sense(out(rig.a, action, 1, 0, kind=3)) == INVALID_PARAMETER
    assert out(rig.a, action, 1, 2, kind=3).status == GOOD
    assert keys(rig.a) == [1]
    assert reservation(rig.a) is None
    assert generation(rig.a) == before + 1
    assert drain(b) == drain(c) == [0x2A05]


@pytest.mark.parametrize("action", [PREEMPT, PREEMPT_ABORT])
@pytest.mark.parametrize("kind", [1, 3, 5, 6])
def test_preempting_the_holder_takes_the_reservation(rig: Rig, action: int, kind: int) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    register(rig.a, 1)
    register(b, 2)
    register(c, 3)
    reserve(rig.a, 1, kind)
    assert sense(out(b, action, 2, 1, kind=2)) == INVALID_FIELD
    assert out(b, action, 2, 1, kind=8).status == GOOD
    assert keys(b) == [2, 3]
    assert reservation(b) == (0, 8)
    assert drain(rig.a) == [0x2A05]
    assert drain(c) == [0x2A04]  # the type has changed
    assert may(rig.a) == (False, False)
    assert out(c, action, 3, 0, kind=3).status == GOOD
    assert keys(c) == [3]
    assert reservation(c) == (3, 3)


def test_preempting_a_registrant_leaves_a_reservation_of_all(rig: Rig) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    reserve(rig.a, 1, 7)
    assert out(rig.a, PREEMPT, 1, 2, kind=3).status == GOOD
    assert reservation(rig.a) == (0, 7)
    assert drain(b) == [0x2A05]
    assert may(b) == (True, False)


def test_preempting_oneself_keeps_the_registration(rig: Rig) -> None:
    register(rig.a, 1)
    reserve(rig.a, 1, 1)
    assert out(rig.a, PREEMPT, 1, 1, kind=3).status == GOOD
    assert keys(rig.a) == [1]
    assert reservation(rig.a) == (1, 3)


def test_preempt_and_abort_waits_for_the_tasks_that_it_aborts(rig: Rig) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    register(rig.a, 1)
    register(b, 2)
    register(c, 3)
    rig.disk.hold(0)
    read = b.start(READ, data_in=512)
    other = c.start(READ, data_in=512)
    data = cdb.persistent_list(1, 2)
    abort = rig.a.start(cdb.persistent_out(PREEMPT_ABORT, 3), data)
    rig.a.poll()
    assert not abort.done
    # Of a's tasks there is only the one that waits: it waits no more.
    counter = c.start(cdb.persistent_out(PREEMPT_ABORT, 3), cdb.persistent_list(3, 1))
    rig.a.poll()
    assert abort.result.aborted
    c.poll()
    assert counter.result.status == GOOD
    b.release()
    assert read.done
    assert read.result.aborted
    c.release()
    assert other.result.status == GOOD
    assert not other.result.aborted
    rig.disk.hold(-1)
    assert drain(b) == [0x2A05]


def test_preempt_and_abort_is_done_when_the_last_task_is(rig: Rig) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    rig.disk.hold(0)
    reads = [b.start(READ, data_in=512) for _ in range(3)]
    abort = rig.a.start(cdb.persistent_out(PREEMPT_ABORT, 3), cdb.persistent_list(1, 2))
    later = b.start(cdb.inquiry(), data_in=255)
    assert later.result.status == GOOD
    assert not later.result.aborted
    rig.a.poll()
    assert not abort.done
    b.release()
    rig.a.poll()
    assert abort.done
    assert abort.result.status == GOOD
    assert [read.result.aborted for read in reads] == [True] * 3
    rig.disk.hold(-1)


def test_a_nexus_is_aborted_by_one_at_a_time(rig: Rig) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    register(rig.a, 1)
    register(b, 2)
    register(c, 3)
    rig.disk.hold(0)
    read = b.start(READ, data_in=512)
    abort = rig.a.start(cdb.persistent_out(PREEMPT_ABORT, 3), cdb.persistent_list(1, 2))
    assert drain(b) == [0x2A05]
    register(b, 2)
    assert out(c, PREEMPT_ABORT, 3, 2, kind=3).status == BUSY
    b.release()
    rig.a.poll()
    assert abort.result.status == GOOD
    assert read.result.aborted
    rig.disk.hold(-1)


def test_another_abort_does_not_end_the_waiting_for_the_first(rig: Rig) -> None:
    b = rig.initiator("b")
    register(rig.a, 1)
    register(b, 2)
    rig.disk.hold(0)
    read = b.start(READ, data_in=512)
    abort = rig.a.start(cdb.persistent_out(PREEMPT_ABORT, 3), cdb.persistent_list(1, 2))
    b.nexus.abort()
    assert drain(b) == [0x2A05]
    rig.a.poll()
    assert not abort.done
    b.release()
    rig.a.poll()
    assert abort.result.status == GOOD
    assert read.result.aborted
    rig.disk.hold(-1)


# ---- moving -------------------------------------------------------------------------------------


def move(who: Initiator, key: int, other: int, name: str, *, unreg: bool = False) -> Result:
    data = cdb.move_list(key, other, name, unreg=unreg)
    return who.execute(cdb.persistent_out(MOVE, size=len(data)), data)


@pytest.mark.parametrize("unreg", [False, True])
@pytest.mark.parametrize("connected", [False, True])
def test_register_and_move(rig: Rig, unreg: bool, connected: bool) -> None:
    if connected:
        rig.initiator("b")
    register(rig.a, 1)
    assert move(rig.a, 1, 2, "b").status == CONFLICT
    reserve(rig.a, 1, 3)
    assert sense(move(rig.a, 1, 0, "b")) == INVALID_PARAMETER
    assert sense(move(rig.a, 1, 2, "a")) == INVALID_PARAMETER
    before = generation(rig.a)
    assert move(rig.a, 1, 2, "b", unreg=unreg).status == GOOD
    assert generation(rig.a) == before + 1
    assert keys(rig.a) == ([2] if unreg else [1, 2])
    assert reservation(rig.a) == (2, 3)
    b = rig.initiators[1] if connected else rig.initiator("b")
    assert may(b) == (True, True)
    assert may(rig.a) == (False, False)


def test_a_transport_id_that_makes_no_sense_is_refused(rig: Rig) -> None:
    register(rig.a, 1)
    reserve(rig.a, 1, 3)
    good = cdb.move_list(1, 2, "b")
    for at, value in ((23, 23), (24, 6), (27, 21), (28, 0), (28, 0x20), (28, 0xFF)):
        data = good[:at] + bytes([value]) + good[at + 1 :]
        assert rig.run(cdb.persistent_out(MOVE, size=len(data)), data).status == 2
    endless = good[:28] + b"x" * 20
    assert sense(rig.run(cdb.persistent_out(MOVE, size=48), endless)) == INVALID_PARAMETER
    longest = cdb.move_list(1, 2, "n" * 223)
    assert rig.run(cdb.persistent_out(MOVE, size=len(longest)), longest).status == GOOD


# ---- keeping ------------------------------------------------------------------------------------


def test_registrations_survive_in_a_file(make_rig: MakeRig, tmp_path: Path) -> None:
    path = tmp_path / "reservations"
    rig = make_rig(pr_file=str(path))
    assert not path.exists()
    register(rig.a, 1, flags=APTPL)
    b = rig.initiator("b")
    register(b, 2, flags=APTPL)
    reserve(b, 2, 5)
    kept = load_reservations(str(path))
    assert kept.type == 5
    assert [(one.key, one.holder, one.initiator) for one in kept.registrations] == [
        (1, False, "a"),
        (2, True, "b"),
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    again = make_rig(pr_file=str(path))
    assert keys(again.a) == [1, 2]
    assert reservation(again.a) == (2, 5)
    assert generation(again.a) == 0
    assert may(again.a) == (True, True)
    assert may(again.initiator("c")) == (True, False)
    assert out(again.a, CLEAR, 1).status == GOOD
    assert load_reservations(str(path)).registrations == []


def test_registering_without_aptpl_forgets_what_was_kept(make_rig: MakeRig, tmp_path: Path) -> None:
    path = tmp_path / "pr"
    rig = make_rig(pr_file=str(path))
    register(rig.a, 1, flags=APTPL)
    assert len(load_reservations(str(path)).registrations) == 1
    register(rig.a, 1)
    assert load_reservations(str(path)).registrations == []
    assert keys(rig.a) == [1]


def test_the_same_state_is_not_written_again(make_rig: MakeRig, tmp_path: Path) -> None:
    path = tmp_path / "pr"
    rig = make_rig(pr_file=str(path))
    register(rig.a, 1, flags=APTPL)
    inode = path.stat().st_ino
    register(rig.a, 1, flags=APTPL)
    assert path.stat().st_ino == inode


def test_a_command_fails_if_the_file_cannot_be_written(make_rig: MakeRig, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    rig = make_rig(pr_file=str(folder / "pr"))
    folder.rmdir()
    assert sense(out(rig.a, IGNORE, other=1, flags=APTPL)) == (4, 0x4400)


@pytest.mark.parametrize(
    "text",
    [
        "something else\n",
        "vringd-reservations 1\nreservation 2\n",
        "vringd-reservations 1\nreservation 1\n",
        "vringd-reservations 1\nregistration 0 0 1 a\n",
        "vringd-reservations 1\nregistration 1 2 1 a\n",
        "vringd-reservations 1\nregistration 1 0 1\n",
        "vringd-reservations 1\nregistration 1 0 70000 a\n",
        "\xff\xfe",
    ],
)
def test_a_damaged_file_is_not_taken_for_no_reservations(
    make_rig: MakeRig, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "pr"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=os.fspath(path)):
        make_rig(pr_file=str(path))


def test_a_registration_outlives_its_nexus(rig: Rig) -> None:
    b = rig.initiator("b")
    register(b, 2)
    reserve(b, 2, 3)
    b.close()
    b.nexus.close()
    assert reservation(rig.a) == (2, 3)
    assert may(rig.a) == (False, False)
    again = rig.initiator("b")
    assert may(again) == (True, True)


# ---- RESERVE and RELEASE ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reserve_", "release"), [(RESERVE_6, RELEASE_6), (RESERVE_10, RELEASE_10)]
)
def test_two_initiators_reserve(rig: Rig, reserve_: bytes, release: bytes) -> None:
    b = rig.initiator("b")
    assert rig.run(reserve_).status == GOOD
    assert rig.run(reserve_).status == GOOD
    assert b.execute(reserve_).status == CONFLICT
    assert b.execute(release).status == GOOD  # without effect
    assert rig.run(cdb.mode_sense_6(0x3F), in_=255).status == GOOD
    assert b.execute(cdb.mode_sense_6(0x3F), data_in=255).status == CONFLICT
    assert b.execute(cdb.TEST_UNIT_READY).status == CONFLICT
    for allowed in (cdb.inquiry(), cdb.request_sense(), cdb.report_luns()):
        assert b.execute(allowed, data_in=4096).status == GOOD
    assert rig.run(release).status == GOOD
    assert b.execute(reserve_).status == GOOD
    assert may(rig.a) == (False, False)
    assert b.execute(release).status == GOOD
    assert may(rig.a) == (True, True)


@pytest.mark.parametrize("how", ["reset", "lose", "close"])
def test_a_reserve_ends_with_its_nexus_and_with_resets(rig: Rig, how: str) -> None:
    b = rig.initiator("b")
    assert b.execute(RESERVE_6).status == GOOD
    if how == "reset":
        rig.unit.reset()
    elif how == "lose":
        b.nexus.lose()
    else:
        b.close()
        b.nexus.close()
    drain(rig.a)
    assert may(rig.a) == (True, True)


def test_the_two_kinds_of_reservation_exclude_each_other(rig: Rig) -> None:
    b = rig.initiator("b")
    assert rig.run(RESERVE_6).status == GOOD
    assert out(rig.a, IGNORE, other=1).status == CONFLICT
    assert out(b, IGNORE, other=1).status == CONFLICT
    assert rig.run(RELEASE_6).status == GOOD
    register(rig.a, 1)
    assert b.execute(RESERVE_6).status == CONFLICT
    assert b.execute(RELEASE_6).status == CONFLICT
    assert rig.run(RESERVE_6).status == GOOD  # CRH: without effect
    assert may(b) == (True, True)
    assert rig.run(RELEASE_6).status == GOOD
    register(b, 2)
    reserve(rig.a, 1, 1)
    assert b.execute(RESERVE_6).status == CONFLICT
    assert rig.run(RESERVE_6).status == GOOD
