"""When rings run: the life cycle of the specification, "Ring states", as real VMMs walk it."""

from __future__ import annotations

import os

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend, RefusedByBackend, RingSpec
from vringd.testing.memory import GuestRam
from vringd.vhost_user.wire import VringAddress

from .fake_device import PACKED, FakeDevice
from .server_thread import ServerThread, pair, until


def echo(ram: GuestRam, queue: DriverQueue, data: bytes = b"hello") -> bytes:
    """Send data through the queue; what came back."""
    source, target = ram.alloc(len(data)), ram.alloc(len(data))
    ram.write(source, data)
    token = queue.add([(source, len(data))], [(target, len(data))])
    queue.publish()
    queue.kick()
    assert queue.wait()
    assert queue.pop_used() == (token, len(data))
    return ram.read(target, len(data))


def test_enabled_ring_is_processed(ram: GuestRam, device: FakeDevice, running: DriverQueue) -> None:
    assert echo(ram, running) == b"hello"
    assert device.events == [("start", 0)]


def test_packed_ring_is_processed(frontend: Frontend, ram: GuestRam) -> None:
    frontend.negotiate()
    frontend.add_ram(ram)
    with DriverQueue(ram, 12, packed=True) as queue:
        frontend.attach(2, queue)
        assert echo(ram, queue) == b"hello"


def test_front_end_without_protocol_features_needs_no_enable(
    frontend: Frontend, ram: GuestRam
) -> None:
    frontend.negotiate(features=~PACKED, protocol_features=False)
    frontend.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        frontend.attach(0, queue)
        target = ram.alloc(1)
        queue.add([(target, 1)], [(target, 1)])
        queue.publish()
        assert until(lambda: queue.has_used)  # seen in the ring: the fake takes no call later


def test_started_ring_waits_for_enable(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        negotiated.prepare_ring(RingSpec.of(0, queue.layout))
        assert device.events == []
        negotiated.set_vring_enable(0)
        assert device.events == [("start", 0)]


def test_enabled_ring_waits_for_kick_descriptor(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.add_ram(ram)
    for index in range(4):  # VMMs enable also rings that the driver does not use
        negotiated.set_vring_enable(index)
    assert device.events == []
    with DriverQueue(ram, 16) as queue:
        negotiated.prepare_ring(RingSpec.of(1, queue.layout))
        assert device.events[0] == ("start", 1)


def test_disabled_ring_is_drained_and_goes_on_where_it_was(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    echo(ram, running)
    negotiated.set_vring_enable(0, False)
    assert device.queues == {}
    negotiated.set_vring_enable(0, True)
    assert echo(ram, running, b"again") == b"again"
    assert device.events == [("start", 0), ("stop", 0), ("start", 0)]


def test_get_vring_base_drains_and_tells_the_position(
    served: tuple[ServerThread, Frontend],
    negotiated: Frontend,
    ram: GuestRam,
    device: FakeDevice,
    running: DriverQueue,
) -> None:
    device.holding = True
    target = ram.alloc(1)
    for _ in range(3):
        running.add([(target, 1)], [(target, 1)])
    running.publish()
    running.kick()
    assert until(lambda: len(device._held[0]) == 3)
    served[0].call(setattr, device, "holding", False)
    assert negotiated.get_vring_base(0) == 3
    assert [running.pop_used() is not None for _ in range(4)] == [True, True, True, False]
    assert device.queues == {}
    # The ring is enabled still, and starts with the next kick descriptor.
    negotiated.set_vring_base(0, 3)
    negotiated.set_vring_kick(0, running.kick_fd)
    assert echo(ram, running) == b"hello"


def test_ring_starts_at_the_given_base(negotiated: Frontend, ram: GuestRam) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16, base=65530) as queue:
        negotiated.attach(0, queue)
        for _ in range(8):
            echo(ram, queue)
        assert negotiated.get_vring_base(0) == 2


def test_base_of_a_ring_that_never_ran_is_the_one_given(negotiated: Frontend) -> None:
    negotiated.set_vring_base(3, 77)
    assert negotiated.get_vring_base(3) == 77


def test_256_rings_run_at_once(ram: GuestRam) -> None:
    device = FakeDevice(num_queues=256)
    with pair(device) as (_, frontend):
        frontend.negotiate(features=~PACKED)
        frontend.add_ram(ram)
        assert frontend.get_queue_num() == 256
        queues = [DriverQueue(ram, 4, max_indirect=1) for _ in range(256)]
        for index, queue in enumerate(queues):
            frontend.attach(index, queue)
        assert echo(ram, queues[255]) == b"hello"
        frontend.stop_rings()
        assert device.queues == {}
        for queue in queues:
            queue.close()


def test_call_descriptor_changes_live(
    negotiated: Frontend, device: FakeDevice, running: DriverQueue
) -> None:
    masked = os.eventfd(0)
    try:
        for _ in range(10):  # a guest that masks and unmasks its interrupt
            negotiated.set_vring_call(0, masked)
            negotiated.set_vring_call(0, running.call_fd)
    finally:
        os.close(masked)
    assert len(device.updates(0, "call_fd")) == 20
    assert device.queues.keys() == {0}
    assert ("stop", 0) not in device.events


def test_first_call_descriptor_of_a_running_ring_is_signalled(
    negotiated: Frontend, ram: GuestRam
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        ring = negotiated.start_ring(RingSpec.of(0, queue.layout), call=-1)
        call = os.eventfd(0)
        try:
            negotiated.set_vring_call(0, call)
            ring.call = call
            assert ring.wait_call(0)
        finally:
            os.close(call)


def test_call_descriptor_is_signalled_when_a_ring_starts(
    negotiated: Frontend, ram: GuestRam
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        assert negotiated.start_ring(RingSpec.of(0, queue.layout)).wait_call(0)


def test_new_addresses_of_a_running_ring_restart_it(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue, DriverQueue(ram, 16) as other:
        negotiated.attach(0, queue)
        negotiated.set_vring_addr(RingSpec.of(0, other.layout).address())
        assert device.events == [("start", 0), ("stop", 0), ("start", 0)]


def test_same_addresses_change_nothing_but_the_log_address(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        spec = RingSpec.of(0, queue.layout)
        negotiated.start_ring(spec)
        address = spec.address()
        logged = VringAddress(0, 1, *address.parts, 0x5000)
        negotiated.set_vring_addr(logged)
        negotiated.set_vring_addr(address)
        assert device.updates(0, "log_addr") == [0x5000, None]
        assert device.queues.keys() == {0}


@pytest.mark.parametrize("size", [0, 3, 255, 257, 512, 1 << 31])
def test_bad_queue_size_is_refused(negotiated: Frontend, size: int) -> None:
    with pytest.raises(RefusedByBackend):
        negotiated.set_vring_num(0, size)
    negotiated.set_vring_num(0, 256)


def test_size_and_base_of_a_running_ring_cannot_change(
    negotiated: Frontend, ram: GuestRam, running: DriverQueue
) -> None:
    with pytest.raises(RefusedByBackend):
        negotiated.set_vring_num(0, 32)
    with pytest.raises(RefusedByBackend):
        negotiated.set_vring_base(0, 5)
    assert echo(ram, running) == b"hello"


def test_ring_outside_memory_is_refused_and_can_be_corrected(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        spec = RingSpec.of(0, queue.layout)
        ring = negotiated.prepare_ring(RingSpec(0, 16, 0x1000, spec.avail, spec.used))
        with pytest.raises(RefusedByBackend):
            negotiated.set_vring_enable(0)
        assert device.events == []
        negotiated.set_vring_addr(spec.address())
        negotiated.set_vring_enable(0)
        assert device.events == [("start", 0)]
        assert ring.kick is not None


def test_reset_owner_disables_all_rings(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    negotiated.reset_owner()
    assert device.queues == {}
    negotiated.set_vring_enable(0)
    assert echo(ram, running) == b"hello"


def test_slow_drain_is_reported_and_waited_for(
    ram: GuestRam, caplog: pytest.LogCaptureFixture, device: FakeDevice
) -> None:
    device.holding = True
    with pair(device, drain_report=0.05) as (server, frontend):
        frontend.negotiate(features=~PACKED)
        frontend.add_ram(ram)
        with DriverQueue(ram, 16) as queue:
            frontend.attach(0, queue)
            queue.add([(queue.layout.desc, 1)])
            queue.publish()
            assert until(lambda: bool(device._held[0]))
            frontend.send(11, bytes(8))  # GET_VRING_BASE, without waiting for the reply
            assert until(lambda: "has not finished after 0.1 s" in caplog.text)
            server.call(setattr, device, "holding", False)
            assert frontend.receive().payload == bytes([0, 0, 0, 0, 1, 0, 0, 0])
