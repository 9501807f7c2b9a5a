"""Where the three parts of a virtqueue lie in guest memory (virtio 1.3, sections 2.7 and 2.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from vringd.testing.memory import GuestRam


def part_sizes(size: int, *, packed: bool) -> tuple[int, int, int]:
    """Bytes of descriptor area, driver area and device area of a ring with `size` entries.

    Split rings count the event index words at the end of the two index rings, whether or not
    EVENT_IDX will be negotiated (section 2.7, table; 2.8.14.1).
    """
    if packed:
        return 16 * size, 4, 4
    return 16 * size, 6 + 2 * size, 6 + 8 * size


def part_alignments(*, packed: bool) -> tuple[int, int, int]:
    """Least alignment in bytes of descriptor area, driver area and device area."""
    return (16, 4, 4) if packed else (16, 2, 4)


@dataclass(frozen=True)
class RingLayout:
    """Guest and user addresses of a ring's parts.

    In a packed ring `desc` is the descriptor ring, `avail` the driver event suppression area and
    `used` the device event suppression area.
    """

    size: int
    packed: bool
    desc: int
    avail: int
    used: int
    desc_user: int
    avail_user: int
    used_user: int

    @classmethod
    def allocate(
        cls, ram: GuestRam, size: int, *, packed: bool = False, minimal_alignment: bool = True
    ) -> Self:
        """Take a zeroed ring from `ram`, its parts spread over the regions.

        With `minimal_alignment` each part has exactly the alignment that the standard demands;
        else every part starts on a page, as drivers usually do it. Raises ValueError for a size
        that the format does not allow, MemoryError when `ram` is full.
        """
        if not 1 <= size <= 32768 or (not packed and size & (size - 1)):
            rule = "1 to 32768" if packed else "a power of two up to 32768"
            raise ValueError(f"queue size {size} is not {rule}")
        sizes = part_sizes(size, packed=packed)
        aligns = part_alignments(packed=packed) if minimal_alignment else (4096,) * 3
        regions = ram.regions
        parts: list[int] = []
        try:
            for i, (count, align) in enumerate(zip(sizes, aligns, strict=True)):
                addr = ram.alloc(
                    count,
                    align,
                    region=regions[i % len(regions)],
                    minimal_alignment=minimal_alignment,
                )
                parts.append(addr)
                ram.fill(addr, count, 0)
        except MemoryError:
            for addr in parts:
                ram.free(addr)
            raise
        desc, avail, used = parts
        users = [ram.user_addr(addr) for addr in parts]
        return cls(size, packed, desc, avail, used, *users)

    def free(self, ram: GuestRam) -> None:
        """Give the three parts back to `ram`."""
        for addr in (self.desc, self.avail, self.used):
            ram.free(addr)
