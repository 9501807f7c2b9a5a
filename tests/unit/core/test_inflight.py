"""The inflight buffer: what a killed device leaves behind, its successor finishes exactly once."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vringd.core.inflight import InflightBuffer
from vringd.core.virtqueue import Chain, Virtqueue
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .rig import LAYOUTS, make_queue, map_ram

BASE = 0x1_4000_0000
# Offsets in a packed region (vhost-user specification, QueueRegionPacked).
OLD_FREE_HEAD, OLD_USED_IDX, OLD_WRAP = 14, 18, 21
# Offsets in a split region (QueueRegionSplit).
USED_IDX = 14


@contextmanager
def tracked(
    ram: GuestRam, *, packed: bool = False
) -> Iterator[tuple[DriverQueue, InflightBuffer, Virtqueue]]:
    """Both ends of a ring of 4 entries, and the buffer in which the device keeps track of it."""
    with DriverQueue(ram, 4, packed=packed) as driver:
        buffer = InflightBuffer.create(1, 4, packed)
        yield driver, buffer, make_queue(driver, inflight=buffer)


def successor(driver: DriverQueue, buffer: InflightBuffer) -> Virtqueue:
    """A new device on the same ring, with the buffer that the front-end kept."""
    mapped = InflightBuffer.map(buffer.fd, buffer.mmap_size, 0, 1, buffer.queue_size, buffer.packed)
    return make_queue(driver, base=0, inflight=mapped)


def pop_all(queue: Virtqueue) -> list[Chain]:
    chains = []
    while (chain := queue.pop()) is not None:
        chains.append(chain)
    assert queue.broken is None
    return chains


def take_all(driver: DriverQueue) -> list[int]:
    tokens = []
    while (used := driver.pop_used()) is not None:
        tokens.append(used[0])
    return tokens


def numbered(driver: DriverQueue, first: int, count: int, entries: int = 1) -> None:
    """Offer buffers that hold the numbers from `first` on, of `entries` descriptors each."""
    for n in range(first, first + count):
        addr = BASE + 0x8_0000 + 16 * n
        driver.ram.write(addr, struct.pack("<QQ", n, n))
        size = 8 // entries
        driver.add([(addr + size * i, size) for i in range(entries)])
    driver.publish()


def number(chain: Chain) -> int:
    return int(struct.unpack("<Q", chain.readable())[0])


@pytest.mark.parametrize(
    ("packed", "size", "expected"),
    [(False, 1, 64), (False, 128, 2112), (True, 1, 64), (True, 128, 4160), (True, 3, 128)],
)
def test_the_size_of_a_region_follows_the_specification(
    packed: bool, size: int, expected: int
) -> None:
    header, entry = (32, 32) if packed else (16, 16)
    assert InflightBuffer.region_size(size, packed) == expected
    assert expected % 64 == 0
    assert expected - 64 < header + entry * size <= expected


@LAYOUTS
def test_a_fresh_buffer_is_initialised(ram: GuestRam, packed: bool) -> None:
    with tracked(ram, packed=packed) as (driver, buffer, queue):
        header = os.pread(buffer.fd, 12, 0)
        assert struct.unpack("<QHH", header) == (0, 1, 4)
        if packed:
            states = os.pread(buffer.fd, 4 * 32, 32)
            following = [struct.unpack_from("<xxH", states, 32 * i)[0] for i in range(4)]
            assert following == [1, 2, 3, 4]
        assert queue.in_flight == 0
        assert pop_all(queue) == []
        numbered(driver, 0, 2)
        assert [number(chain) for chain in pop_all(queue)] == [0, 1]


def test_a_split_buffer_says_what_is_in_flight_as_specified(ram: GuestRam) -> None:
    with tracked(ram) as (driver, buffer, queue):
        numbered(driver, 0, 2)
        first, second = pop_all(queue)

        def states() -> list[int]:
            return list(os.pread(buffer.fd, 64, 16)[::16])

        expected = [0] * 4
        expected[first.head] = expected[second.head] = 1
        assert states() == expected
        queue.push(first, 0)
        assert states() == expected  # until it is published
        queue.publish()
        expected[first.head] = 0
        assert states() == expected
        assert struct.unpack("<HH", os.pread(buffer.fd, 4, 12)) == (first.head, 1)


@LAYOUTS
@given(data=st.data())
@settings(max_examples=60)
def test_killed_at_any_step_nothing_is_lost_or_done_twice(
    packed: bool, data: st.DataObject
) -> None:
    """Chains of up to 4 entries; the device dies several times, wherever it stands."""
    size = data.draw(st.sampled_from([3, 4, 7] if packed else [4, 8]))
    with (
        GuestRam((1 << 20,)) as ram,
        DriverQueue(ram, size, packed=packed, event_idx=data.draw(st.booleans())) as driver,
    ):
        buffer = InflightBuffer.create(1, size, packed)
        queue = make_queue(driver, inflight=buffer)
        offered = 0
        open_chains: list[Chain] = []
        finished: list[int] = []
        tokens: list[int] = []
        for _ in range(data.draw(st.integers(3, 25))):
            step = data.draw(st.sampled_from(["offer", "pop", "push", "publish", "kill", "take"]))
            if step == "offer":
                entries = data.draw(st.sampled_from([1, 2, 4]))
                if entries <= driver.num_free:
                    numbered(driver, offered, 1, entries)
                    offered += 1
            elif step == "pop" and (chain := queue.pop()) is not None:
                open_chains.append(chain)
            elif step == "push" and open_chains:
                chain = open_chains.pop(data.draw(st.integers(0, len(open_chains) - 1)))
                finished.append(number(chain))
                queue.push(chain, 0)
            elif step == "publish":
                queue.publish()
            elif step == "take":
                tokens += take_all(driver)
            elif step == "kill":
                tokens += take_all(driver)
                queue = successor(driver, buffer)
                open_chains = pop_all(queue)
                again = [number(chain) for chain in open_chains]
                # Everything that the driver has not got back, in the order that it was offered.
                assert again == [n for n in range(offered) if n not in tokens]
                assert queue.in_flight == len(again)
        open_chains += pop_all(queue)
        for chain in open_chains:
            queue.push(chain, 0)
        queue.publish()
        tokens += take_all(driver)
        assert sorted(tokens) == list(range(offered))
        assert driver.in_flight == 0


# ---- killed within publish


def test_killed_after_the_used_index_was_stored(ram: GuestRam) -> None:
    """The ring says published, the buffer does not yet: nothing is done twice."""
    with tracked(ram) as (driver, buffer, queue):
        numbered(driver, 0, 3)
        chains = pop_all(queue)
        queue.push(chains[0], 0)
        queue.push(chains[2], 0)
        before = os.pread(buffer.fd, buffer.mmap_size, 0)
        queue.publish()
        os.pwrite(buffer.fd, before, 0)
        queue = successor(driver, buffer)
        assert [number(chain) for chain in pop_all(queue)] == [1]
        assert take_all(driver) == [0, 2]


def test_killed_before_the_used_index_was_stored(ram: GuestRam) -> None:
    with tracked(ram) as (driver, buffer, queue):
        numbered(driver, 0, 3)
        chains = pop_all(queue)
        queue.push(chains[2], 0)
        queue.push(chains[0], 0)
        queue = successor(driver, buffer)
        assert [number(chain) for chain in pop_all(queue)] == [0, 1, 2]
        assert take_all(driver) == []


def killed_in_packed_publish(
    driver: DriverQueue, buffer: InflightBuffer, queue: Virtqueue, *, visible: bool
) -> None:
    """Publish, and take back the stores that come last: the commit of free list and used index,
    and unless `visible` the flags of the first used descriptor too."""
    first = struct.unpack("<H", os.pread(buffer.fd, 2, OLD_USED_IDX))[0]
    flags = driver.read_packed_desc(first)
    before = os.pread(buffer.fd, buffer.mmap_size, 0)
    queue.publish()
    after = bytearray(os.pread(buffer.fd, buffer.mmap_size, 0))
    for at, size in ((OLD_FREE_HEAD, 2), (OLD_USED_IDX, 2), (OLD_WRAP, 1)):
        after[at : at + size] = before[at : at + size]
    for i in range(buffer.queue_size):  # the inflight marks are cleared after the flags
        after[32 + 32 * i] = before[32 + 32 * i]
    os.pwrite(buffer.fd, after, 0)
    if not visible:
        driver.write_packed_desc(first, *flags)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turn", range(4))
def test_killed_after_packed_flags_were_stored(ram: GuestRam, count: int, turn: int) -> None:
    """A batch of up to the whole ring, after which the used index stands where it was."""
    with tracked(ram, packed=True) as (driver, buffer, queue):
        for n in range(turn):
            numbered(driver, n, 1)
            for chain in pop_all(queue):
                queue.push(chain, 0)
            queue.publish()
            assert take_all(driver) == [n]
        numbered(driver, turn, 4)
        for chain in pop_all(queue)[:count]:
            queue.push(chain, 0)
        killed_in_packed_publish(driver, buffer, queue, visible=True)
        queue = successor(driver, buffer)
        assert take_all(driver) == list(range(turn, turn + count))
        chains = pop_all(queue)
        assert [number(chain) for chain in chains] == list(range(turn + count, turn + 4))
        for chain in chains:
            queue.push(chain, 0)
        queue.publish()
        assert take_all(driver) == list(range(turn + count, turn + 4))


def test_killed_after_packed_flags_were_stored_and_the_driver_went_on(ram: GuestRam) -> None:
    """The driver has offered the entry again, so its flags are those of the next lap."""
    with tracked(ram, packed=True) as (driver, buffer, queue):
        numbered(driver, 0, 4)
        chains = pop_all(queue)
        queue.push(chains[0], 0)
        queue.push(chains[1], 0)
        killed_in_packed_publish(driver, buffer, queue, visible=True)
        assert take_all(driver) == [0, 1]
        numbered(driver, 4, 2)
        queue = successor(driver, buffer)
        assert [number(chain) for chain in pop_all(queue)] == [2, 3, 4, 5]


@pytest.mark.parametrize("count", [1, 3, 4])
def test_killed_before_packed_flags_were_stored(ram: GuestRam, count: int) -> None:
    with tracked(ram, packed=True) as (driver, buffer, queue):
        numbered(driver, 0, 4)
        for chain in pop_all(queue)[:count]:
            queue.push(chain, 0)
        killed_in_packed_publish(driver, buffer, queue, visible=False)
        queue = successor(driver, buffer)
        chains = pop_all(queue)
        assert [number(chain) for chain in chains] == [0, 1, 2, 3]
        for chain in chains:
            queue.push(chain, 0)
        queue.publish()
        assert take_all(driver) == [0, 1, 2, 3]


@pytest.mark.parametrize("turn", range(8))
@pytest.mark.parametrize("killed", ["before", "within"])
def test_unpublished_used_entries_are_not_left_for_the_driver_to_find(
    ram: GuestRam, killed: str, turn: int
) -> None:
    """All entries but the first of a batch have their flags before it is published; a successor
    that publishes one by one must not bring them to light."""
    with tracked(ram, packed=True) as (driver, buffer, queue):
        for n in range(turn):
            numbered(driver, n, 1)
            for chain in pop_all(queue):
                queue.push(chain, 0)
            queue.publish()
            assert take_all(driver) == [n]
        numbered(driver, turn, 4)
        for chain in pop_all(queue)[:3]:
            queue.push(chain, 0)
        if killed == "within":
            killed_in_packed_publish(driver, buffer, queue, visible=False)
        queue = successor(driver, buffer)
        for n in range(turn, turn + 4):
            chain = queue.pop()
            assert chain is not None
            assert number(chain) == n
            queue.push(chain, 0)
            queue.publish()
            assert take_all(driver) == [n]


def test_packed_entries_overwritten_by_used_ones_are_resubmitted_from_the_buffer(
    ram: GuestRam,
) -> None:
    """The second chain is used first and overwrites the first one's entry in the ring."""
    with tracked(ram, packed=True) as (driver, buffer, queue):
        numbered(driver, 0, 2, entries=2)
        _, second = pop_all(queue)
        queue.push(second, 0)
        queue.publish()
        queue = successor(driver, buffer)
        chains = pop_all(queue)
        assert [number(chain) for chain in chains] == [0]
        assert chains[0].segments() == ([4, 4], [])
        assert take_all(driver) == [1]


# ---- notifications across several laps


@pytest.mark.parametrize("laps", [1, 2, 5])
def test_batches_of_more_than_a_lap_notify_a_sleeping_driver(ram: GuestRam, laps: int) -> None:
    """With an inflight buffer a packed ring is published at each pop, and decided upon later."""
    with tracked(ram, packed=True) as (driver, _, queue):
        for shift in range(4):
            numbered(driver, 0, 1)  # the decision is made at another position each time
            for chain in pop_all(queue):
                queue.push(chain, 0)
            queue.publish()
            assert len(take_all(driver)) == 1
            driver.take_notifications()
            for _ in range(4 * laps - 1 - shift % 2):  # the driver looks itself, and goes on
                numbered(driver, 0, 1)
                one = queue.pop()
                assert one is not None
                queue.push(one, 0)
                assert queue.pop() is None  # publishes
                assert len(take_all(driver)) == 1
            numbered(driver, 0, 3)
            assert not driver.enable_callbacks()
            for chain in pop_all(queue):
                queue.push(chain, 0)
            if queue.publish():
                queue.notify()
            assert driver.wait(0.0, grace=0.0)
            assert len(take_all(driver)) == 3


# ---- what else a predecessor leaves


@LAYOUTS
@pytest.mark.parametrize("event_idx", [False, True])
def test_a_successor_asks_for_kicks_that_its_predecessor_did_not_want(
    ram: GuestRam, packed: bool, event_idx: bool
) -> None:
    with DriverQueue(ram, 4, packed=packed, event_idx=event_idx) as driver:
        make_queue(driver).disable_notification()
        assert not make_queue(driver).enable_notification()
        numbered(driver, 0, 1)
        assert driver.kick_needed()


@LAYOUTS
def test_a_resubmitted_chain_can_be_put_back(ram: GuestRam, packed: bool) -> None:
    with tracked(ram, packed=packed) as (driver, buffer, queue):
        numbered(driver, 0, 2)
        pop_all(queue)
        queue = successor(driver, buffer)
        first, second = pop_all(queue)  # and saw that there is no third
        queue.undo_pop(second)
        assert queue.in_flight == 1
        (again,) = pop_all(queue)
        assert number(again) == 1
        queue.push(again, 0)
        queue.push(first, 0)
        queue.publish()
        assert take_all(driver) == [1, 0]


# ---- buffers that are wrong


@LAYOUTS
def test_a_buffer_of_another_shape_is_refused(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        for buffer, index, message in (
            (InflightBuffer.create(1, 4, not packed), 0, "the inflight buffer is for"),
            (InflightBuffer.create(1, 2, packed), 0, "rings of 2 entries"),
            (InflightBuffer.create(1, 4, packed), 1, "for 1 queues"),
        ):
            with pytest.raises(ValueError, match=message):
                make_queue(driver, index=index, inflight=buffer)


@LAYOUTS
@pytest.mark.parametrize("field", ["version", "desc_num"])
def test_a_buffer_of_another_kind_is_refused(ram: GuestRam, packed: bool, field: str) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        buffer = InflightBuffer.create(1, 4, packed)
        make_queue(driver, inflight=buffer)
        os.pwrite(buffer.fd, struct.pack("<H", 2), 8 if field == "version" else 10)
        with pytest.raises(ValueError, match=r"queue 0: the inflight buffer has (version 2|2 ent)"):
            successor(driver, buffer)


def test_impossible_buffers_are_refused() -> None:
    for queues, size in ((0, 4), (65536, 4), (1, 0), (1, 32769)):
        with pytest.raises(ValueError, match="an inflight buffer for"):
            InflightBuffer.create(queues, size, False)
    buffer = InflightBuffer.create(2, 4, True)
    for size, offset, message in (
        (buffer.mmap_size - 1, 0, "need"),
        (buffer.mmap_size + 1, 0, "beyond its file"),
        (1 << 63, 0, "beyond its file"),
        (buffer.mmap_size, 4096, "beyond its file"),
    ):
        with pytest.raises(ValueError, match=message):
            InflightBuffer.map(buffer.fd, size, offset, 2, 4, True)
    os.ftruncate(buffer.fd, 1 << 16)
    with pytest.raises(ValueError, match="not at a page"):
        InflightBuffer.map(buffer.fd, buffer.mmap_size, 100, 2, 4, True)


@LAYOUTS
@settings(max_examples=200)
@given(data=st.data())
def test_a_scribbled_buffer_does_no_harm(packed: bool, data: st.DataObject) -> None:
    """Random bytes in a buffer in use, then a kill: refused, or served without a crash."""
    values = st.one_of(st.integers(0, 9), st.integers(0, 0xFFFF))
    with GuestRam((1 << 20,)) as ram, DriverQueue(ram, 4, packed=packed) as driver:
        buffer = InflightBuffer.create(1, 4, packed)
        memory = map_ram(ram)
        queue = make_queue(driver, memory, inflight=buffer)
        numbered(driver, 0, data.draw(st.integers(0, 4)))
        chains = []
        for _ in range(data.draw(st.integers(0, 4))):
            if (chain := queue.pop()) is not None:
                chains.append(chain)

        def scribble() -> None:
            for _ in range(data.draw(st.integers(0, 6))):
                at = 2 * data.draw(st.integers(6, (32 + 128) // 2 - 1))
                os.pwrite(buffer.fd, struct.pack("<H", data.draw(values)), at)

        scribble()
        while chains:  # the living device first
            queue.push(chains.pop(), 0)
            queue.publish()
            scribble()
            if (chain := queue.pop()) is not None:
                chains.append(chain)
                if data.draw(st.booleans()):
                    break
        try:
            queue = successor(driver, buffer)
        except ValueError:  # refused
            return
        scribble()
        popped = 0
        while popped < 20 and (chain := queue.pop()) is not None:
            popped += 1
            queue.push(chain, 0)
            if data.draw(st.booleans()):
                queue.publish()
            scribble()
        queue.publish()
        assert queue.in_flight == 0
        ram.check()


# ---- base


@LAYOUTS
@pytest.mark.parametrize("size", [1, 4, 1024])
def test_the_base_round_trips(ram: GuestRam, packed: bool, size: int) -> None:
    positions = [0, 1, size - 1] if packed else [0, 1, 4, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF]
    for position in positions:
        for wrap in (0, 1):
            base = position % size | wrap << 15 if packed else position
            base = base | base << 16 if packed else base
            with DriverQueue(ram, size, packed=packed, base=base) as driver:
                assert make_queue(driver).base == base


def test_a_packed_base_keeps_both_positions_apart(ram: GuestRam) -> None:
    with DriverQueue(ram, 5, packed=True) as driver:
        for base in (0x0004_8001, 0x8003_0002, 0x8004_8004, 0x0000_0000):
            assert make_queue(driver, base=base).base == base


def test_the_base_counts_ring_entries_and_wraps_with_them(ram: GuestRam) -> None:
    with DriverQueue(ram, 3, packed=True) as driver:
        queue = make_queue(driver)
        seen = []
        for n in range(7):
            numbered(driver, n, 1)
            for chain in pop_all(queue):
                queue.push(chain, 0)
            queue.publish()
            take_all(driver)
            seen.append(queue.base & 0xFFFF)
            assert queue.base >> 16 == seen[-1]
        assert seen == [0x8001, 0x8002, 0, 1, 2, 0x8000, 0x8001]
