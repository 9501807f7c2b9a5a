"""What the driver leaves in guest memory: packed rings (virtio 1.3, section 2.8)."""

from __future__ import annotations

import struct

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .model_device import AVAIL, INDIRECT, NEXT, USED, WRITE, model_device

OUT = [(0x1_4000_1000, 16)]
IN = [(0x1_4000_2000, 512), (0x1_4000_3000, 1)]


def test_a_chain_takes_slots_in_a_row_and_names_its_id_last(ram: GuestRam) -> None:
    with DriverQueue(ram, 8, packed=True) as q:
        token = q.add(OUT, IN)
        q.publish()
        assert q.descriptors(token) == (0, 1, 2)
        assert q.read_packed_desc(0) == (*OUT[0], 0xFFFF, AVAIL | NEXT)
        assert q.read_packed_desc(1) == (*IN[0], 0xFFFF, AVAIL | NEXT | WRITE)
        assert q.read_packed_desc(2) == (*IN[1], q.buffer_id(token), AVAIL | WRITE)
        assert q.avail_idx == 3 | 1 << 15


def test_only_the_first_head_waits_for_publish(ram: GuestRam) -> None:
    with DriverQueue(ram, 8, packed=True) as q:
        q.add(OUT, IN)
        q.add(OUT)
        assert q.read_packed_desc(0)[3] & (AVAIL | USED) == 0
        assert q.read_packed_desc(3)[3] == AVAIL
        assert model_device(q).pop() is None
        assert q.publish() == 2
        assert q.read_packed_desc(0)[3] == AVAIL | NEXT


def test_the_wrap_counter_turns_within_a_chain(ram: GuestRam) -> None:
    with DriverQueue(ram, 5, packed=True) as q:
        device = model_device(q)
        for _ in range(3):
            token = q.add(OUT)
            q.publish()
            chain = device.pop()
            assert chain is not None
            device.push(chain, 0)
            assert q.pop_used() == (token, 0)
        token = q.add(OUT, IN)
        q.publish()
        assert q.descriptors(token) == (3, 4, 0)
        assert [q.read_packed_desc(i)[3] & (AVAIL | USED) for i in (3, 4, 0)] == [
            AVAIL,
            AVAIL,
            USED,
        ]
        assert q.avail_idx == 1


def test_buffer_ids_do_not_follow_the_slots(ram: GuestRam) -> None:
    with DriverQueue(ram, 16, packed=True) as q:
        ids = [q.buffer_id(q.add(OUT)) for _ in range(16)]
        assert sorted(ids) == list(range(16))
        assert ids != sorted(ids)


def test_an_indirect_table_has_only_the_write_flag(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as q:
        token = q.add(OUT, IN, indirect=True)
        q.publish()
        table = q.indirect_table(token)
        assert q.read_packed_desc(0) == (table, 48, q.buffer_id(token), AVAIL | INDIRECT)
        entries = [struct.unpack("<QIHH", ram.read(table + 16 * i, 16)) for i in range(3)]
        assert entries == [(*OUT[0], 0xFFFF, 0), *((*s, 0xFFFF, WRITE) for s in IN)]


def test_direct_and_indirect_do_not_mix(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as q, pytest.raises(ValueError, match="cannot mix"):
        q.add(OUT, IN, indirect=True, direct=1)


@pytest.mark.parametrize("half", [0x8000, 0x8003, 0x0003, 0x0000, 0x8006, 0x0006])
def test_a_ring_starts_at_any_position_and_lap(ram: GuestRam, half: int) -> None:
    with DriverQueue(ram, 7, packed=True, base=half | half << 16) as q:
        device = model_device(q)
        assert q.last_used_idx == q.avail_idx == half
        assert device.pop() is None
        assert q.pop_used() is None
        for i in range(20):
            token = q.add(OUT, IN)
            q.publish()
            chain = device.pop()
            assert chain is not None
            device.push(chain, i)
            assert q.pop_used() == (token, i)


def test_an_impossible_base_is_refused(ram: GuestRam) -> None:
    with pytest.raises(ValueError, match="differs"):
        DriverQueue(ram, 8, packed=True, base=0x8000_0000)
    with pytest.raises(ValueError, match="outside a ring of 8"):
        DriverQueue(ram, 8, packed=True, base=0x8008_8008)


def test_out_of_order_completion_skips_by_the_length_of_each_chain(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as q:
        device = model_device(q)
        long = q.add(OUT, IN)
        short = q.add(OUT)
        q.publish()
        first, second = device.pop(), device.pop()
        assert first is not None
        assert second is not None
        device.push(second, 0)
        device.push(first, 513)
        assert q.pop_used() == (short, 0)
        assert q.num_free == 1
        assert q.pop_used() == (long, 513)
        assert q.num_free == 4
        assert q.last_used_idx == 0


def test_length_of_a_used_descriptor_counts_only_with_the_write_flag(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as q:
        token = q.add((), IN)
        q.publish()
        q.write_packed_desc(0, 0, 100, q.buffer_id(token), AVAIL | USED)
        assert q.pop_used() == (token, 0)
