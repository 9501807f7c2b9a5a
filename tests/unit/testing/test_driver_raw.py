"""Raw access: a test can put anything in front of the device, and look at what the device wrote."""

from __future__ import annotations

import struct

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .model_device import EVENT_DESC, INDIRECT, NEXT, WRITE, ModelError, model_device

OUT = [(0x1_4000_1000, 16)]
IN = [(0x1_4000_2000, 512)]


def test_a_looping_chain(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        q.write_desc(1, 0x1000, 8, NEXT, 2)
        q.write_desc(2, 0x2000, 8, NEXT, 1)
        q.write_avail(0, [1])
        q.set_avail_idx(1)
        assert q.read_desc(1) == (0x1000, 8, NEXT, 2)
        with pytest.raises(ModelError, match="loops"):
            model_device(q).pop()


def test_a_descriptor_rewritten_after_it_was_added(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        token = q.add(OUT, IN)
        _, second = q.descriptors(token)
        q.write_desc(second, 0xFFFF_FFFF_FFFF_F000, 0xFFFF_FFFF, WRITE, 0)
        q.publish()
        chain = model_device(q).pop()
        assert chain is not None
        assert chain.in_ == ((0xFFFF_FFFF_FFFF_F000, 0xFFFF_FFFF),)


def test_a_bad_indirect_table(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        token = q.add(OUT, IN, indirect=True)
        table = q.indirect_table(token)
        ram.write(table, struct.pack("<QIHH", table, 32, INDIRECT, 0))
        q.publish()
        with pytest.raises(ModelError, match="within an indirect table"):
            model_device(q).pop()


def test_available_entries_wrap_around_the_ring(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        q.write_avail(0xFFFF, [0xAAAA, 0xBBBB])
        assert ram.read(q.layout.avail + 4, 8) == struct.pack("<4H", 0xBBBB, 0, 0, 0xAAAA)


def test_available_flags_and_events_can_be_set(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        q.set_avail_flags(0x1234)
        q.set_used_event(0x5678)
        assert ram.read(q.layout.avail, 2) == b"\x34\x12"
        assert ram.read(q.layout.avail + 12, 2) == b"\x78\x56"
    with DriverQueue(ram, 4, packed=True) as q:
        q.set_driver_event(0x8001, EVENT_DESC)
        assert ram.read(q.layout.avail, 4) == struct.pack("<HH", 0x8001, EVENT_DESC)


def test_what_the_device_wrote_can_be_read(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, event_idx=False) as q:
        device = model_device(q)
        device.disable_kicks()
        assert q.used_flags == 1
        head = q.buffer_id(q.add((), IN))
        q.publish()
        chain = device.pop()
        assert chain is not None
        device.push(chain, 99)
        assert q.used_idx == 1
        assert q.read_used(0) == (head, 99)
        assert q.avail_event == 0
    with DriverQueue(ram, 4, packed=True) as q:
        model_device(q).enable_kicks()
        assert q.device_event == (0x8000, EVENT_DESC)


def test_raw_access_is_for_the_right_format_and_within_the_ring(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        with pytest.raises(ValueError, match="only for packed"):
            q.write_packed_desc(0, 0, 0, 0, 0)
        with pytest.raises(ValueError, match="entry 4 lies outside a ring of 4"):
            q.write_desc(4, 0, 0, 0, 0)
    with DriverQueue(ram, 4, packed=True) as q:
        with pytest.raises(ValueError, match="only for split"):
            q.set_avail_idx(0)
        with pytest.raises(ValueError, match="entry 4 lies outside a ring of 4"):
            q.read_packed_desc(4)


def test_questions_about_a_buffer_not_in_flight(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        for question in (q.descriptors, q.buffer_id, q.indirect_table):
            with pytest.raises(KeyError, match="no buffer with token 7"):
                question(7)
