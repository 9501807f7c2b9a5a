"""Rings that a hostile guest wrote: named, not served any more, and nothing of them leaks."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vringd.core.virtqueue import MAX_QUEUE_SIZE, Virtqueue
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .rig import LAYOUTS, make_queue, map_ram

NEXT, WRITE, INDIRECT = 1, 2, 4
AVAIL, USED = 1 << 7, 1 << 15
TOP = 1 << 64
BASE = 0x1_4000_0000  # of the fixture's first region

LOOP = "a descriptor chain is longer than its table (a loop)"
NEXT_OUTSIDE = "a next descriptor index is outside its table"
HEAD = "a head descriptor index is not below the queue size"
BUSY = "a descriptor was made available again while it was in flight"
JUMP = "the available index moved by more than the queue size"
ORDER = "a device-readable descriptor follows a device-writable one"
TABLE = "an indirect descriptor table is malformed"
ADDRESS = "a buffer lies outside guest memory"
TOO_MANY = "a chain has more than 1026 segments"
EMPTY = "a chain without any buffer"


def check_broken(queue: Virtqueue, reason: str, in_flight: int = 0) -> None:
    """The ring is broken for this reason, stays so, and what was in flight can be returned."""
    for _ in range(2):
        assert queue.pop() is None
        assert queue.broken == reason
    assert queue.in_flight == in_flight


def offer(driver: DriverQueue, descs: list[tuple[int, int, int, int]], head: int = 0) -> None:
    """Make a split chain available that begins at descriptor `head`."""
    for index, desc in enumerate(descs):
        driver.write_desc(index, *desc)
    driver.write_avail(driver.avail_idx, [head])
    driver.set_avail_idx(driver.avail_idx + 1)


def offer_packed(driver: DriverQueue, descs: list[tuple[int, int, int, int]]) -> None:
    """Make packed descriptors (addr, len, id, flags) available in a ring's first lap."""
    for index, (addr, length, id, flags) in reversed(list(enumerate(descs))):
        driver.write_packed_desc(index, addr, length, id, flags | AVAIL)


# ---- split: indices


@pytest.mark.parametrize("chain", [[0], [1, 0], [1, 2, 3, 0], [1, 2, 1]])
def test_a_looping_chain(ram: GuestRam, chain: list[int]) -> None:
    with DriverQueue(ram, 4) as driver:
        queue = make_queue(driver)
        offer(driver, [(BASE, 1, NEXT, following) for following in chain])
        check_broken(queue, LOOP)


def test_a_chain_of_the_whole_table_is_no_loop(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as driver:
        queue = make_queue(driver)
        offer(driver, [(BASE, 1, NEXT, 1), (BASE, 1, NEXT, 2), (BASE, 1, NEXT, 3), (BASE, 1, 0, 0)])
        chain = queue.pop()
        assert chain is not None
        assert chain.segments() == ([1, 1, 1, 1], [])


@pytest.mark.parametrize("head", [4, 5, 0x7FFF, 0xFFFF])
def test_a_head_outside_the_table(ram: GuestRam, head: int) -> None:
    with DriverQueue(ram, 4) as driver:
        queue = make_queue(driver)
        driver.write_avail(0, [head])
        driver.set_avail_idx(1)
        check_broken(queue, HEAD)


@pytest.mark.parametrize("following", [4, 0xFFFF])
def test_a_next_outside_the_table(ram: GuestRam, following: int) -> None:
    with DriverQueue(ram, 4) as driver:
        queue = make_queue(driver)
        offer(driver, [(BASE, 1, NEXT, following)])
        check_broken(queue, NEXT_OUTSIDE)


@pytest.mark.parametrize("base", [0, 3, 0xFFFE])
@pytest.mark.parametrize("jump", [5, 100, 0x8000, 0xFFFF])
def test_an_available_index_that_jumps(ram: GuestRam, base: int, jump: int) -> None:
    with DriverQueue(ram, 4, base=base) as driver:
        queue = make_queue(driver)
        driver.set_avail_idx((base + jump) & 0xFFFF)
        assert queue.enable_notification()  # the thread must not sleep on it
        check_broken(queue, JUMP)


def test_an_available_index_that_goes_back(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as driver:
        queue = make_queue(driver)
        for _ in range(2):
            driver.add([(BASE, 1)])
        driver.publish()
        first = queue.pop()
        assert first is not None
        driver.set_avail_idx(0)
        assert queue.pop() is not None  # it was seen before
        check_broken(queue, JUMP, in_flight=2)


def test_a_head_made_available_twice(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as driver:
        queue = make_queue(driver)
        driver.write_desc(0, BASE, 8, 0, 0)
        driver.write_avail(0, [0, 0])
        driver.set_avail_idx(2)
        chain = queue.pop()
        assert chain is not None
        check_broken(queue, BUSY, in_flight=1)
        queue.push(chain, 0)
        assert queue.in_flight == 0
        queue.publish()
        assert driver.used_idx == 1


# ---- both: what a chain may hold


def lengths(driver: DriverQueue, segments: list[tuple[int, int, int]]) -> Virtqueue:
    """A queue whose next chain has these (addr, len, flags)."""
    queue = make_queue(driver)
    last = len(segments) - 1
    if driver.packed:
        offer_packed(
            driver,
            [(a, n, 7, f | (NEXT if i < last else 0)) for i, (a, n, f) in enumerate(segments)],
        )
    else:
        offer(
            driver,
            [(a, n, f | (NEXT if i < last else 0), i + 1) for i, (a, n, f) in enumerate(segments)],
        )
    return queue


@LAYOUTS
@pytest.mark.parametrize("flags", [(WRITE, 0), (0, WRITE, 0), (WRITE, WRITE, 0), (WRITE, 0, WRITE)])
def test_readable_after_writable(ram: GuestRam, packed: bool, flags: tuple[int, ...]) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        check_broken(lengths(driver, [(BASE, 8, flag) for flag in flags]), ORDER)


@LAYOUTS
@pytest.mark.parametrize("flag", [0, WRITE])
@pytest.mark.parametrize(
    ("addr", "size"),
    [
        (0, 1),
        (BASE - 1, 1),
        (BASE - 1, 2),
        (BASE + (1 << 20), 1),
        (BASE + (1 << 20) - 1, 2),
        (BASE, (1 << 20) + 1),
        (BASE, 0xFFFF_FFFF),
        (TOP - 1, 1),
        (TOP - 1, 2),
        (TOP - 16, 0xFFFF_FFFF),
        (TOP - 0x8000_0000, 0xFFFF_FFFF),
    ],
)
def test_a_buffer_outside_memory(
    ram: GuestRam, packed: bool, flag: int, addr: int, size: int
) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        check_broken(lengths(driver, [(addr, size, flag)]), ADDRESS)
    with DriverQueue(ram, 4, packed=packed) as driver:
        check_broken(lengths(driver, [(BASE, 8, flag), (addr, size, flag)]), ADDRESS)


@LAYOUTS
@pytest.mark.parametrize("count", [1, 3])
def test_a_chain_without_bytes(ram: GuestRam, packed: bool, count: int) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        # Wherever a buffer of no bytes claims to be, nothing is read there.
        queue = lengths(driver, [(TOP - 1, 0, 0)] * (count - 1) + [(0, 0, WRITE)])
        check_broken(queue, EMPTY)


@LAYOUTS
def test_empty_buffers_within_a_chain_are_skipped(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 8, packed=packed) as driver:
        queue = lengths(
            driver,
            [(0, 0, WRITE), (BASE, 3, 0), (TOP - 1, 0, 0), (BASE, 5, WRITE), (0, 0, 0)],
        )
        chain = queue.pop()
        assert chain is not None
        assert chain.segments() == ([3], [5])


# ---- indirect tables


def table_of(ram: GuestRam, entries: list[tuple[int, int, int, int]]) -> int:
    """Store a table: (addr, len, flags, next) split, (addr, len, id, flags) packed."""
    data = b"".join(struct.pack("<QIHH", *entry) for entry in entries)
    addr = ram.alloc(len(data), 16)
    ram.write(addr, data)
    return addr


def offer_table(driver: DriverQueue, addr: int, size: int, flags: int = 0) -> Virtqueue:
    return lengths(driver, [(addr, size, flags | INDIRECT)])


@LAYOUTS
@pytest.mark.parametrize("size", [0, 1, 15, 17, 33, 0xFFFF_FFFF])
def test_a_table_of_a_bad_length(ram: GuestRam, packed: bool, size: int) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        check_broken(offer_table(driver, BASE, size), TABLE)


@LAYOUTS
@pytest.mark.parametrize("addr", [0, BASE - 16, BASE + (1 << 20), BASE + (1 << 20) - 16, TOP - 32])
def test_a_table_outside_memory(ram: GuestRam, packed: bool, addr: int) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        check_broken(offer_table(driver, addr, 32), TABLE)


@LAYOUTS
def test_a_table_within_a_table(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        last = (0, INDIRECT) if packed else (INDIRECT, 0)
        table = table_of(ram, [(BASE, 16, *last)])
        check_broken(offer_table(driver, table, 16), TABLE)


@LAYOUTS
def test_a_table_with_a_successor(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        table = table_of(ram, [(BASE, 8, 0, 0)])
        check_broken(lengths(driver, [(table, 16, INDIRECT), (BASE, 8, 0)]), TABLE)


@LAYOUTS
def test_a_table_that_was_not_negotiated(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed, indirect=False) as driver:
        table = table_of(ram, [(BASE, 8, 0, 0)])
        check_broken(offer_table(driver, table, 16), TABLE)


def test_a_table_behind_buffers_is_for_split_rings_only(ram: GuestRam) -> None:
    for packed in (False, True):
        with DriverQueue(ram, 4, packed=packed) as driver:
            table = table_of(ram, [(BASE + 16, 8, 0, 0)])
            queue = lengths(driver, [(BASE, 4, 0), (table, 16, INDIRECT)])
            if packed:
                check_broken(queue, TABLE)
            else:
                chain = queue.pop()
                assert chain is not None
                assert chain.segments() == ([4, 8], [])


@LAYOUTS
def test_the_write_flag_of_a_table_means_nothing(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        table = table_of(ram, [(BASE, 8, 0, 0)])
        chain = offer_table(driver, table, 16, WRITE).pop()
        assert chain is not None
        assert chain.segments() == ([8], [])


def test_a_loop_in_a_table(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as driver:
        table = table_of(ram, [(BASE, 8, NEXT, 1), (BASE, 8, NEXT, 0)])
        check_broken(offer_table(driver, table, 32), LOOP)
    with DriverQueue(ram, 4) as driver:
        table = table_of(ram, [(BASE, 8, NEXT, 2), (BASE, 8, NEXT, 0)])
        check_broken(offer_table(driver, table, 32), NEXT_OUTSIDE)


@LAYOUTS
def test_the_most_segments_and_one_more(ram: GuestRam, packed: bool) -> None:
    for count, fits in ((1026, True), (1027, False), (5000, False)):
        with DriverQueue(ram, 4, packed=packed) as driver:
            entries = [
                (BASE + i, 1, 0, 0)
                if packed
                else (BASE + i, 1, NEXT if i < count - 1 else 0, i + 1)
                for i in range(count)
            ]
            table = table_of(ram, entries)
            queue = offer_table(driver, table, 16 * count)
            if not fits:
                check_broken(queue, TOO_MANY)
                continue
            chain = queue.pop()
            assert chain is not None
            assert chain.readable() == ram.read(BASE, count)


@LAYOUTS
def test_a_table_of_millions_of_empty_buffers_does_not_occupy_the_thread(packed: bool) -> None:
    with GuestRam((64 << 20,)) as ram, DriverQueue(ram, 4, packed=packed) as driver:
        count = 2 << 20
        table = ram.alloc(16 * count, 16)
        if packed:
            ram.fill(table, 16 * count, 0)
        else:
            # Index 65535 cannot be passed, so the chain loops there until it is cut.
            for i in range(65536):
                ram.write(table + 16 * i, struct.pack("<QIHH", 0, 0, NEXT, (i + 1) & 0xFFFF))
        check_broken(offer_table(driver, table, 16 * count), TOO_MANY)


# ---- rewritten while in flight


@LAYOUTS
@pytest.mark.parametrize("indirect", [False, True])
def test_descriptors_rewritten_after_pop_change_nothing(
    ram: GuestRam, packed: bool, indirect: bool
) -> None:
    with DriverQueue(ram, 4, packed=packed) as driver:
        queue = make_queue(driver)
        source, target = ram.alloc(8), ram.alloc(8)
        ram.write(source, b"original")
        ram.fill(target, 8, 0)
        token = driver.add([(source, 8)], [(target, 8)], indirect=indirect)
        driver.publish()
        chain = queue.pop()
        assert chain is not None
        for index in range(4):
            if packed:
                driver.write_packed_desc(index, TOP - 1, 0xFFFF_FFFF, 3, 0xFFFF)
            else:
                driver.write_desc(index, TOP - 1, 0xFFFF_FFFF, 0xFFFF, 0xFFFF)
        if indirect:
            ram.fill(driver.indirect_table(token), 32, 0xFF)
        assert chain.readable() == b"original"
        assert chain.write(b"answered") == 8
        assert ram.read(target, 8) == b"answered"
        queue.push(chain, 8)
        queue.publish()
        assert driver.pop_used() == (token, 8)


# ---- packed


def test_a_packed_chain_longer_than_the_ring(ram: GuestRam) -> None:
    with DriverQueue(ram, 3, packed=True) as driver:
        queue = make_queue(driver)
        offer_packed(driver, [(BASE, 8, 0, NEXT)] * 3)
        check_broken(queue, LOOP)


def test_packed_chains_that_take_more_entries_than_the_ring_has(ram: GuestRam) -> None:
    """All entries are in flight; the driver says that the next lap is available already."""
    with DriverQueue(ram, 4, packed=True) as driver:
        queue = make_queue(driver)
        offer_packed(driver, [(BASE, 8, 0, NEXT)] * 3 + [(BASE, 8, 0, 0)])
        chain = queue.pop()
        assert chain is not None
        for index in range(4):
            driver.write_packed_desc(index, BASE, 8, 1, USED | (NEXT if index < 3 else 0))
        check_broken(queue, BUSY, in_flight=1)
        queue.push(chain, 0)
        queue.publish()
        assert queue.in_flight == 0


def test_a_packed_chain_that_runs_into_one_in_flight(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as driver:
        queue = make_queue(driver)
        offer_packed(driver, [(BASE, 8, 0, NEXT), (BASE, 8, 0, 0)])
        first = queue.pop()
        assert first is not None
        for index in (3, 2):
            driver.write_packed_desc(index, BASE, 8, 1, AVAIL | NEXT)
        check_broken(queue, BUSY, in_flight=1)
        queue.push(first, 0)
        queue.publish()


def test_a_packed_buffer_id_is_given_back_whatever_it_is(ram: GuestRam) -> None:
    with DriverQueue(ram, 4, packed=True) as driver:
        queue = make_queue(driver)
        for index in range(4):
            driver.write_packed_desc(index, BASE, 8, 0xFFFF, AVAIL)
        chains = [queue.pop() for _ in range(4)]
        assert queue.pop() is None
        assert queue.broken is None
        for chain in chains:
            assert chain is not None
            assert chain.head == 0xFFFF
            queue.push(chain, 0)
        queue.publish()
        assert [driver.read_packed_desc(i)[2] for i in range(4)] == [0xFFFF] * 4


@given(flags=st.integers(0, 0xFFFF))
def test_packed_flags_without_meaning_are_ignored(flags: int) -> None:
    known = NEXT | WRITE | INDIRECT
    with GuestRam((1 << 20,)) as ram, DriverQueue(ram, 4, packed=True) as driver:
        queue = make_queue(driver)
        driver.write_packed_desc(0, BASE, 8, 0, flags)
        chain = queue.pop()
        if not (flags & AVAIL and not flags & USED):
            assert chain is None
            assert queue.broken is None
        elif not flags & known & ~WRITE:
            assert chain is not None
            assert chain.segments() == (([], [8]) if flags & WRITE else ([8], []))


# ---- anything at all

ADDRESSES = st.one_of(
    st.integers(BASE, BASE + (1 << 20) - 1), st.integers(0, TOP - 1), st.just(BASE)
)
LENGTHS = st.one_of(st.integers(0, 100), st.just(0xFFFF_FFFF), st.sampled_from([16, 32, 48]))
FLAGS = st.one_of(st.integers(0, 7), st.integers(0, 0xFFFF), st.sampled_from([AVAIL, AVAIL | NEXT]))


@LAYOUTS
@settings(max_examples=300)
@given(data=st.data())
def test_no_ring_whatever_it_holds_does_harm(packed: bool, data: st.DataObject) -> None:
    """Random descriptors, random tables, random indices, rewritten between any two steps."""
    size = data.draw(st.sampled_from([1, 2, 4, 8]))
    with GuestRam((1 << 20,)) as ram:
        guard = ram.alloc(4096)
        with DriverQueue(ram, size, packed=packed) as driver:
            queue = make_queue(driver)
            table = ram.alloc(16 * 8, 16)
            chains = []
            for _ in range(data.draw(st.integers(1, 12))):
                step = data.draw(st.sampled_from(["desc", "table", "avail", "pop", "push"]))
                if step == "desc":
                    index = data.draw(st.integers(0, size - 1))
                    addr = data.draw(st.one_of(ADDRESSES, st.just(table)))
                    length, flags = data.draw(LENGTHS), data.draw(FLAGS)
                    other = data.draw(st.integers(0, 9))
                    if packed:
                        driver.write_packed_desc(index, addr, length, other, flags)
                    else:
                        driver.write_desc(index, addr, length, flags, other)
                elif step == "table":
                    entry = struct.pack(
                        "<QIHH",
                        data.draw(ADDRESSES),
                        data.draw(LENGTHS),
                        data.draw(FLAGS),
                        data.draw(st.integers(0, 9)),
                    )
                    ram.write(table + 16 * data.draw(st.integers(0, 7)), entry)
                elif step == "avail" and not packed:
                    heads = data.draw(st.lists(st.integers(0, 9), max_size=4))
                    driver.write_avail(data.draw(st.integers(0, 7)), heads)
                    driver.set_avail_idx(data.draw(st.integers(0, 9)))
                elif step == "pop":
                    chain = queue.pop()
                    if chain is not None:
                        assert sum(map(len, chain.segments())) > 0
                        chains.append(chain)
                elif step == "push" and chains:
                    queue.push(chains.pop(), data.draw(st.integers(0, 0xFFFF_FFFF)))
                    if data.draw(st.booleans()):
                        queue.publish()
                queue.enable_notification()
                assert queue.in_flight == len(chains)
            for chain in chains:
                queue.push(chain, 0)
            queue.publish()
            assert queue.in_flight == 0
        ram.free(guard)
        ram.check()


# ---- what the Python side is refused


def test_a_chain_can_be_returned_once_and_to_its_own_queue(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as driver, DriverQueue(ram, 4) as other_driver:
        queue, other = make_queue(driver), make_queue(other_driver)
        driver.add([(BASE, 1)])
        driver.publish()
        chain = queue.pop()
        assert chain is not None
        with pytest.raises(ValueError, match="another queue's"):
            other.push(chain, 0)
        with pytest.raises(ValueError, match="another queue's"):
            other.undo_pop(chain)
        queue.undo_pop(chain)
        with pytest.raises(ValueError, match="already"):
            queue.push(chain, 0)
        chain = queue.pop()
        assert chain is not None
        queue.push(chain, 0)
        with pytest.raises(ValueError, match="already"):
            queue.push(chain, 0)
        with pytest.raises(ValueError, match="already"):
            queue.undo_pop(chain)
        assert queue.in_flight == 0


def test_publishing_nothing_notifies_nobody(ram: GuestRam) -> None:
    for packed in (False, True):
        with DriverQueue(ram, 4, packed=packed) as driver:
            queue = make_queue(driver)
            assert not queue.publish()
            driver.add([(BASE, 1)])
            driver.publish()
            chain = queue.pop()
            assert chain is not None
            queue.push(chain, 0)
            assert queue.publish()
            assert not queue.publish()


@LAYOUTS
def test_sizes_that_a_ring_cannot_have(ram: GuestRam, packed: bool) -> None:
    with DriverQueue(ram, 1024, packed=packed) as driver:
        layout = driver.layout

        def make(size: int, base: int = 0) -> Virtqueue:
            queue = make_queue(driver)
            return Virtqueue(
                3,
                size=size,
                features=queue.features,
                memory=queue_memory,
                desc=layout.desc_user,
                avail=layout.avail_user,
                used=layout.used_user,
                base=base,
                kick_fd=-1,
                call_fd=-1,
                err_fd=-1,
            )

        queue_memory = map_ram(ram)
        for size in (0, -1, MAX_QUEUE_SIZE + 1, 65536):
            with pytest.raises(ValueError, match="queue 3: size"):
                make(size)
        if packed:
            assert make(1000).size == 1000
            for base in (5, 5 << 16, 0x7FFF, 5 | 0x8000):
                with pytest.raises(ValueError, match="outside the ring"):
                    make(5, base)
        else:
            with pytest.raises(ValueError, match="power of two"):
                make(1000)
            with pytest.raises(ValueError, match="16 bits"):
                make(4, 0x10000)
