"""The dirty log and the inflight buffer: "Migration", "Inflight I/O tracking"."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from vringd.core.inflight import InflightBuffer
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import (
    Disconnected,
    Frontend,
    InflightArea,
    RefusedByBackend,
    RingSpec,
)
from vringd.testing.memory import GuestRam
from vringd.vhost_user.wire import VHOST_F_LOG_ALL, InflightDescription, Request

from .fake_device import PACKED, FakeDevice
from .server_thread import pair
from .test_rings import echo


@pytest.fixture
def log(ram: GuestRam) -> Iterator[tuple[int, int]]:
    """A log that covers the guest's memory: its file and its size."""
    size = -(-max(region.end for region in ram.regions) // (4096 * 8))
    fd = os.memfd_create("log")
    os.ftruncate(fd, size)
    yield fd, size
    os.close(fd)


def is_dirty(log: int, guest_addr: int) -> bool:
    page = guest_addr // 4096
    return bool(os.pread(log, 1, page // 8)[0] >> page % 8 & 1)


def test_logging_is_turned_on_and_off_under_a_running_ring(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, log: tuple[int, int]
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        used = queue.layout.used
        spec = RingSpec.of(0, queue.layout)
        negotiated.start_ring(RingSpec(**{**vars(spec), "log_addr": used}))
        negotiated.set_log_base(*log)
        assert device.updates(0, "log") == []
        negotiated.set_logging(True)
        (active,) = device.updates(0, "log")
        active.mark(used, 1)
        assert is_dirty(log[0], used)
        negotiated.set_log_base(*log)  # a larger log, for instance
        negotiated.set_logging(False)
        assert device.updates(0, "log")[-1] is None
        assert len(device.updates(0, "log")) == 3
        assert device.updates(0, "log_addr") == [used, None]
        assert device.queues.keys() == {0}


def test_ring_that_starts_while_logging_logs(
    negotiated: Frontend, ram: GuestRam, log: tuple[int, int]
) -> None:
    negotiated.add_ram(ram)
    negotiated.set_log_base(*log)
    negotiated.set_features(negotiated.features | VHOST_F_LOG_ALL)
    with DriverQueue(ram, 16) as queue:
        used = queue.layout.used
        spec = RingSpec.of(0, queue.layout)
        negotiated.start_ring(
            RingSpec(**{**vars(spec), "log_addr": used}),
            kick=queue.kick_fd,
            call=queue.call_fd,
        )
        target = ram.alloc(1)
        queue.add([(target, 1)], [(target, 1)])
        queue.publish()
        assert queue.wait()
        assert queue.pop_used() == (0, 1)
        assert is_dirty(log[0], target)
        assert is_dirty(log[0], used)


def test_log_that_is_too_small_ends_the_connection(
    negotiated: Frontend, ram: GuestRam, log: tuple[int, int]
) -> None:
    negotiated.add_ram(ram)
    with pytest.raises(Disconnected):
        negotiated.set_log_base(log[0], log[1] - 1)


def test_log_beyond_its_file_ends_the_connection(
    negotiated: Frontend, ram: GuestRam, log: tuple[int, int]
) -> None:
    negotiated.add_ram(ram)
    with pytest.raises(Disconnected):
        negotiated.set_log_base(log[0], log[1], 4096)


def test_memory_beyond_the_log_is_refused_while_logging(
    negotiated: Frontend, ram: GuestRam, log: tuple[int, int]
) -> None:
    negotiated.add_ram(ram)
    negotiated.set_log_base(*log)
    new = ram.add_region(1 << 20)
    arguments = new.guest_addr, new.size, new.user_addr, new.fd, new.mmap_offset
    negotiated.set_features(negotiated.features | VHOST_F_LOG_ALL)
    with pytest.raises(RefusedByBackend):
        negotiated.add_region(*arguments)
    negotiated.set_features(negotiated.features & ~VHOST_F_LOG_ALL)
    negotiated.add_region(*arguments)


def test_log_descriptor_is_accepted(negotiated: Frontend) -> None:
    event = os.eventfd(0)
    try:
        negotiated.tell(Request.SET_LOG_FD, fds=[event])
    finally:
        os.close(event)


@pytest.mark.parametrize("size", [InflightDescription.LAYOUT.size, 24])
def test_inflight_reply_is_as_long_as_its_request(negotiated: Frontend, size: int) -> None:
    wanted = InflightDescription(0, 0, 4, 128)
    reply = negotiated.ask(Request.GET_INFLIGHT_FD, wanted.pack(size))
    (fd,) = reply.fds
    try:
        answer = InflightDescription.unpack(reply.payload)
        assert len(reply.payload) == size
        assert (answer.num_queues, answer.queue_size) == (4, 128)
        assert answer.mmap_offset + answer.mmap_size <= os.fstat(fd).st_size
    finally:
        os.close(fd)


@pytest.mark.parametrize("packed", [False, True])
def test_requests_of_a_lost_back_end_are_done_by_the_next(ram: GuestRam, packed: bool) -> None:
    features = ~0 if packed else ~PACKED
    with DriverQueue(ram, 16, packed=packed) as queue:
        lost = FakeDevice()
        lost.holding = True
        target = ram.alloc(4)
        with pair(lost) as (server, frontend):
            frontend.negotiate(features=features)
            frontend.add_ram(ram)
            area = frontend.get_inflight(4, 16)
            frontend.set_inflight(area)
            frontend.attach(0, queue)
            for _ in range(3):
                queue.add([(target, 4)], [(target, 4)])
            queue.publish()
            queue.kick()
            while len(lost._held[0]) < 3:
                pass
            # As after a kill: nothing of what was popped is ever returned.
            server.call(lost._held[0].clear)
        try:
            with pair(FakeDevice()) as (_, frontend):
                frontend.negotiate(features=features)
                frontend.add_ram(ram)
                frontend.set_inflight(area)
                base = 0x80008000 if packed else 0
                frontend.attach(0, queue, base=base)
                for _ in range(3):
                    assert queue.wait()
                    assert queue.pop_used() is not None
                assert echo(ram, queue) == b"hello"
        finally:
            area.close()


@pytest.mark.parametrize(
    ("num_queues", "queue_size"), [(0, 16), (5, 16), (65535, 16), (1, 0), (1, 257), (1, 65535)]
)
def test_inflight_buffer_for_other_queues_is_refused(
    negotiated: Frontend, ram: GuestRam, num_queues: int, queue_size: int
) -> None:
    payload = InflightDescription(1 << 20, 0, num_queues, queue_size).pack()
    with pytest.raises(RefusedByBackend):
        negotiated.tell(Request.SET_INFLIGHT_FD, payload, [ram.regions[0].fd])


@pytest.mark.parametrize(
    ("mmap_size", "mmap_offset"),
    [(0, 0), (64, 0), (1 << 63, 0), ((1 << 64) - 1, 4096), (1 << 16, 1 << 40), (1 << 16, 1)],
)
def test_inflight_buffer_of_wrong_size_is_refused(
    negotiated: Frontend, ram: GuestRam, mmap_size: int, mmap_offset: int
) -> None:
    payload = InflightDescription(mmap_size, mmap_offset, 4, 256).pack()
    with pytest.raises(RefusedByBackend):
        negotiated.tell(Request.SET_INFLIGHT_FD, payload, [ram.regions[0].fd])


def test_inflight_buffer_cannot_change_under_a_running_ring(
    negotiated: Frontend, ram: GuestRam
) -> None:
    area = negotiated.get_inflight(4, 16)
    try:
        negotiated.add_ram(ram)
        with DriverQueue(ram, 16) as queue:
            negotiated.attach(0, queue)
            with pytest.raises(RefusedByBackend):
                negotiated.set_inflight(area)
    finally:
        area.close()


def test_ring_that_the_inflight_buffer_has_no_room_for_is_not_tracked(
    negotiated: Frontend, ram: GuestRam, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vringd.vhost_user")
    negotiated.add_ram(ram)
    foreign = InflightBuffer.create(1, 8, False)
    description = InflightDescription(foreign.mmap_size, foreign.mmap_offset, 1, 8)
    area = InflightArea(os.dup(foreign.fd), description)
    try:
        negotiated.set_inflight(area)
        with DriverQueue(ram, 16) as larger, DriverQueue(ram, 8) as other:
            negotiated.attach(0, larger)
            negotiated.attach(1, other)
            assert echo(ram, larger) == b"hello"
            assert echo(ram, other) == b"hello"
        assert "queue 0 has 16 entries, the inflight buffer is for 8: not tracked" in caplog.text
        assert set(os.pread(area.fd, area.description.mmap_size, 0)) == {0}
    finally:
        area.close()


@pytest.mark.parametrize("packed", [False, True])
def test_larger_ring_than_the_front_end_asked_for_is_tracked(
    frontend: Frontend, ram: GuestRam, packed: bool
) -> None:
    frontend.negotiate(features=~0 if packed else ~PACKED)
    frontend.add_ram(ram)
    area = frontend.get_inflight(2, 8)
    assert area.description.queue_size == 8
    try:
        frontend.set_inflight(area)
        with DriverQueue(ram, 256, packed=packed) as queue:
            frontend.attach(1, queue, base=0x80008000 if packed else 0)
            assert echo(ram, queue) == b"hello"
        size = area.description.mmap_size
        region = os.pread(area.fd, size // 2, size // 2)  # the second queue's
        _features, version, entries = struct.unpack_from("<QHH", region)
        assert (version, entries) == (1, 256)
    finally:
        area.close()


def test_inflight_buffer_for_the_other_ring_format_is_refused(
    frontend: Frontend, ram: GuestRam
) -> None:
    frontend.negotiate(features=~PACKED)
    frontend.add_ram(ram)
    area = frontend.get_inflight(4, 16)
    try:
        frontend.set_inflight(area)
        frontend.set_features(frontend.features | PACKED)
        with DriverQueue(ram, 16, packed=True) as queue, pytest.raises(RefusedByBackend):
            frontend.attach(0, queue)
    finally:
        area.close()
