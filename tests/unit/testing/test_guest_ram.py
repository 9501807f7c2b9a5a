"""GuestRam: four different address spaces, translation, allocation, red zones."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vringd.testing.driver import DriverQueue
from vringd.testing.memory import PAGE, GuestRam, GuestRamError, RegionSpec


@pytest.fixture
def ram() -> Iterator[GuestRam]:
    with GuestRam((64 * PAGE, 16 * PAGE)) as ram:
        yield ram


def test_every_address_of_a_region_differs_from_the_others(ram: GuestRam) -> None:
    for region in ram.regions:
        numbers = {region.guest_addr, region.user_addr, region.mmap_offset, 0}
        assert len(numbers) == 4
        assert region.guest_addr > 2**32
    first, second = ram.regions
    assert first.guest_addr < second.guest_addr
    assert first.user_addr > second.user_addr


def test_another_mapping_of_the_file_sees_what_was_written(ram: GuestRam) -> None:
    for region in ram.regions:
        ram.write(region.guest_addr + 5, b"hello")
        with mmap.mmap(region.fd, region.size, offset=region.mmap_offset) as other:
            assert other[5:10] == b"hello"
            other[5:10] = b"world"
        assert ram.read(region.guest_addr + 5, 5) == b"world"


def test_the_file_has_holes_around_the_regions(ram: GuestRam) -> None:
    for region in ram.regions:
        ram.fill(region.guest_addr, region.size, 0xFF)
        assert os.pread(region.fd, PAGE, region.mmap_offset - PAGE) == bytes(PAGE)
        assert os.pread(region.fd, PAGE, region.mmap_offset + region.size) in (bytes(PAGE), b"")


def test_separate_files_on_request() -> None:
    with GuestRam((PAGE, PAGE), shared_fd=False) as ram:
        assert len({region.fd for region in ram.regions}) == 2


def test_user_addresses_translate_both_ways(ram: GuestRam) -> None:
    region = ram.regions[1]
    assert ram.user_addr(region.guest_addr + 7) == region.user_addr + 7
    assert ram.guest_addr(region.user_addr + 7) == region.guest_addr + 7
    with pytest.raises(ValueError, match="no region"):
        ram.guest_addr(region.user_addr + region.size)
    with pytest.raises(ValueError, match="no region"):
        ram.user_addr(region.guest_addr - 1)


def test_touching_regions_read_and_write_as_one() -> None:
    specs = (
        RegionSpec(PAGE, guest_addr=0x10000, user_addr=0x900000),
        RegionSpec(PAGE, guest_addr=0x10000 + PAGE, user_addr=0x100000),
    )
    with GuestRam(specs) as ram:
        ram.write(0x10000 + PAGE - 3, b"abcdef")
        assert ram.regions[0].map[-3:] == b"abc"
        assert ram.regions[1].map[:3] == b"def"
        assert ram.read(0x10000 + PAGE - 3, 6) == b"abcdef"
        with pytest.raises(ValueError, match="no region holds"):
            ram.find_region(0x10000 + PAGE - 3, 6)


def test_a_write_that_leaves_memory_changes_nothing(ram: GuestRam) -> None:
    end = ram.regions[0].end
    with pytest.raises(ValueError, match="no region"):
        ram.write(end - 2, b"abc")
    assert ram.read(end - 2, 2) == b"\0\0"


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((100,), "multiple"),
        ((0,), "multiple"),
        ((RegionSpec(PAGE, mmap_offset=5),), "mmap offset"),
        ((RegionSpec(PAGE, guest_addr=0), RegionSpec(PAGE, guest_addr=PAGE - 1)), "guest addr"),
        ((RegionSpec(PAGE, user_addr=0), RegionSpec(PAGE, user_addr=0)), "user addr"),
    ],
)
def test_impossible_regions_are_refused(specs: tuple[int | RegionSpec, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GuestRam(specs)


def test_regions_come_and_go(ram: GuestRam) -> None:
    region = ram.add_region(PAGE)
    assert region in ram.regions
    addr = ram.alloc(100, region=region)
    assert region.guest_addr <= addr < region.end
    ram.remove_region(region)
    assert region not in ram.regions
    with pytest.raises(ValueError, match="no region"):
        ram.read(addr, 1)


def test_closing_under_an_open_queue_is_refused(ram: GuestRam) -> None:
    with DriverQueue(ram, 4), pytest.raises(BufferError):
        ram.close()


def test_close_leaves_no_descriptors_behind() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for shared in (True, False):
        ram = GuestRam((PAGE, PAGE), shared_fd=shared)
        with DriverQueue(ram, 2):
            assert len(os.listdir("/proc/self/fd")) > len(before)
        ram.remove_region(ram.regions[1])
        ram.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_minimal_alignment_is_no_more_than_asked(ram: GuestRam) -> None:
    for align in (1, 2, 4, 16, 64):
        addr = ram.alloc(10, align, minimal_alignment=True)
        assert addr % align == 0
        assert addr % (2 * align) != 0


def test_allocation_fails_when_memory_is_full(ram: GuestRam) -> None:
    with pytest.raises(MemoryError, match="no 262144 free bytes"):
        ram.alloc(64 * PAGE)


def test_an_overrun_is_found_by_check_and_by_free(ram: GuestRam) -> None:
    addr = ram.alloc(32)
    ram.check()
    ram.write(addr, bytes(33))
    with pytest.raises(GuestRamError, match="behind the 32 bytes"):
        ram.check()
    with pytest.raises(GuestRamError, match="behind the 32 bytes"):
        ram.free(addr)


def test_freeing_what_is_not_allocated_is_refused(ram: GuestRam) -> None:
    addr = ram.alloc(32)
    ram.free(addr)
    with pytest.raises(ValueError, match="nothing is allocated"):
        ram.free(addr)


@given(
    st.lists(
        st.tuples(st.integers(0, 700), st.sampled_from([1, 2, 16, 512]), st.integers(0, 5)),
        max_size=60,
    )
)
def test_allocations_are_disjoint_and_all_memory_comes_back(
    steps: list[tuple[int, int, int]],
) -> None:
    with GuestRam((16 * PAGE,)) as ram:
        live: list[tuple[int, int]] = []
        for size, align, victim in steps:
            addr = ram.alloc(size, align)
            assert addr % align == 0
            for other, length in live:
                assert addr + size <= other or other + length <= addr
            live.append((addr, size))
            ram.fill(addr, size, 0x11)
            if victim < len(live) // 2:
                ram.free(live.pop(victim)[0])
        ram.check()
        for addr, _ in live:
            ram.free(addr)
        ram.alloc(15 * PAGE)
