"""Configuration space, device status, resets, broken devices and what the front-end is told."""

from __future__ import annotations

import socket

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend, RefusedByBackend
from vringd.testing.memory import GuestRam
from vringd.vhost_user.wire import BackendRequest, ProtocolFeature, Request

from .fake_device import CONFIG_WRITABLE, PACKED, FakeDevice
from .server_thread import ServerThread, until
from .test_rings import echo

NEEDS_RESET = 0x40
DRIVER_OK = 0x0F


def test_config_is_read_with_zeros_behind_it(negotiated: Frontend, device: FakeDevice) -> None:
    assert negotiated.get_config(0, 60) == bytes(device.config)
    assert negotiated.get_config(56, 200) == bytes(device.config[56:]) + bytes(196)


@pytest.mark.parametrize(("offset", "size"), [(0xFFFFFFFF, 4), (256, 1), (200, 57)])
def test_config_beyond_its_end_is_answered_with_nothing(
    negotiated: Frontend, offset: int, size: int
) -> None:
    with pytest.raises(RefusedByBackend):
        negotiated.get_config(offset, size)
    assert negotiated.get_config(0, 1) == b"\0"


def test_writable_config_is_written(negotiated: Frontend, device: FakeDevice) -> None:
    negotiated.set_config(CONFIG_WRITABLE, b"\1")
    assert device.config[CONFIG_WRITABLE] == 1


@pytest.mark.parametrize(
    ("offset", "data"), [(0, b"\1"), (CONFIG_WRITABLE, b"\1\1"), (255, b"12"), (1 << 31, b"1")]
)
def test_other_config_cannot_be_written(
    negotiated: Frontend, device: FakeDevice, offset: int, data: bytes
) -> None:
    before = bytes(device.config)
    with pytest.raises(RefusedByBackend):
        negotiated.set_config(offset, data)
    assert device.config == before


def test_migration_may_restate_read_only_config(negotiated: Frontend, device: FakeDevice) -> None:
    negotiated.set_config(0, bytes(device.config), migration=True)
    with pytest.raises(RefusedByBackend):
        negotiated.set_config(0, b"\7", migration=True)


def test_status_is_kept(negotiated: Frontend) -> None:
    assert negotiated.get_status() == 0
    negotiated.set_status(DRIVER_OK)
    assert negotiated.get_status() == DRIVER_OK
    with pytest.raises(RefusedByBackend):
        negotiated.tell(Request.SET_STATUS, (256).to_bytes(8, "little"))


def test_status_0_stops_the_rings_but_keeps_what_the_driver_configured(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    echo(ram, running)
    negotiated.set_status(0)
    assert (device.queues, device.resets) == ({}, 0)
    negotiated.attach(0, running, base=1)  # memory is there still
    assert echo(ram, running) == b"hello"


def test_reset_stops_the_rings_and_resets_the_device(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    negotiated.set_status(DRIVER_OK)
    echo(ram, running)
    negotiated.reset_device()
    assert (device.queues, device.resets, negotiated.get_status()) == ({}, 1, 0)
    assert negotiated.get_vring_base(0) == 0
    running.reset()
    negotiated.attach(0, running)
    assert echo(ram, running) == b"hello"


def test_config_change_is_sent_to_the_front_end(
    server: ServerThread, negotiated: Frontend, device: FakeDevice, running: DriverQueue
) -> None:
    negotiated.open_backend_channel()
    server.call(device.change_config, 0, b"\x55")
    assert negotiated.receive_from_backend(5) == BackendRequest.CONFIG_CHANGE_MSG
    assert negotiated.get_config(0, 1) == b"\x55"


def test_config_change_of_a_suspended_device_is_sent_when_a_ring_starts(
    server: ServerThread, negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.open_backend_channel()
    negotiated.add_ram(ram)
    server.call(device.change_config, 0, b"\x55")
    assert negotiated.receive_from_backend(0.05) is None
    with DriverQueue(ram, 16) as queue:
        negotiated.attach(0, queue)
        assert negotiated.receive_from_backend(5) == BackendRequest.CONFIG_CHANGE_MSG


def test_front_end_that_never_reads_its_channel_blocks_nothing(
    server: ServerThread,
    negotiated: Frontend,
    ram: GuestRam,
    device: FakeDevice,
    running: DriverQueue,
) -> None:
    negotiated.open_backend_channel()

    def many() -> None:
        for _ in range(20000):
            device.change_config(0, b"\x55")

    server.call(many)
    assert echo(ram, running) == b"hello"
    received = 0
    while negotiated.receive_from_backend(0.2) is not None:
        received += 1
    assert 0 < received < 20000
    server.call(device.change_config, 0, b"\x56")
    assert negotiated.receive_from_backend(5) == BackendRequest.CONFIG_CHANGE_MSG


def test_front_end_that_does_not_take_a_change_is_reported(
    server: ServerThread,
    negotiated: Frontend,
    device: FakeDevice,
    caplog: pytest.LogCaptureFixture,
    running: DriverQueue,
) -> None:
    negotiated.open_backend_channel()
    server.call(device.change_config, 0, b"\x55")
    negotiated.receive_from_backend(5, acknowledge=1)
    assert until(lambda: "did not take a change" in caplog.text)


@pytest.mark.parametrize("garbage", [b"x" * 20, b"x" * 1000])
def test_garbage_on_the_channel_closes_only_the_channel(
    negotiated: Frontend, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    negotiated.open_backend_channel()
    assert negotiated.channel is not None
    negotiated.channel.sendall(garbage)
    assert until(lambda: "back-end channel carries" in caplog.text)
    assert negotiated.get_queue_num() == 4


def test_channel_that_is_no_stream_socket_is_refused(negotiated: Frontend, ram: GuestRam) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with left, right:
        for fd in (left.fileno(), ram.regions[0].fd):
            with pytest.raises(RefusedByBackend):
                negotiated.tell(Request.SET_BACKEND_REQ_FD, fds=[fd])


def test_broken_queue_stops_the_device_until_it_is_reset(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    negotiated.open_backend_channel()
    negotiated.add_ram(ram)
    negotiated.set_status(DRIVER_OK)
    with DriverQueue(ram, 16) as bad, DriverQueue(ram, 16) as good:
        rings = [negotiated.attach(0, bad), negotiated.attach(1, good)]
        echo(ram, good)
        bad.set_avail_idx(1000)
        assert all(ring.wait_err(5) for ring in rings)
        assert negotiated.get_status() == DRIVER_OK | NEEDS_RESET
        assert negotiated.receive_from_backend(5) == BackendRequest.CONFIG_CHANGE_MSG
        assert until(lambda: device.queues == {})
        (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
        assert "queue 0 is broken: " in record.getMessage()

        negotiated.set_vring_enable(1, False)
        negotiated.set_vring_enable(1, True)
        assert device.queues == {}

        negotiated.set_status(0)
        assert negotiated.get_status() == 0
        bad.reset()
        good.reset()
        negotiated.attach(0, bad)
        negotiated.attach(1, good)
        assert echo(ram, bad) == b"hello"


def test_broken_device_of_front_end_without_status_recovers_when_all_rings_were_stopped(
    frontend: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    frontend.negotiate(features=~PACKED, protocol=~ProtocolFeature.STATUS)
    frontend.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        ring = frontend.attach(0, queue)
        queue.set_avail_idx(1000)
        assert ring.wait_err(5)
        assert until(lambda: device.queues == {})
        frontend.get_vring_base(0)
        queue.reset()
        frontend.attach(0, queue)
        assert echo(ram, queue) == b"hello"


def test_err_descriptor_can_change_at_any_time(
    server: ServerThread, negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue, DriverQueue(ram, 16) as idle:
        ring = negotiated.attach(0, queue)
        negotiated.set_vring_err(0, -1)
        negotiated.set_vring_err(1, idle.err_fd)  # of a ring that never started
        server.call(device.break_queue, 0, "for no reason")
        assert until(idle.take_error)
        assert not ring.wait_err(0)
