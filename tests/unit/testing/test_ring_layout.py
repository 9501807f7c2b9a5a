"""RingLayout: sizes and alignments of the standard, and awkward placement."""

from __future__ import annotations

import pytest

from vringd.testing.memory import PAGE, GuestRam
from vringd.testing.ring_layout import RingLayout, part_sizes


def test_part_sizes_are_those_of_the_standard() -> None:
    assert part_sizes(256, packed=False) == (4096, 6 + 512, 6 + 2048)
    assert part_sizes(7, packed=True) == (112, 4, 4)


@pytest.mark.parametrize(("packed", "aligns"), [(False, (16, 2, 4)), (True, (16, 4, 4))])
def test_parts_have_no_more_than_the_alignment_demanded(
    packed: bool, aligns: tuple[int, int, int]
) -> None:
    with GuestRam((16 * PAGE,)) as ram:
        layout = RingLayout.allocate(ram, 8, packed=packed)
        for addr, align in zip((layout.desc, layout.avail, layout.used), aligns, strict=True):
            assert addr % align == 0
            assert addr % (2 * align) != 0


def test_parts_are_page_aligned_on_request() -> None:
    with GuestRam((16 * PAGE,)) as ram:
        layout = RingLayout.allocate(ram, 8, minimal_alignment=False)
        assert layout.desc % PAGE == layout.avail % PAGE == layout.used % PAGE == 0


def test_parts_spread_over_the_regions_and_know_their_user_addresses() -> None:
    with GuestRam((16 * PAGE,) * 3) as ram:
        layout = RingLayout.allocate(ram, 8)
        regions = [ram.find_region(a) for a in (layout.desc, layout.avail, layout.used)]
        assert len(set(regions)) == 3
        assert layout.desc_user == ram.user_addr(layout.desc)
        assert layout.avail_user == ram.user_addr(layout.avail)
        assert layout.used_user == ram.user_addr(layout.used)


def test_a_ring_is_zeroed_and_given_back() -> None:
    with GuestRam((16 * PAGE,)) as ram:
        region = ram.regions[0]
        ram.fill(region.guest_addr, region.size, 0xEE)
        layout = RingLayout.allocate(ram, 16)
        assert ram.read(layout.desc, 256) == bytes(256)
        assert ram.read(layout.avail, 38) == bytes(38)
        assert ram.read(layout.used, 134) == bytes(134)
        layout.free(ram)
        ram.alloc(region.size - 64)


@pytest.mark.parametrize(
    ("size", "packed"), [(0, False), (12, False), (65536, False), (0, True), (32769, True)]
)
def test_impossible_queue_sizes_are_refused(size: int, packed: bool) -> None:
    with GuestRam() as ram, pytest.raises(ValueError, match="queue size"):
        RingLayout.allocate(ram, size, packed=packed)


@pytest.mark.parametrize(("size", "packed"), [(1, False), (32768, False), (5, True), (32768, True)])
def test_extreme_queue_sizes_are_accepted(size: int, packed: bool) -> None:
    with GuestRam() as ram:
        assert RingLayout.allocate(ram, size, packed=packed).size == size


def test_a_ring_that_does_not_fit_takes_nothing() -> None:
    with GuestRam((16 * PAGE, PAGE, PAGE)) as ram:
        with pytest.raises(MemoryError):
            RingLayout.allocate(ram, 2048)
        for region in ram.regions:
            ram.alloc(region.size - 16, region=region)
