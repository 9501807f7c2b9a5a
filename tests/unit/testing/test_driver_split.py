"""What the driver leaves in guest memory: split rings (virtio 1.3, section 2.7)."""

from __future__ import annotations

import os
import struct

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam
from vringd.testing.ring_layout import RingLayout

from .model_device import INDIRECT, NEXT, WRITE, model_device

OUT = [(0x1_4000_1000, 16)]
IN = [(0x1_4000_2000, 512), (0x1_4000_3000, 1)]


def u16(ram: GuestRam, addr: int) -> int:
    return int.from_bytes(ram.read(addr, 2), "little")


def table_entry(ram: GuestRam, table: int, index: int) -> tuple[int, ...]:
    return struct.unpack("<QIHH", ram.read(table + 16 * index, 16))


def test_a_chain_links_its_descriptors_and_stands_in_the_available_ring(ram: GuestRam) -> None:
    with DriverQueue(ram, 8) as q:
        token = q.add(OUT, IN)
        a, b, c = q.descriptors(token)
        assert q.read_desc(a) == (*OUT[0], NEXT, b)
        assert q.read_desc(b) == (*IN[0], NEXT | WRITE, c)
        assert q.read_desc(c) == (*IN[1], WRITE, 0xFFFF)
        assert u16(ram, q.layout.avail + 4) == a == q.buffer_id(token)
        assert q.num_free == 5


def test_descriptor_order_is_scrambled_unless_told_otherwise(ram: GuestRam) -> None:
    with DriverQueue(ram, 64) as q:
        indices = q.descriptors(q.add(IN * 20))
        assert indices != tuple(range(40))
        assert len(set(indices)) == 40
    with DriverQueue(ram, 64, scramble=0) as q:
        assert q.descriptors(q.add(IN * 20)) == tuple(range(40))


def test_nothing_is_visible_before_publish_and_then_everything(ram: GuestRam) -> None:
    with DriverQueue(ram, 8) as q:
        for _ in range(3):
            q.add(OUT)
        assert u16(ram, q.layout.avail + 2) == q.avail_idx == 0
        assert q.publish() == 3
        assert u16(ram, q.layout.avail + 2) == q.avail_idx == 3
        assert q.publish() == 0


def test_an_indirect_table_takes_one_descriptor(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        token = q.add(OUT, IN, indirect=True)
        (head,) = q.descriptors(token)
        table = q.indirect_table(token)
        assert q.read_desc(head) == (table, 48, INDIRECT, 0xFFFF)
        assert table_entry(ram, table, 0) == (*OUT[0], NEXT, 1)
        assert table_entry(ram, table, 1) == (*IN[0], NEXT | WRITE, 2)
        assert table_entry(ram, table, 2) == (*IN[1], WRITE, 0xFFFF)
        assert q.num_free == 3


def test_direct_descriptors_may_precede_an_indirect_table(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        token = q.add(OUT, IN, indirect=True, direct=2)
        a, b, c = q.descriptors(token)
        assert q.read_desc(a) == (*OUT[0], NEXT, b)
        assert q.read_desc(b) == (*IN[0], NEXT | WRITE, c)
        assert q.read_desc(c) == (q.indirect_table(token), 16, INDIRECT, 0xFFFF)
        assert table_entry(ram, q.indirect_table(token), 0) == (*IN[1], WRITE, 0xFFFF)


def test_indirect_tables_of_buffers_in_flight_are_distinct(ram: GuestRam) -> None:
    with DriverQueue(ram, 8, max_indirect=3) as q:
        tables = [q.indirect_table(q.add(OUT, IN, indirect=True)) for _ in range(8)]
        assert len(set(tables)) == 8
        assert sorted(tables)[1] - sorted(tables)[0] == 48


def test_in_order_uses_descriptors_in_ring_order_round_and_round(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, in_order=True) as q:
        device = model_device(q)
        expected = 0
        for _ in range(5):
            token = q.add(OUT, IN)
            assert q.descriptors(token) == tuple((expected + i) % 4 for i in range(3))
            expected += 3
            q.publish()
            chain = device.pop()
            assert chain is not None
            device.push(chain, 0)
            assert q.pop_used() == (token, 0)


def test_a_full_ring_says_how_much_is_free(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        q.add(OUT, IN)
        with pytest.raises(BufferError, match="2 descriptors do not fit: 1 are free"):
            q.add(IN)
        q.add(OUT)
        assert q.num_free == 0
        assert q.in_flight == 2


def test_what_can_never_be_added_is_a_value_error(ram: GuestRam) -> None:
    with DriverQueue(ram, 2, max_indirect=4) as q:
        with pytest.raises(ValueError, match="at least one segment"):
            q.add()
        with pytest.raises(ValueError, match="never fit a ring of 2"):
            q.add(OUT, IN)
        with pytest.raises(ValueError, match="exceed max_indirect=4"):
            q.add(OUT * 5, indirect=True)
        with pytest.raises(ValueError, match="before an indirect table"):
            q.add(OUT, direct=1)
    with DriverQueue(ram, 2, indirect=False) as q, pytest.raises(ValueError, match="without ind"):
        q.add(OUT, IN, indirect=True)


def test_an_iterable_that_fails_half_way_adds_nothing(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        with pytest.raises(OverflowError):
            q.add(OUT, [(0, 1), (-1, 1)])
        assert q.num_free == 4
        assert q.publish() == 0


@pytest.mark.parametrize("base", [1, 7, 0xFFFE, 0xFFFF])
def test_a_ring_starts_where_it_is_told_and_the_index_wraps(ram: GuestRam, base: int) -> None:
    with DriverQueue(ram, 4, base=base) as q:
        device = model_device(q)
        assert u16(ram, q.layout.used + 2) == q.last_used_idx == q.avail_idx == base
        for i in range(6):
            token = q.add(OUT, IN)
            q.publish()
            assert q.kick_needed() == (i == 0)  # the device never moved avail_event on
            chain = device.pop()
            assert chain is not None
            device.push(chain, i)
            assert q.pop_used() == (token, i)
        assert q.avail_idx == (base + 6) & 0xFFFF


def test_reset_forgets_everything(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        q.add(OUT, IN)
        q.publish()
        q.kick()
        q.reset(base=9)
        assert (q.num_free, q.in_flight, q.avail_idx, q.base) == (4, 0, 9, 9)
        assert q.take_kicks() == 0
        assert ram.read(q.layout.desc, 64) == bytes(64)


def test_bad_construction_is_refused(ram: GuestRam) -> None:
    with pytest.raises(ValueError, match="queue size 3"):
        DriverQueue(ram, 3)
    with pytest.raises(ValueError, match="does not fit 16 bits"):
        DriverQueue(ram, 4, base=0x10000)
    layout = RingLayout.allocate(ram, 8)
    with pytest.raises(ValueError, match="another ring"):
        DriverQueue(ram, 4, layout=layout)


def test_a_failed_construction_gives_everything_back(ram: GuestRam) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(MemoryError):
            DriverQueue(ram, 32768, max_indirect=32)
    assert set(os.listdir("/proc/self/fd")) == before
    for region in ram.regions:
        ram.alloc(region.size - 16, region=region)


def test_a_given_layout_is_used_and_not_given_back(ram: GuestRam) -> None:
    layout = RingLayout.allocate(ram, 8, minimal_alignment=False)
    with DriverQueue(ram, 8, layout=layout) as q:
        assert q.layout is layout
    layout.free(ram)


def test_a_closed_queue_refuses_and_close_may_be_repeated(ram: GuestRam) -> None:
    q = DriverQueue(ram, 4)
    q.close()
    q.close()
    assert q.kick_fd == -1
    with pytest.raises(ValueError, match="closed"):
        q.publish()
    with pytest.raises(ValueError, match="closed"):
        _ = q.num_free


def test_features_say_what_must_be_negotiated(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        assert q.features == 1 << 32 | 1 << 29 | 1 << 28
    with DriverQueue(ram, 4, packed=True, in_order=True, event_idx=False, indirect=False) as q:
        assert q.features == 1 << 32 | 1 << 34 | 1 << 35
