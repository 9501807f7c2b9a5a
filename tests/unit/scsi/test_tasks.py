"""Aborts and atomic commands, step by step with operations that the disk holds back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vringd.testing import scsi_cdb as cdb
from vringd.testing.scsi_initiator import Command

from .rig import (
    ABORTED,
    GOOD,
    ORWRITE,
    READ_10,
    VERIFY_16,
    WRITE_10,
    WRITE_SAME_16,
    Rig,
    drain,
)

MakeRig = Callable[..., Rig]
OP_READ, OP_WRITE = 0, 1
OLD, NEW, OTHER = bytes(512), b"n" * 512, b"o" * 512
COMPARE = cdb.compare_and_write(0, 1)


def write(lba: int, blocks: int = 1) -> bytes:
    return cdb.transfer(WRITE_10, lba, blocks)


def test_an_aborted_task_ends_with_its_operation(rig: Rig) -> None:
    rig.disk.hold(OP_READ)
    commands = [rig.a.start(cdb.transfer(READ_10, i, 1), data_in=512) for i in range(3)]
    rig.a.abort(commands[1])
    assert not commands[1].done
    rig.a.release()
    assert [command.result.aborted for command in commands] == [False, True, False]
    assert commands[1].result.status == ABORTED
    assert commands[1].result.transferred == 0
    assert commands[0].result.status == commands[2].result.status == GOOD
    rig.disk.hold(-1)


def test_an_aborted_loop_takes_no_further_step(make_rig: MakeRig) -> None:
    rig = make_rig(blocks=4096)
    rig.disk.hold(OP_READ)
    command = rig.a.start(cdb.transfer(VERIFY_16, 0, 4096))
    rig.a.abort(command)
    rig.a.release()
    assert command.result.aborted
    assert rig.disk.operations[OP_READ] == 1
    rig.disk.hold(OP_WRITE)
    command = rig.a.start(cdb.transfer(WRITE_SAME_16, 0, 4096), NEW)
    rig.a.nexus.abort()
    rig.a.release()
    assert command.result.aborted
    assert rig.disk.operations[OP_WRITE] == 1
    rig.disk.hold(-1)
    rig.write(0, OLD)


@pytest.mark.parametrize("how", ["abort", "lose", "reset", "clear"])
def test_aborting_all_tasks_of_a_nexus(rig: Rig, how: str) -> None:
    b = rig.initiator("b")
    rig.disk.hold(OP_READ)
    mine = [rig.a.start(cdb.transfer(READ_10, i, 1), data_in=512) for i in range(3)]
    theirs = b.start(cdb.transfer(READ_10, 0, 1), data_in=512)
    nexus = rig.a.nexus
    if how == "reset":
        ended = dict(rig.unit.reset())[nexus]
    elif how == "clear":
        ended = dict(rig.unit.clear_tasks(nexus))[nexus]
    else:
        ended = getattr(nexus, how)()
    assert nexus.aborting(ended) == 3
    drain(rig.a)
    later = rig.a.start(cdb.transfer(READ_10, 0, 1), data_in=512)
    assert nexus.aborting(ended) == 3
    assert nexus.running() == 4
    rig.a.release()
    b.release()
    assert nexus.aborting(ended) == 0
    assert [command.result.aborted for command in mine] == [True] * 3
    assert not later.result.aborted
    assert theirs.result.aborted == (how in ("reset", "clear"))
    rig.disk.hold(-1)


def start_compare(rig: Rig) -> Command:
    """A COMPARE AND WRITE of block 0 that waits for its read."""
    rig.disk.hold(OP_READ)
    command = rig.a.start(COMPARE, OLD + NEW)
    rig.disk.hold(-1)
    assert not command.done
    return command


def test_a_write_waits_for_an_atomic_command_on_its_blocks(rig: Rig) -> None:
    b = rig.initiator("b")
    compare = start_compare(rig)
    waiting = b.start(write(0), OTHER)
    free = b.start(write(1), OTHER)
    assert free.result.status == GOOD
    assert not waiting.done
    rig.a.release()
    assert compare.result.status == GOOD
    assert not waiting.done  # its own thread goes on with it
    assert rig.disk.data[:512] == NEW
    b.poll()
    assert waiting.result.status == GOOD
    assert rig.disk.data[:512] == OTHER


def test_an_atomic_command_waits_for_writes_that_have_begun(rig: Rig) -> None:
    b = rig.initiator("b")
    rig.disk.hold(OP_WRITE)
    first = b.start(write(0), OTHER)
    rig.disk.hold(-1)
    compare = rig.a.start(COMPARE, OLD + NEW)
    rig.a.poll()
    assert not compare.done
    second = b.start(write(0), NEW)  # in its turn: after the atomic one
    assert not second.done
    b.release()
    assert first.result.status == GOOD
    rig.a.poll()
    assert compare.result.key == 0xE  # it saw the first write
    b.poll()
    assert second.result.status == GOOD
    assert rig.disk.data[:512] == NEW


def test_atomic_commands_on_the_same_blocks_take_turns(rig: Rig) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    first = start_compare(rig)
    second = b.start(COMPARE, NEW + OTHER)
    third = c.start(cdb.transfer(ORWRITE, 0, 1), b"\x80" * 512)
    elsewhere = c.start(cdb.compare_and_write(5, 1), OLD + NEW)
    assert elsewhere.result.status == GOOD
    assert not second.done
    assert not third.done
    rig.a.release()
    assert first.result.status == GOOD
    c.poll()
    assert not third.done
    b.poll()
    assert second.result.status == GOOD
    c.poll()
    assert third.result.status == GOOD
    assert rig.disk.data[:512] == bytes(512 * [OTHER[0] | 0x80])


def test_unmap_and_write_same_wait_too(rig: Rig) -> None:
    b = rig.initiator("b")
    compare = start_compare(rig)
    data = cdb.unmap_list((0, 1))
    commands = [
        b.start(cdb.unmap(len(data)), data),
        b.start(cdb.transfer(WRITE_SAME_16, 0, 512), OTHER),
        b.start(cdb.transfer(0x8E, 0, 1), OTHER),
    ]
    assert not any(command.done for command in commands)
    rig.a.release()
    b.poll()
    assert compare.result.status == GOOD
    assert [command.result.status for command in commands] == [GOOD] * 3


def test_a_waiting_task_can_be_aborted(rig: Rig) -> None:
    b, c = rig.initiator("b"), rig.initiator("c")
    compare = start_compare(rig)
    waiting = b.start(write(0), OTHER)
    atomic = c.start(COMPARE, OLD + OTHER)
    behind = b.start(write(0), OTHER)
    b.abort(waiting)
    b.poll()
    assert waiting.result.aborted
    c.nexus.abort()
    c.poll()
    assert atomic.result.aborted
    assert not behind.done
    rig.a.release()
    assert compare.result.status == GOOD
    b.poll()
    assert behind.result.status == GOOD
    assert rig.disk.operations[OP_WRITE] == 2


def test_an_aborted_atomic_command_lets_others_go_on(rig: Rig) -> None:
    b = rig.initiator("b")
    compare = start_compare(rig)
    waiting = b.start(write(0), OTHER)
    rig.a.abort(compare)
    rig.a.release()
    assert compare.result.aborted
    b.poll()
    assert waiting.result.status == GOOD
    assert rig.disk.data[:512] == OTHER
