"""A virtio-scsi device as a driver sees it: commands, task management, events."""

from __future__ import annotations

import asyncio
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from vringd.block.backend import BlockBackend
from vringd.block.file import FileBackend
from vringd.block.null import NullBackend
from vringd.control.errors import OptionError
from vringd.control.schema import ScsiDeviceOptions
from vringd.control.scsi_paths import AttachedUnit
from vringd.control.threads import ManagedThread
from vringd.devices.scsi_config import encode_lun, encode_reported_lun
from vringd.devices.scsi_control import Function
from vringd.testing import scsi_cdb as cdb
from vringd.testing.chains import POISON, Split
from vringd.testing.fault_backend import FaultBackend
from vringd.testing.frontend import RingSpec
from vringd.testing.scsi import TMF, Response

from ...scsi_rig import ScsiGuest, ScsiHost

MIB = 1 << 20
READ, WRITE = 0x28, 0x2A
DISK = ScsiDeviceOptions(node_name="disk", writable=True, serial="S1")
MS = 1_000_000


@pytest.fixture
def disk(folder: Path) -> FaultBackend:
    image = folder / "disk.img"
    image.write_bytes(bytes(MIB))
    return FaultBackend(FileBackend("disk", str(image), discard="unmap"))


@pytest.fixture
def host(folder: Path, disk: FaultBackend) -> Iterator[ScsiHost]:
    with ScsiHost(folder, [disk]) as host:
        yield host


@contextmanager
def guest_of(host: ScsiHost, name: str = "s0", **options: bool | int) -> Iterator[ScsiGuest]:
    with ScsiGuest(host.folder, name=name, **options) as guest:  # type: ignore[arg-type]
        guest.quiesce()
        yield guest


@pytest.fixture(params=["split", "packed", "indirect"])
def guest(host: ScsiHost, request: pytest.FixtureRequest) -> Iterator[ScsiGuest]:
    host.serve([DISK])
    with guest_of(
        host, packed=request.param == "packed", indirect=request.param == "indirect"
    ) as guest:
        yield guest
        guest.check_ram()


@pytest.fixture
def plain(host: ScsiHost) -> Iterator[ScsiGuest]:
    host.serve([DISK])
    with guest_of(host) as guest:
        yield guest
        guest.check_ram()


# ---- commands


def test_what_is_written_is_read(guest: ScsiGuest) -> None:
    data = bytes(range(256)) * 16
    a, b = guest.disks
    assert a.run(cdb.transfer(WRITE, 8, 8), data_out=data).check().residual == 0
    assert b.run(cdb.transfer(READ, 8, 8), data_in=4096).check().data == data


@pytest.mark.parametrize(
    "split",
    [
        Split(out=(1,) * 51, in_=(1,) * 20),
        Split(out=(60,), in_=(108 + 512,)),
        Split(out=(20, 40), in_=(100, 20)),
        Split(in_=(108, 100, 12)),
    ],
    ids=["bytes", "merged", "across", "data cut"],
)
def test_any_layout_of_descriptors_is_taken(plain: ScsiGuest, split: Split) -> None:
    data = bytes(range(256)) * 2
    driver = plain.disks[0]
    driver.run(cdb.transfer(WRITE, 1, 1), data_out=data, split=split).check()
    assert driver.run(cdb.transfer(READ, 1, 1), data_in=512, split=split).check().data == data


def test_bad_commands_get_sense_data(guest: ScsiGuest) -> None:
    result = guest.disks[0].run(bytes([0xC1]) + bytes(5))
    assert (result.response, result.status, result.sense) == (Response.OK, 2, (5, 0x20, 0))
    beyond = guest.disks[0].run(cdb.transfer(READ, 2048, 1), data_in=512)
    assert beyond.sense == (5, 0x21, 0)
    assert set(beyond.data) == {POISON}


def test_residual_is_what_the_command_has_no_use_for(guest: ScsiGuest) -> None:
    result = guest.disks[0].run(cdb.transfer(READ, 0, 1), data_in=1536).check()
    assert (result.residual, result.written) == (1024, 108 + 512)
    assert result.data[:512] == bytes(512)
    assert set(result.data[512:]) == {POISON}


def test_a_buffer_that_is_too_short_is_an_overrun(guest: ScsiGuest) -> None:
    result = guest.disks[0].run(cdb.transfer(READ, 0, 4), data_in=512)
    assert result.response == Response.OVERRUN


def test_both_directions_at_once_are_refused(guest: ScsiGuest) -> None:
    result = guest.disks[0].run(cdb.transfer(READ, 0, 1), data_in=512, data_out=bytes(512))
    assert result.response == Response.FAILURE


@pytest.mark.parametrize(
    ("address", "response", "qualifier"),
    [
        (encode_lun(0, 0), Response.OK, 0x00),
        (bytes((1, 0, 0, 0)), Response.OK, 0x00),  # peripheral device form
        (bytes((1, 0, 0, 1)), Response.OK, 0x7F),  # no such LUN
        (bytes((1, 0, 1, 0)), Response.OK, 0x7F),  # another bus
        (bytes((1, 0, 0x80, 0)), Response.OK, 0x7F),  # logical unit form
        (encode_lun(0, 300), Response.OK, 0x7F),
        (encode_lun(1, 0), Response.BAD_TARGET, None),
        (bytes((2, 0, 0x40, 0)), Response.BAD_TARGET, None),
        (bytes((0xC1, 1, 0, 0)), Response.BAD_TARGET, None),
    ],
)
def test_addresses(
    plain: ScsiGuest, address: bytes, response: Response, qualifier: int | None
) -> None:
    result = plain.disks[0].run(cdb.inquiry(), data_in=255, lun=address.ljust(8, b"\0"))
    assert result.response == response
    if qualifier is not None:
        assert result.data[0] == qualifier


def test_lun_far_up_and_target_far_up(host: ScsiHost) -> None:
    host.disks["n"] = NullBackend("n", size=MIB)
    host.serve([DISK, ScsiDeviceOptions(node_name="n", target=255, lun=16383)])
    with guest_of(host) as guest:
        driver = guest.disks[0]
        far = encode_lun(255, 16383)
        assert driver.run(cdb.inquiry(), data_in=255, lun=far).check().data[0] == 0
        luns = driver.run(cdb.report_luns(), data_in=64, lun=encode_lun(255, 0)).check().data
        assert luns[:16] == bytes((0, 0, 0, 8, 0, 0, 0, 0, 0x7F, 0xFF, 0, 0, 0, 0, 0, 0))


def test_sizes_of_cdb_and_sense_follow_the_configuration_space(plain: ScsiGuest) -> None:
    plain.frontend.set_config(20, struct.pack("<I", 18))
    plain.frontend.set_config(24, struct.pack("<I", 16))
    assert struct.unpack_from("<II", plain.frontend.get_config(0, 36), 20) == (18, 16)
    driver = plain.disks[0]
    driver.sense_size, driver.cdb_size = 18, 16
    assert driver.run(cdb.transfer(READ, 0, 1), data_in=512).check().data == bytes(512)
    assert driver.run(bytes([0xC1]) + bytes(5)).sense == (5, 0x20, 0)
    driver.sense_size = 0
    plain.frontend.set_config(20, struct.pack("<I", 0))
    refused = driver.run(bytes([0xC1]) + bytes(5))
    assert (refused.status, refused.sense) == (2, None)


def test_configuration_space(plain: ScsiGuest) -> None:
    fields = struct.unpack("<IIIIIIIHHI", plain.frontend.get_config(0, 36))
    assert fields == (2, 126, 0xFFFF, 128, 16, 96, 32, 0, 255, 16383)
    assert plain.frontend.get_queue_num() == 4


# ---- task management


def hold(disk: FaultBackend, ms: int = 300) -> None:
    disk.rules.set(["read", "write"], delay_ns=ms * MS)


def test_abort_task_is_answered_when_the_task_has_ended(
    plain: ScsiGuest, disk: FaultBackend
) -> None:
    hold(disk)
    doomed = plain.disks[1].submit(cdb.transfer(READ, 0, 1), data_in=512, tag=7)
    other = plain.disks[1].submit(cdb.transfer(READ, 0, 1), data_in=512, tag=8)
    token = plain.control.start(Function.ABORT_TASK, tag=7)
    assert plain.control.result(token) == Response.FUNCTION_COMPLETE
    plain.disks[1].poll()
    assert plain.disks[1].complete(doomed, 0.0).response == Response.ABORTED
    assert plain.disks[1].complete(other).check().data == bytes(512)


def test_abort_of_a_task_that_is_unknown_is_complete(plain: ScsiGuest) -> None:
    assert plain.control.manage(Function.ABORT_TASK, tag=99) == Response.FUNCTION_COMPLETE


@pytest.mark.parametrize(
    ("function", "response"),
    [
        (Function.ABORT_TASK_SET, Response.ABORTED),
        (Function.CLEAR_TASK_SET, Response.ABORTED),
        (Function.LOGICAL_UNIT_RESET, Response.RESET),
        (Function.I_T_NEXUS_RESET, Response.RESET),
    ],
)
def test_all_tasks_of_all_queues_have_ended_when_a_function_is_answered(
    plain: ScsiGuest, disk: FaultBackend, function: Function, response: Response
) -> None:
    hold(disk)
    tokens = [
        (driver, driver.submit(cdb.transfer(READ, i, 1), data_in=512))
        for i in range(20)
        for driver in plain.disks
    ]
    assert plain.control.manage(function) == Response.FUNCTION_COMPLETE
    assert [driver.poll() for driver in plain.disks] == [20, 20]
    assert {driver.complete(token).response for driver, token in tokens} == {response}
    disk.rules.clear()
    told = plain.disks[0].run(bytes(6))
    attention = {
        Function.LOGICAL_UNIT_RESET: (6, 0x29, 3),
        Function.I_T_NEXUS_RESET: (6, 0x29, 7),
    }
    assert told.sense == attention.get(function)
    plain.disks[0].run(cdb.transfer(READ, 0, 1), data_in=512).check()


def test_functions_on_a_unit_leave_other_units_alone(host: ScsiHost, disk: FaultBackend) -> None:
    other = FaultBackend(NullBackend("other", size=MIB))
    host.disks["other"] = other
    host.serve([DISK, ScsiDeviceOptions(node_name="other", target=0, lun=1)])
    with guest_of(host) as guest:
        guest.disks[0].unit = (0, 1)
        guest.quiesce()
        hold(disk, 200)
        hold(other, 400)
        mine = guest.disks[1].submit(cdb.transfer(READ, 0, 1), data_in=512)
        theirs = guest.disks[0].submit(cdb.transfer(READ, 0, 1), data_in=512)
        assert guest.control.manage(Function.LOGICAL_UNIT_RESET) == Response.FUNCTION_COMPLETE
        assert guest.disks[1].complete(mine, 0.0).response == Response.RESET
        guest.disks[0].complete(theirs).check()


def test_queries_tell_what_is_in_execution(plain: ScsiGuest, disk: FaultBackend) -> None:
    assert plain.control.manage(Function.QUERY_TASK_SET) == Response.FUNCTION_COMPLETE
    hold(disk)
    token = plain.disks[1].submit(cdb.transfer(READ, 0, 1), data_in=512, tag=5)
    assert plain.control.manage(Function.QUERY_TASK, tag=5) == Response.FUNCTION_SUCCEEDED
    assert plain.control.manage(Function.QUERY_TASK, tag=6) == Response.FUNCTION_COMPLETE
    assert plain.control.manage(Function.QUERY_TASK_SET) == Response.FUNCTION_SUCCEEDED
    plain.disks[1].complete(token).check()
    assert plain.control.manage(Function.QUERY_TASK, tag=5) == Response.FUNCTION_COMPLETE


@pytest.mark.parametrize(
    ("function", "target", "lun", "response"),
    [
        (Function.CLEAR_ACA, 0, 0, Response.FUNCTION_REJECTED),
        (77, 0, 0, Response.FUNCTION_REJECTED),
        (Function.ABORT_TASK, 0, 5, Response.INCORRECT_LUN),
        (Function.ABORT_TASK, 9, 0, Response.BAD_TARGET),
        (Function.I_T_NEXUS_RESET, 9, 0, Response.BAD_TARGET),
    ],
)
def test_functions_that_cannot_be(
    plain: ScsiGuest, function: int, target: int, lun: int, response: Response
) -> None:
    assert plain.control.manage(function, target, lun) == response


def test_notifications_are_answered_without_events(plain: ScsiGuest) -> None:
    for kind in (1, 2):
        query = struct.pack("<I8sI", kind, encode_lun(0, 0), 0xFF)
        assert plain.control.receive(plain.control.submit(query, 5)) == bytes(5)
        absent = struct.pack("<I8sI", kind, encode_lun(0, 9), 0xFF)
        answer = plain.control.receive(plain.control.submit(absent, 5))
        assert answer == bytes((0, 0, 0, 0, Response.INCORRECT_LUN))


def test_functions_run_beside_each_other(plain: ScsiGuest, disk: FaultBackend) -> None:
    hold(disk)
    tokens = [
        plain.disks[i % 2].submit(cdb.transfer(READ, 0, 1), data_in=512, tag=i) for i in range(8)
    ]
    functions = [plain.control.start(Function.ABORT_TASK, tag=i) for i in range(8)]
    functions.append(plain.control.start(Function.LOGICAL_UNIT_RESET))
    assert {plain.control.result(token) for token in functions} == {Response.FUNCTION_COMPLETE}
    responses = {plain.disks[i % 2].complete(token).response for i, token in enumerate(tokens)}
    assert responses <= {Response.ABORTED, Response.RESET}


@pytest.mark.parametrize(
    ("request_bytes", "room"),
    [(b"", 1), (b"\0\0\0", 1), (TMF.pack(0, 0, bytes(8), 0)[:-1], 1), (bytes(24), 0)],
)
def test_malformed_control_request_breaks_the_device(
    plain: ScsiGuest, request_bytes: bytes, room: int
) -> None:
    if not request_bytes and not room:
        return
    plain.control.submit(request_bytes, room)
    ring = plain.frontend.rings[0]
    assert ring.wait_err(5.0)


def test_command_without_a_whole_header_breaks_the_device(plain: ScsiGuest) -> None:
    queue = plain.queues[2]
    at = plain.rams[2].alloc(256)
    queue.add([(at, 50)], [(at + 64, 108)])
    queue.publish()
    queue.kick()
    assert plain.frontend.rings[2].wait_err(5.0)


def test_control_queue_is_polled_without_a_kick_descriptor(plain: ScsiGuest) -> None:
    base = plain.frontend.get_vring_base(0)
    queue = plain.queues[0]
    spec = RingSpec.of(0, queue.layout, base)
    plain.frontend.start_ring(spec, kick=-1, call=queue.call_fd, err=queue.err_fd)
    assert plain.control.manage(Function.QUERY_TASK) == Response.FUNCTION_COMPLETE


def test_control_queue_uses_another_call_descriptor_from_now_on(plain: ScsiGuest) -> None:
    call = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        plain.frontend.set_vring_call(0, call)
        os.eventfd_read(call)  # the change is a signal itself
        token = plain.control.start(Function.QUERY_TASK)
        ready = select.poll()
        ready.register(call, select.POLLIN)
        assert ready.poll(5000)
        assert plain.control.result(token, 0.0) == Response.FUNCTION_COMPLETE
        plain.frontend.set_vring_call(0, plain.queues[0].call_fd)
    finally:
        os.close(call)


def test_memory_comes_and_goes_while_all_queues_run(plain: ScsiGuest) -> None:
    region = plain.rams[2].add_region(MIB)
    plain.frontend.add_region(
        region.guest_addr, region.size, region.user_addr, region.fd, region.mmap_offset
    )
    assert plain.control.manage(Function.QUERY_TASK) == Response.FUNCTION_COMPLETE
    plain.disks[0].run(cdb.transfer(READ, 0, 1), data_in=512).check()
    plain.frontend.remove_region(region.guest_addr, region.size, region.user_addr)
    assert plain.control.manage(Function.QUERY_TASK) == Response.FUNCTION_COMPLETE
    plain.disks[0].run(cdb.transfer(READ, 0, 1), data_in=512).check()


def test_broken_control_ring_is_noticed(plain: ScsiGuest) -> None:
    plain.queues[0].set_avail_idx(5000)
    plain.queues[0].kick(force=True)
    assert plain.frontend.rings[0].wait_err(5.0)


# ---- events


RESCAN, REMOVED = 1, 2


def test_units_come_and_go(host: ScsiHost, disk: FaultBackend) -> None:
    host.disks["new"] = NullBackend("new", size=MIB)
    export = host.serve([DISK])
    with guest_of(host) as guest:
        guest.events.provide(4)
        host.run(export.add_device(ScsiDeviceOptions(node_name="new", target=3, lun=2)))
        assert guest.events.receive() == (1, bytes((1, 3, 0, 2, 0, 0, 0, 0)), RESCAN, False)
        driver = guest.disks[0]
        address = encode_lun(3, 2)
        assert driver.run(bytes(6), lun=address).sense == (6, 0x29, 0)
        driver.run(cdb.transfer(READ, 0, 1), data_in=512, lun=address).check()
        host.run(export.remove_device(3, 2))
        assert guest.events.receive() == (1, bytes((1, 3, 0, 2, 0, 0, 0, 0)), REMOVED, False)
        assert driver.run(bytes(6), lun=address).response == Response.BAD_TARGET
        with pytest.raises(KeyError):
            host.run(export.remove_device(3, 2))


def test_removal_ends_what_the_unit_is_doing(host: ScsiHost, disk: FaultBackend) -> None:
    export = host.serve([DISK])
    with guest_of(host) as guest:
        hold(disk, 200)
        token = guest.disks[1].submit(cdb.transfer(READ, 0, 1), data_in=512)
        assert guest.control.manage(Function.QUERY_TASK_SET) == Response.FUNCTION_SUCCEEDED
        host.run(export.remove_device(0, 0))
        assert guest.disks[1].complete(token).response == Response.RESET
        host.run(export.add_device(DISK))
        guest.quiesce()


def test_missed_events_are_told(host: ScsiHost) -> None:
    host.disks["new"] = NullBackend("new", size=MIB)
    export = host.serve([DISK])
    new = ScsiDeviceOptions(node_name="new", target=3)
    with guest_of(host) as guest:
        host.run(export.add_device(new))
        guest.events.provide(1)
        assert guest.events.receive() == (0, bytes(8), 0, True)
        guest.events.provide(1, sizes=(1, 2, 3))
        host.run(export.remove_device(3, 0))
        assert guest.events.receive() == (1, encode_reported_lun(3, 0), REMOVED, False)


def test_events_are_for_drivers_that_know_them(host: ScsiHost) -> None:
    host.disks["new"] = NullBackend("new", size=MIB)
    export = host.serve([DISK])
    with guest_of(host, features=~(1 << 1)) as guest:
        guest.events.provide(1)
        host.run(export.add_device(ScsiDeviceOptions(node_name="new", target=3)))
        with pytest.raises(TimeoutError):
            guest.events.receive(0.2)


def test_resize_is_an_event_and_a_unit_attention(host: ScsiHost, folder: Path) -> None:
    export = host.serve([DISK])
    with guest_of(host) as guest:
        guest.events.provide(1)
        with (folder / "disk.img").open("r+b") as image:
            image.truncate(2 * MIB)

        async def refresh() -> bool:
            return export.refresh_size()

        assert host.run(refresh())
        assert not host.run(refresh())
        assert guest.events.receive() == (3, encode_reported_lun(0, 0), 0x2A | 0x09 << 8, False)
        assert guest.disks[0].run(bytes(6)).sense == (6, 0x2A, 9)
        capacity = guest.disks[0].run(cdb.read_capacity_16(), data_in=32).check().data
        assert struct.unpack_from(">QI", capacity) == (4095, 512)


def test_reset_is_a_nexus_loss(plain: ScsiGuest) -> None:
    bases = plain.frontend.stop_rings()
    plain.frontend.reset_device()
    for index, queue in enumerate(plain.queues):
        plain.frontend.attach(index, queue, base=bases[index])
    assert plain.disks[0].run(bytes(6)).sense == (6, 0x29, 0)
    assert plain.disks[0].run(bytes(6)).sense == (6, 0x29, 7)
    plain.disks[0].run(bytes(6)).check()


# ---- more than one


def test_two_guests_share_a_unit_and_reservations_keep_them_apart(host: ScsiHost) -> None:
    shared = ScsiDeviceOptions(node_name="disk", writable=True, share_rw=True)
    host.serve([shared], name="a")
    host.serve([shared], name="b")
    register = cdb.persistent_list(action_key=1)
    with guest_of(host, "a") as a, guest_of(host, "b") as b:
        ours, theirs = a.disks[0], b.disks[1]
        ours.run(cdb.transfer(WRITE, 0, 1), data_out=b"a" * 512).check()
        assert theirs.run(cdb.transfer(READ, 0, 1), data_in=512).check().data == b"a" * 512
        ours.run(cdb.persistent_out(0), data_out=register).check()
        reserve = cdb.persistent_list(key=1)
        ours.run(cdb.persistent_out(1, 1), data_out=reserve).check()  # write exclusive
        assert theirs.run(cdb.transfer(WRITE, 0, 1), data_out=bytes(512)).status == 0x18
        assert a.control.manage(Function.LOGICAL_UNIT_RESET) == Response.FUNCTION_COMPLETE
        assert theirs.run(bytes(6)).sense == (6, 0x29, 3)
        assert theirs.run(cdb.transfer(WRITE, 0, 1), data_out=bytes(512)).status == 0x18


def test_a_mode_that_one_guest_changes_is_an_event_for_the_others(host: ScsiHost) -> None:
    shared = ScsiDeviceOptions(node_name="disk", writable=True, share_rw=True)
    host.serve([shared], name="a")
    host.serve([shared], name="b")
    with guest_of(host, "a") as a, guest_of(host, "b") as b:
        a.events.provide(1)
        b.events.provide(2)
        page = a.disks[0].run(cdb.mode_sense_6(0x08), data_in=255).check().data[12:32]
        for wce in (page[2] & ~4, page[2] | 4):
            changed = bytes(4) + page[:2] + bytes([wce]) + page[3:]
            a.disks[0].run(cdb.mode_select_6(len(changed)), data_out=changed).check()
            assert b.events.receive() == (3, encode_reported_lun(0, 0), 0x2A | 0x01 << 8, False)
            assert b.disks[0].run(bytes(6)).sense == (6, 0x2A, 1)
        with pytest.raises(TimeoutError):
            a.events.receive(0.1)


def test_reset_ends_the_tasks_of_other_guests_too(host: ScsiHost, disk: FaultBackend) -> None:
    shared = ScsiDeviceOptions(node_name="disk", writable=True, share_rw=True)
    host.serve([shared], name="a")
    host.serve([shared], name="b")
    with guest_of(host, "a") as a, guest_of(host, "b") as b:
        hold(disk)
        token = b.disks[0].submit(cdb.transfer(READ, 0, 1), data_in=512)
        assert b.control.manage(Function.QUERY_TASK_SET) == Response.FUNCTION_SUCCEEDED
        assert a.control.manage(Function.LOGICAL_UNIT_RESET) == Response.FUNCTION_COMPLETE
        assert b.disks[0].complete(token).response == Response.RESET


def test_cdrom_and_empty_drive(host: ScsiHost) -> None:
    host.serve([ScsiDeviceOptions(node_name="disk", cdrom=True), ScsiDeviceOptions(cdrom=True)])
    with guest_of(host) as guest:
        driver = guest.disks[0]
        assert driver.run(cdb.inquiry(), data_in=255).check().data[:2] == bytes((5, 0x80))
        capacity = driver.run(cdb.read_capacity_10(), data_in=8).check().data
        assert struct.unpack(">II", capacity) == (511, 2048)
        driver.unit = (1, 0)
        assert driver.run(bytes(6)).sense == (6, 0x29, 0)
        assert driver.run(bytes(6)).sense == (2, 0x3A, 0)


# ---- IOThreads


def test_commands_go_on_while_queues_move(host: ScsiHost, disk: FaultBackend) -> None:
    export = host.serve([DISK], num_queues=4)
    with guest_of(host, num_queues=4) as guest:
        hold(disk, 2)
        for step in range(12):
            tokens = [
                (driver, driver.submit(cdb.transfer(READ, 0, 1), data_in=512))
                for driver in guest.disks
            ]
            host.run(export.move_queue(step % 4, host.threads[step // 2 % 2]))
            if step % 3 == 0:
                assert guest.control.manage(Function.QUERY_TASK, tag=0) == Response.OK
            for driver, token in tokens:
                driver.complete(token).check()
        for index in range(4):
            host.run(export.move_queue(index, host.threads[0]))
        assert export.used_threads() == {host.threads[0]}
        assert guest.control.manage(Function.LOGICAL_UNIT_RESET) == Response.FUNCTION_COMPLETE
        with pytest.raises(IndexError, match="no queue 4, the device has 4"):
            host.run(export.move_queue(4, host.threads[0]))


def test_address_in_use_is_refused(host: ScsiHost) -> None:
    host.disks["new"] = NullBackend("new", size=MIB)
    export = host.serve([DISK])
    with pytest.raises(OptionError, match="target=0,lun=0 is in use"):
        host.run(export.add_device(ScsiDeviceOptions(node_name="new")))


def test_a_disk_that_cannot_be_reached_leaves_nothing_behind(host: ScsiHost) -> None:
    class Unreachable(NullBackend):
        def open_channel(self, **options: object) -> BlockBackend:  # type: ignore[override]
            raise OSError(5, "no way")

    host.disks["new"] = Unreachable("new", size=MIB)
    export = host.serve([DISK])
    with ExitStack() as stack:
        guest = stack.enter_context(guest_of(host))
        guest.disks[0].run(bytes(6)).check()
        with pytest.raises(OSError, match="no way"):
            host.run(export.add_device(ScsiDeviceOptions(node_name="new", target=4)))
        assert guest.disks[0].run(bytes(6), lun=encode_lun(4, 0)).response == Response.BAD_TARGET


def test_a_node_is_shared_on_purpose_only(host: ScsiHost) -> None:
    export = host.serve([DISK])
    again = ScsiDeviceOptions(node_name="disk", writable=True, serial="S1", target=1)
    with pytest.raises(OptionError, match="'disk' is shown by another device already"):
        host.run(export.add_device(again))
    host.run(export.remove_device(0, 0))
    host.run(export.add_device(again))  # nobody else shows it now
    host.run(export.remove_device(1, 0))
    shared = ScsiDeviceOptions(node_name="disk", share_rw=True)
    host.run(export.add_device(shared))
    other = ScsiDeviceOptions(node_name="disk", share_rw=True, serial="S2", target=1)
    with pytest.raises(OptionError, match="with other options; it is one unit"):
        host.run(export.add_device(other))
    host.run(export.add_device(ScsiDeviceOptions(node_name="disk", share_rw=True, target=7)))
    with pytest.raises(ValueError, match="has a nexus through port 8 already"):
        host.run(
            export.add_device(ScsiDeviceOptions(node_name="disk", share_rw=True, target=7, lun=1))
        )


def test_abort_finds_a_task_whose_queue_was_moving_to_another_iothread(
    host: ScsiHost, disk: FaultBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = host.threads
    arrive = threading.Event()
    attach = ManagedThread.attach

    async def attach_late(thread: ManagedThread, *arguments: Any) -> None:
        if thread is there:
            await asyncio.to_thread(arrive.wait)
        await attach(thread, *arguments)

    export = host.serve([DISK])
    host.run(export.set_mapping([here, here]))
    monkeypatch.setattr(ManagedThread, "attach", attach_late)
    with guest_of(host) as guest:
        hold(disk)
        mover = threading.Thread(target=lambda: host.run(export.move_queue(0, there)))
        mover.start()
        try:
            time.sleep(0.1)
            task = guest.disks[0].submit(cdb.transfer(READ, 0, 1), data_in=512, tag=7)
            function = guest.control.start(Function.ABORT_TASK, tag=7)
            time.sleep(0.1)
            assert guest.control.is_pending(function)
        finally:
            arrive.set()
            mover.join()
        assert guest.control.result(function) == Response.FUNCTION_COMPLETE
        guest.disks[0].poll()
        assert guest.disks[0].complete(task, 0.0).response == Response.ABORTED


def test_two_exports_that_show_a_node_at_once_share_one_unit(host: ScsiHost) -> None:
    host.disks["new"] = NullBackend("new", size=MIB)
    exports = [host.serve([DISK]), host.serve([ScsiDeviceOptions(cdrom=True)], name="b")]
    new = ScsiDeviceOptions(node_name="new", target=3, share_rw=True)

    async def add() -> list[AttachedUnit]:
        return list(await asyncio.gather(*(export.add_device(new) for export in exports)))

    one, other = host.run(add())
    assert one.shared is other.shared


def test_a_node_is_not_free_before_its_unit_has_gone(host: ScsiHost, disk: FaultBackend) -> None:
    export = host.serve([DISK])
    with guest_of(host) as guest:
        hold(disk)
        token = guest.disks[0].submit(cdb.transfer(READ, 0, 1), data_in=512)
        assert guest.control.manage(Function.QUERY_TASK_SET) == Response.FUNCTION_SUCCEEDED

        async def swap() -> None:
            removal = asyncio.ensure_future(export.remove_device(0, 0))
            await asyncio.sleep(0.05)
            with pytest.raises(OptionError, match="shown by another device already"):
                await export.add_device(DISK)
            await removal
            await export.add_device(DISK)

        host.run(swap())
        assert guest.disks[0].complete(token).response == Response.RESET
        guest.quiesce()
