"""Memory tables: slots that come and go while rings run, and tables that are replaced whole."""

from __future__ import annotations

import os

import pytest

from vringd.core.memory import MAX_REGIONS
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Disconnected, Frontend, RefusedByBackend
from vringd.testing.memory import GuestRam, RamRegion
from vringd.vhost_user.wire import ProtocolFeature, RegionDescription, Request

from .fake_device import PACKED, FakeDevice
from .server_thread import ServerThread, until
from .test_rings import echo


def describe(region: RamRegion) -> RegionDescription:
    return RegionDescription(region.guest_addr, region.size, region.user_addr, region.mmap_offset)


def maps_of_memfd() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:guest-ram" in line for line in maps)


def test_region_added_to_running_ring_is_used_without_a_drain(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    new = ram.add_region(1 << 20)
    negotiated.add_region(new.guest_addr, new.size, new.user_addr, new.fd, new.mmap_offset)
    (memory,) = device.updates(0, "memory")
    assert [region.guest_addr for region in memory.regions] == sorted(
        region.guest_addr for region in ram.regions
    )
    assert ("stop", 0) not in device.events


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_region_removed_under_running_ring_is_unmapped_after_a_drain(
    negotiated: Frontend,
    ram: GuestRam,
    device: FakeDevice,
    with_descriptor: bool,
    running: DriverQueue,
) -> None:
    echo(ram, running)
    extra = ram.add_region(1 << 20)  # holds nothing of the ring
    before = maps_of_memfd()
    negotiated.add_region(
        extra.guest_addr, extra.size, extra.user_addr, extra.fd, extra.mmap_offset
    )
    negotiated.remove_region(
        extra.guest_addr,
        extra.size,
        extra.user_addr,
        extra.fd if with_descriptor else None,
    )
    assert device.events[-2:] == [("stop", 0), ("start", 0)]
    device.events.clear()  # which refer to the memory with the region
    assert maps_of_memfd() == before
    assert echo(ram, running) == b"hello"


def test_ring_whose_memory_is_taken_away_waits_until_it_is_back(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    echo(ram, running)
    part = ram.find_region(running.layout.desc)
    negotiated.remove_region(part.guest_addr, part.size, part.user_addr)
    assert device.queues == {}
    negotiated.add_region(part.guest_addr, part.size, part.user_addr, part.fd, part.mmap_offset)
    assert echo(ram, running, b"again") == b"again"


def test_table_of_front_end_without_slots_replaces_the_whole_memory(
    frontend: Frontend, ram: GuestRam, device: FakeDevice
) -> None:
    frontend.negotiate(features=~PACKED, protocol=~ProtocolFeature.CONFIGURE_MEM_SLOTS)
    frontend.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        frontend.attach(0, queue)
        echo(ram, queue)
        ram.add_region(1 << 20)
        frontend.add_ram(ram)  # as for a hot-plugged module
        assert device.events == [("start", 0), ("stop", 0), ("start", 0)]
        assert echo(ram, queue) == b"hello"
        frontend.set_mem_table([])
        assert device.queues == {}


def test_bad_table_leaves_memory_and_rings_as_they_are(
    negotiated: Frontend, ram: GuestRam, device: FakeDevice, running: DriverQueue
) -> None:
    first, second = ram.regions
    bad = [
        [(describe(first), first.fd), (describe(first), first.fd)],
        [(RegionDescription(0, 0, 0, 0), first.fd)],
        [(RegionDescription(0, 4096, 0, 1 << 40), first.fd)],
        [(RegionDescription((1 << 64) - 4096, 8192, 0, 0), first.fd)],
        [(RegionDescription(0, 4096, 0, (1 << 64) - 4096), first.fd)],
        [(RegionDescription(0, (1 << 64) - 1, 0, 1), first.fd)],
    ]
    for table in bad:
        with pytest.raises(RefusedByBackend):
            negotiated.set_mem_table(table)
    with pytest.raises(RefusedByBackend):  # a descriptor too few
        negotiated.tell(
            Request.SET_MEM_TABLE,
            RegionDescription.pack_table([describe(first), describe(second)]),
            [first.fd],
        )
    with pytest.raises(RefusedByBackend):  # says two regions, has one
        negotiated.tell(
            Request.SET_MEM_TABLE, b"\2" + bytes(7) + describe(first).pack(), [first.fd]
        )
    assert device.events == [("start", 0)]
    assert echo(ram, running) == b"hello"


def test_descriptor_that_cannot_be_mapped_is_refused(negotiated: Frontend) -> None:
    event = os.eventfd(0)
    reader, writer = os.pipe()
    try:
        for fd in (event, reader, writer):
            with pytest.raises(RefusedByBackend):
                negotiated.add_region(0, 4096, 0, fd)
    finally:
        for fd in (event, reader, writer):
            os.close(fd)


def test_slots_are_limited(negotiated: Frontend, ram: GuestRam) -> None:
    assert negotiated.get_max_mem_slots() == MAX_REGIONS
    fd = ram.regions[0].fd
    for n in range(MAX_REGIONS):
        negotiated.add_region(n << 12, 4096, n << 12, fd)
    with pytest.raises(RefusedByBackend):
        negotiated.add_region(MAX_REGIONS << 12, 4096, MAX_REGIONS << 12, fd)


def test_region_that_does_not_exist_cannot_be_removed(negotiated: Frontend, ram: GuestRam) -> None:
    negotiated.add_ram(ram)
    region = ram.regions[0]
    with pytest.raises(RefusedByBackend):
        negotiated.remove_region(region.guest_addr, region.size - 4096, region.user_addr)
    with pytest.raises(RefusedByBackend):
        negotiated.remove_region(region.guest_addr, region.size, region.user_addr + 4096)


def test_slots_need_negotiation(frontend: Frontend) -> None:
    frontend.negotiate(protocol=ProtocolFeature.REPLY_ACK)
    with pytest.raises(Disconnected):
        frontend.get_max_mem_slots()


def test_everything_is_unmapped_when_the_front_end_goes(
    ram: GuestRam, device: FakeDevice, path: os.PathLike[str]
) -> None:
    before = maps_of_memfd()
    with ServerThread(device, path=path):
        with Frontend.connect(path) as frontend:
            frontend.negotiate(features=~PACKED)
            frontend.add_ram(ram)
            assert maps_of_memfd() > before
        assert until(lambda: maps_of_memfd() == before)
