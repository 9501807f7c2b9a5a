"""Every lie of a device that the driver can know is found and named."""

from __future__ import annotations

import struct

import pytest

from vringd.testing.driver import DriverError, DriverQueue
from vringd.testing.memory import GuestRam, GuestRamError

from .model_device import AVAIL, USED, WRITE, model_device

OUT = [(0x1_4000_1000, 16)]
IN = [(0x1_4000_2000, 512)]


def use(q: DriverQueue, slot: int, id: int, length: int) -> None:
    """Write a used element (split) or descriptor (packed, first lap) as any device might."""
    if q.packed:
        flags = AVAIL | USED | (WRITE if length else 0)
        q.write_packed_desc(slot, 0, length, id, flags)
    else:
        q.ram.write(q.layout.used + 4 + 8 * (slot % q.size), struct.pack("<II", id, length))
        q.ram.write(q.layout.used + 2, struct.pack("<H", slot + 1))


def check_error(q: DriverQueue, message: str) -> None:
    for _ in range(2):  # the verdict stays
        with pytest.raises(DriverError, match=message):
            q.pop_used()
    q.reset()
    assert q.pop_used() is None


FORMATS = pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])


@FORMATS
@pytest.mark.parametrize("id", [4, 5, 0xFFFF])
def test_an_id_outside_the_ring(ram: GuestRam, packed: bool, id: int) -> None:
    with DriverQueue(ram, 4, packed=packed) as q:
        q.add((), IN)
        q.publish()
        use(q, 0, id, 0)
        check_error(q, f"used id {id} lies outside a ring of 4")


def test_a_split_id_beyond_16_bits_is_not_truncated(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        head = q.buffer_id(q.add((), IN))
        q.publish()
        use(q, 0, 0x10000 + head, 0)
        check_error(q, "lies outside a ring of 4")


@FORMATS
def test_an_id_that_was_never_given(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as q:
        head = q.buffer_id(q.add((), IN))
        q.publish()
        use(q, 0, (head + 1) % 4, 0)
        check_error(q, "no buffer in flight")


@FORMATS
def test_an_id_that_was_returned_already(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as q:
        token = q.add((), IN)
        q.add((), IN)
        q.publish()
        head = q.buffer_id(token)
        use(q, 0, head, 0)
        assert q.pop_used() == (token, 0)
        use(q, 1, head, 0)
        check_error(q, f"used id {head} is no buffer in flight")


def test_the_middle_of_a_chain_is_no_id(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        middle = q.descriptors(q.add(OUT, IN))[1]
        q.publish()
        use(q, 0, middle, 0)
        check_error(q, "no buffer in flight")


@FORMATS
def test_a_buffer_that_was_not_published(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as q:
        q.add((), IN)
        q.publish()
        hidden = q.buffer_id(q.add((), IN))
        use(q, 0, hidden, 0)
        check_error(q, f"used id {hidden} was not yet made available")


@FORMATS
def test_more_bytes_than_the_buffer_can_hold(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as q:
        head = q.buffer_id(q.add(OUT, IN))
        q.publish()
        use(q, 0, head, 513)
        check_error(q, "claims 513 written bytes, but the buffer has 512")


@FORMATS
def test_bytes_written_into_a_readable_buffer(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as q:
        head = q.buffer_id(q.add(OUT, indirect=True))
        q.publish()
        use(q, 0, head, 1)
        check_error(q, "claims 1 written bytes, but the buffer has 0")


@pytest.mark.parametrize("jump", [2, 0x8000, 0xFFFF])
def test_a_used_index_that_jumps(ram: GuestRam, jump: int) -> None:
    with DriverQueue(ram, 4) as q:
        q.add((), IN)
        q.publish()
        q.add((), IN)
        q.ram.write(q.layout.used + 2, struct.pack("<H", jump))
        check_error(q, f"used idx is {jump} ahead, but only 1 buffers were in flight")


def test_a_used_slot_though_nothing_is_in_flight(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as q:
        use(q, 0, 0, 0)
        check_error(q, "slot 0 is marked used, but no buffer was in flight")


@pytest.mark.parametrize("flags", [0, USED])
def test_packed_flags_that_mean_nothing(ram: GuestRam, flags: int) -> None:
    with DriverQueue(ram, 4, packed=True) as q:
        token = q.add((), IN)
        q.publish()
        q.write_packed_desc(0, 0, 0, q.buffer_id(token), flags)
        check_error(q, "neither available nor used under the used wrap counter 1")


def test_a_used_descriptor_of_the_wrong_lap(ram: GuestRam) -> None:
    with DriverQueue(ram, 2, packed=True) as q:
        for slot in range(2):
            token = q.add((), IN)
            q.publish()
            use(q, slot, q.buffer_id(token), 0)
            assert q.pop_used() == (token, 0)
        token = q.add((), IN)
        q.publish()
        use(q, 0, q.buffer_id(token), 0)  # the wrap counter is 0 now
        check_error(q, "under the used wrap counter 0")


def test_a_split_ring_out_of_order_under_in_order(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, in_order=True) as q:
        q.add((), IN)
        second = q.buffer_id(q.add((), IN))
        q.publish()
        use(q, 0, second, 0)
        check_error(q, f"used id {second} finishes 2 buffers, but used idx advanced by less")


@FORMATS
def test_a_buffer_that_the_batch_covered_already(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed, in_order=True) as q:
        device = model_device(q)
        a = q.add((), IN)
        b = q.add((), IN)
        q.add((), IN)
        id_a = q.buffer_id(a)
        q.publish()
        device.pop()
        chain = device.pop()
        assert chain is not None
        device.push(chain, 3)
        assert q.pop_used() == (a, 512)
        assert q.pop_used() == (b, 3)
        use(q, 2, id_a, 0)
        check_error(q, f"used id {id_a} is no buffer in flight")


def test_a_write_behind_the_ring_is_found_at_close(ram: GuestRam) -> None:
    q = DriverQueue(ram, 4)
    used_end = q.layout.used + 6 + 8 * 4
    saved = ram.read(used_end, 1)
    ram.write(used_end, b"x")
    with pytest.raises(GuestRamError, match="wrote behind the 38 bytes"):
        q.close()
    ram.write(used_end, saved)
