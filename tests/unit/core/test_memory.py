"""Guest memory: translation, its limits, files that shrink, the dirty log."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vringd.core.memory import MAX_REGIONS, DirtyLog, GuestMemory, MemoryRegion
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import PAGE, GuestRam, RegionSpec

from .rig import LAYOUTS, make_queue

TOP = 1 << 64


@pytest.fixture
def file() -> Iterator[int]:
    """A memory file of 64 pages; byte n of page p is p + 1."""
    fd = os.memfd_create("memory", os.MFD_CLOEXEC)
    os.write(fd, b"".join(bytes([page + 1]) * PAGE for page in range(64)))
    yield fd
    os.close(fd)


def region(
    fd: int, guest: int, pages: int, *, user: int | None = None, offset: int = 0
) -> MemoryRegion:
    return MemoryRegion(guest, pages * PAGE, guest if user is None else user, fd, offset)


# ---- translation


def test_each_byte_of_many_regions_is_found_where_it_is(file: int) -> None:
    # Regions of one page each, gaps between them, in no order, files pages reversed.
    starts = [(n * 7919 % 61) * 3 * PAGE + (1 << 40) for n in range(61)]
    memory = GuestMemory(
        [
            region(file, start, 1, user=n * 2 * PAGE, offset=(60 - n) * PAGE)
            for n, start in enumerate(starts)
        ]
    )
    for n, start in enumerate(starts):
        value = bytes([61 - n])
        assert memory.read(start, PAGE) == value * PAGE
        assert memory.read(start + PAGE - 1, 1) == value
        assert memory.user_to_guest(n * 2 * PAGE + 17, 1) == start + 17
        for outside in (start - 1, start + PAGE):
            with pytest.raises(ValueError, match="outside memory"):
                memory.read(outside, 1)


def test_the_largest_table_is_accepted_and_one_more_is_not(file: int) -> None:
    regions = [region(file, n * 2 * PAGE, 1, offset=n % 64 * PAGE) for n in range(MAX_REGIONS + 1)]
    assert MAX_REGIONS == 509
    memory = GuestMemory(regions[:MAX_REGIONS])
    for n in (0, 1, 254, 255, 507, 508):
        assert memory.read(n * 2 * PAGE, 1) == bytes([n % 64 + 1])
    with pytest.raises(ValueError, match="510 memory regions"):
        GuestMemory(regions)


def test_memory_without_regions_holds_nothing() -> None:
    memory = GuestMemory()
    assert memory.regions == ()
    assert not memory.broken
    for addr in (0, 1, TOP - 1):
        with pytest.raises(ValueError, match="outside memory"):
            memory.read(addr, 1)
        with pytest.raises(ValueError, match="outside memory"):
            memory.user_to_guest(addr, 1)


def test_a_range_must_fit_in_its_region(file: int) -> None:
    memory = GuestMemory([region(file, 0x10000, 2), region(file, 0x20000, 1)])
    for addr, size in (
        (0x10000, 2 * PAGE + 1),
        (0x11FFF, 2),
        (0x10000, TOP - 0x10000),
        (0x11FFF, TOP - 1),
        (0xFFFF, 2),
    ):
        with pytest.raises(ValueError, match="outside memory"):
            memory.read(addr, size)
        with pytest.raises(ValueError, match="outside memory"):
            memory.user_to_guest(addr, size)


def test_a_region_may_end_at_the_last_address(file: int) -> None:
    memory = GuestMemory([region(file, TOP - PAGE, 1)])
    assert memory.read(TOP - 1, 1) == b"\1"
    memory.write(TOP - 2, b"ab")
    assert memory.read(TOP - 2, 2) == b"ab"
    assert memory.user_to_guest(TOP - 1, 1) == TOP - 1


@pytest.mark.parametrize("name", ["guest", "user"])
def test_a_region_that_wraps_around_is_refused(file: int, name: str) -> None:
    addresses = {"guest": PAGE, "user": PAGE, name: TOP - PAGE}
    with pytest.raises(ValueError, match=f"{name} address .* wraps"):
        MemoryRegion(addresses["guest"], 2 * PAGE, addresses["user"], file, 0)


@pytest.mark.parametrize(
    ("size", "offset"),
    [
        (65 * PAGE, 0),
        (PAGE, 64 * PAGE),
        (1, 64 * PAGE),
        (TOP - 1, 0),
        (PAGE, TOP - PAGE),
        (TOP - PAGE, PAGE),
        (1 << 62, 0),
    ],
)
def test_a_region_beyond_its_file_is_refused(file: int, size: int, offset: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|overflow"):
        MemoryRegion(0, size, 0, file, offset)


def test_an_empty_region_is_refused(file: int) -> None:
    with pytest.raises(ValueError, match="size 0"):
        MemoryRegion(0, 0, 0, file, 0)


def test_what_is_no_file_cannot_be_mapped() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises((ValueError, OSError)):
            MemoryRegion(0, PAGE, 0, reading, 0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            MemoryRegion(0, PAGE, 0, -1, 0)
    finally:
        os.close(reading)
        os.close(writing)


def test_an_offset_within_a_page_is_allowed(file: int) -> None:
    memory = GuestMemory([MemoryRegion(0x1000, 3000, 0x5000, file, PAGE + 100)])
    assert memory.read(0x1000, 3000) == b"\2" * 3000
    memory.write(0x1000, b"x")
    assert os.pread(file, 1, PAGE + 100) == b"x"


@pytest.mark.parametrize(
    ("first", "second"), [((0, 2), (1, 2)), ((0, 4), (1, 1)), ((3, 1), (3, 1)), ((5, 2), (4, 2))]
)
@pytest.mark.parametrize("name", ["guest", "user"])
def test_overlapping_regions_are_refused(
    file: int, name: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    apart = {"guest": 0, "user": 0, ("user" if name == "guest" else "guest"): 100 * PAGE}
    a = MemoryRegion(first[0] * PAGE, first[1] * PAGE, first[0] * PAGE, file, 0)
    b = MemoryRegion(
        second[0] * PAGE + apart["guest"],
        second[1] * PAGE,
        second[0] * PAGE + apart["user"],
        file,
        0,
    )
    with pytest.raises(ValueError, match="overlap"):
        GuestMemory([a, b])


def test_neighbours_do_not_overlap(file: int) -> None:
    memory = GuestMemory([region(file, 2 * PAGE, 1), region(file, PAGE, 1), region(file, 0, 1)])
    assert [r.guest_addr for r in memory.regions] == [0, PAGE, 2 * PAGE]


# ---- buffers across neighbours, through a ring

NEIGHBOURS = (
    RegionSpec(PAGE, guest_addr=0x10_0000, user_addr=0x9000_0000),
    RegionSpec(2 * PAGE, guest_addr=0x10_1000, user_addr=0x8000_0000),
    RegionSpec(PAGE, guest_addr=0x10_3000, user_addr=0x7000_0000),
    RegionSpec(PAGE, guest_addr=0x10_5000, user_addr=0x6000_0000),
)


@LAYOUTS
@given(data=st.data())
def test_a_buffer_may_cross_neighbours_and_nothing_else(packed: bool, data: st.DataObject) -> None:
    start = data.draw(st.integers(0x10_0000 - 8, 0x10_6000 + 8))
    size = data.draw(st.integers(1, 0x6010))
    inside = any(
        low <= start and start + size <= high
        for low, high in ((0x10_0000, 0x10_4000), (0x10_5000, 0x10_6000))
    )
    with GuestRam((1 << 20,)) as ram, DriverQueue(ram, 4, packed=packed) as driver:
        for spec in NEIGHBOURS:  # added now: the ring itself lies in the first region
            ram.add_region(spec)
        pattern = bytes(range(251)) * 90
        for low, high in ((0x10_0000, 0x10_4000), (0x10_5000, 0x10_6000)):
            ram.write(low, pattern[: high - low])
        queue = make_queue(driver)
        driver.add([(start, size)], [(start, size)])
        driver.publish()
        chain = queue.pop()
        if not inside:
            assert chain is None
            assert queue.broken == "a buffer lies outside guest memory"
            assert queue.in_flight == 0
            return
        assert chain is not None
        assert chain.readable() == ram.read(start, size)
        edges = [a for a in (0x10_1000, 0x10_3000) if start < a < start + size]
        assert len(chain.segments()[0]) == len(edges) + 1
        fresh = bytes(255 - b for b in chain.readable())
        assert chain.write(fresh) == size
        assert ram.read(start, size) == fresh
        queue.push(chain, size)


def test_regions_far_apart_are_found_in_any_order() -> None:
    with GuestRam((1 << 20,)) as big, DriverQueue(big, 4) as driver:
        for _ in range(40):
            big.add_region(PAGE)
        queue = make_queue(driver)
        for n in (40, 1, 20, 20, 39, 2):
            start = big.regions[n].guest_addr
            big.write(start, b"region%02d" % n)
            token = driver.add([(start, 8)], [(big.regions[41 - n].guest_addr, 1)])
            driver.publish()
            chain = queue.pop()
            assert chain is not None
            assert chain.readable() == b"region%02d" % n
            queue.push(chain, 0)
            queue.publish()
            assert driver.pop_used() == (token, 0)


# ---- files that shrink


def test_a_truncated_file_breaks_its_region_and_no_other(file: int) -> None:
    other = os.memfd_create("other", os.MFD_CLOEXEC)
    os.ftruncate(other, 4 * PAGE)
    try:
        shrunk, whole = region(file, 0, 8), region(other, 0x100000, 4)
        memory, alone = GuestMemory([shrunk, whole]), GuestMemory([whole])
        memory.write(0, b"still here")
        os.ftruncate(file, 2 * PAGE)
        assert not memory.broken  # nothing was accessed yet
        assert memory.read(5 * PAGE, 3) == bytes(3)
        assert memory.broken
        assert shrunk.broken
        assert not whole.broken
        assert not alone.broken
        assert memory.read(0, 10) == b"still here"
        memory.write(6 * PAGE, b"y")
        memory.write(0x100000, b"z")
        assert os.pread(other, 1, 0) == b"z"
        assert not whole.broken
    finally:
        os.close(other)


def test_a_new_mapping_in_a_broken_ones_place_is_not_broken(file: int) -> None:
    broken = region(file, 0, 8)
    os.ftruncate(file, PAGE)
    GuestMemory([broken]).read(4 * PAGE, 1)
    assert broken.broken
    del broken
    os.ftruncate(file, 8 * PAGE)
    assert not region(file, 0, 8).broken


def test_only_the_missing_page_is_replaced_when_the_file_reports_large_blocks() -> None:
    """A tmpfs with huge pages reports blocks of 2 MiB and maps at any address all the same."""
    with HugeTmpfs() as path:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, 8 * PAGE)
            if os.fstat(fd).st_blksize == PAGE:
                pytest.skip("the kernel has no transparent huge pages for tmpfs")
            neighbour = mmap.mmap(-1, 4 << 20)
            neighbour[:] = b"n" * len(neighbour)
            memory = GuestMemory([MemoryRegion(0, 8 * PAGE, 0, fd, 0)])
            memory.write(0, b"kept")
            os.ftruncate(fd, PAGE)
            assert memory.read(7 * PAGE, 1) == b"\0"
            if not memory.broken:
                pytest.skip("the kernel kept the huge page whole, so that no access faulted")
            assert memory.read(0, 4) == b"kept"
            memory.write(0, b"more")
            assert os.pread(fd, 4, 0) == b"more"
            assert neighbour[:] == b"n" * len(neighbour)
            del memory
        finally:
            os.close(fd)


class HugeTmpfs:
    """A file name on a tmpfs whose files report blocks of 2 MiB."""

    def __enter__(self) -> str:
        self.folder = tempfile.mkdtemp()
        if os.geteuid() != 0:
            os.rmdir(self.folder)
            pytest.skip("mounting a tmpfs needs root: run the tests as root")
        options = ["mount", "-t", "tmpfs", "-o", "huge=always,size=8m", "tmpfs", self.folder]
        done = subprocess.run(options, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            os.rmdir(self.folder)
            pytest.skip(f"no tmpfs with huge pages can be mounted here: {done.stderr.strip()}")
        return self.folder + "/memory"

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        os.rmdir(self.folder)


@LAYOUTS
def test_a_ring_breaks_when_a_buffer_lies_in_a_truncated_file(packed: bool) -> None:
    with (
        GuestRam((1 << 20,), shared_fd=False) as ram,
        DriverQueue(ram, 4, packed=packed) as driver,
    ):
        extra = ram.add_region(1 << 20)
        queue = make_queue(driver)
        chains = []
        for _ in range(2):
            driver.add([(extra.guest_addr, 64)])
            driver.publish()
            chain = queue.pop()
            assert chain is not None
            chains.append(chain)
        os.ftruncate(extra.fd, 0)
        assert chains[0].readable() == bytes(64)
        queue.push(chains[0], 0)
        queue.push(chains[1], 0)
        queue.publish()
        assert driver.pop_used() is not None  # what was in flight is answered all the same
        driver.add([(ram.regions[0].guest_addr, 64)])
        driver.publish()
        assert queue.pop() is None
        assert queue.broken == "a shared memory file of the front-end was truncated"
        assert queue.in_flight == 0


# ---- the dirty log


class Log:
    """A dirty log and what stands in it."""

    def __init__(self, size: int = 64 * 1024) -> None:
        self.fd = os.memfd_create("log", os.MFD_CLOEXEC)
        self.size = size
        os.ftruncate(self.fd, size + PAGE)
        self.log = DirtyLog(self.fd, size, PAGE)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.fd)

    def take(self) -> set[int]:
        """The numbers of the dirty pages; the log is empty afterwards."""
        bits = os.pread(self.fd, self.size, PAGE)
        os.pwrite(self.fd, bytes(self.size), PAGE)
        return {8 * i + n for i, byte in enumerate(bits) if byte for n in range(8) if byte >> n & 1}


def pages(addr: int, size: int) -> set[int]:
    return set(range(addr // PAGE, (addr + size - 1) // PAGE + 1)) if size else set()


@given(addr=st.integers(0, 40 * PAGE), size=st.integers(0, 5 * PAGE))
def test_the_log_marks_exactly_the_pages_of_a_range(addr: int, size: int) -> None:
    with Log(4) as log:
        log.log.mark(addr, size)
        assert log.take() == {page for page in pages(addr, size) if page < 32}


def test_pages_beyond_the_log_are_forgotten() -> None:
    with Log(2) as log:
        log.log.mark(0, TOP - 1)
        assert log.take() == set(range(16))
        log.log.mark(TOP - 1, 1)
        log.log.mark(15 * PAGE, 9 * PAGE)
        assert log.take() == {15}


def test_a_log_must_lie_in_its_file(file: int) -> None:
    for size, offset in ((0, 0), (65 * PAGE, 0), (PAGE, 64 * PAGE), (TOP - 1, PAGE)):
        with pytest.raises(ValueError, match=r"size 0|bytes|overflow"):
            DirtyLog(file, size, offset)


LOGGED = [RegionSpec(1 << 20, guest_addr=0x10_0000), RegionSpec(1 << 20, guest_addr=0x40_0000)]


@LAYOUTS
@pytest.mark.parametrize("event_idx", [False, True])
@settings(max_examples=25)
@given(data=st.data())
def test_every_page_that_changed_is_in_the_log(
    packed: bool, event_idx: bool, data: st.DataObject
) -> None:
    """The bits are those of the pages written, and of no page the device had no reason to write."""
    size = data.draw(st.sampled_from([1, 2, 8, 1024]))
    with (
        Log() as log,
        GuestRam(LOGGED) as ram,
        DriverQueue(ram, size, packed=packed, event_idx=event_idx) as driver,
    ):
        layout = driver.layout
        queue = make_queue(driver, log=log.log, log_addr=layout.used)
        for _ in range(data.draw(st.integers(1, 5))):
            lengths = data.draw(st.lists(st.integers(1, 3 * PAGE), min_size=1, max_size=3))
            lengths = lengths[:size]
            target = [
                (ram.alloc(n, align=data.draw(st.sampled_from([1, PAGE]))), n) for n in lengths
            ]
            driver.add((), target)
            driver.publish()
            before = ram.read(0x10_0000, 1 << 20) + ram.read(0x40_0000, 1 << 20)
            if data.draw(st.booleans()):
                queue.disable_notification()
            chain = queue.pop()
            assert chain is not None
            written = chain.write(b"\xee" * data.draw(st.integers(0, sum(lengths))))
            queue.push(chain, written)
            queue.publish()
            queue.enable_notification()
            after = ram.read(0x10_0000, 1 << 20) + ram.read(0x40_0000, 1 << 20)
            changed = {
                (0x100 if n < 256 else 0x300) + n
                for n in range(512)
                if before[n * PAGE : (n + 1) * PAGE] != after[n * PAGE : (n + 1) * PAGE]
            }
            ring = 16 * size if packed else 6 + 8 * size
            allowed = pages(layout.desc if packed else layout.used, ring)
            if packed:
                allowed |= pages(layout.used, 4)
            for addr, n in target:
                allowed |= pages(addr, n)
            marked = log.take()
            assert changed <= marked
            assert marked <= allowed
            assert driver.pop_used() is not None
            for addr, _ in target:
                ram.free(addr)


def test_publishing_marks_a_packed_ring_after_the_store() -> None:
    """The front-end takes the bits between push and publish: the page is sent too early then."""
    with Log() as log, GuestRam(LOGGED) as ram, DriverQueue(ram, 4, packed=True) as driver:
        queue = make_queue(driver, log=log.log)
        driver.add((), [(ram.alloc(8), 8)])
        driver.publish()
        chain = queue.pop()
        assert chain is not None
        queue.push(chain, 8)
        assert pages(driver.layout.desc, 16) <= log.take()
        queue.publish()
        assert pages(driver.layout.desc, 16) <= log.take()


def test_the_used_ring_is_logged_at_the_address_that_the_front_end_gave() -> None:
    with Log() as log, GuestRam(LOGGED) as ram, DriverQueue(ram, 4) as driver:
        queue = make_queue(driver, log=log.log, log_addr=0x7_0000)
        driver.add([(ram.alloc(8), 8)])
        driver.publish()
        chain = queue.pop()
        assert chain is not None
        queue.push(chain, 0)
        queue.publish()
        assert log.take() == {0x70}
