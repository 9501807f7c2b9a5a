"""Guest memory of a fake virtual machine: memfd-backed regions with an allocator.

A back-end sees each region under four different numbers: its guest address, the user address
that the front-end claims, the offset in the file and the address of its own mapping. The defaults
make all of them differ and put the regions in the opposite order in the user address space, so
that code which mixes up two of them, or which assumes that regions are sorted, does not work by
luck. User addresses are arbitrary labels: nothing is mapped there.

Every allocation is followed by a red zone; `GuestRam.free` and `GuestRam.check` raise
`GuestRamError` when a device wrote into it.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right, insort
from collections.abc import Iterator, KeysView, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PAGE = 4096
RED_ZONE = 16
RED_BYTE = 0xFD

# Above 4 GiB, so that a truncation to 32 bits shows; apart, so that the regions never touch.
_FIRST_GUEST_ADDR = 0x1_4000_0000
_GUEST_STEP = 0x10_0000_0000
_FIRST_USER_ADDR = 0x7A5C_0000_0000
_USER_STEP = 0x20_0000_0000
_FIRST_OFFSET = 3 * PAGE


class GuestRamError(Exception):
    """Guest memory was corrupted, or the fake was asked for something that it does not have."""


@dataclass(frozen=True)
class RegionSpec:
    """A region to be created. `None` leaves the choice to `GuestRam`.

    `size` and `mmap_offset` are bytes and multiples of 4096; `guest_addr` and `user_addr` are
    byte addresses.
    """

    size: int
    guest_addr: int | None = None
    user_addr: int | None = None
    mmap_offset: int | None = None


@dataclass(frozen=True, eq=False)
class RamRegion:
    """One region: what a front-end sends in its memory table, and this process's own mapping."""

    guest_addr: int
    size: int
    user_addr: int
    fd: int
    mmap_offset: int
    map: mmap.mmap = field(repr=False)

    @property
    def end(self) -> int:
        """The first guest address behind the region."""
        return self.guest_addr + self.size


class _Arena:
    """First-fit allocator over the addresses [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        self._free: list[tuple[int, int]] = [(start, end)]
        self._used: dict[int, tuple[int, int]] = {}  # address -> extent with padding and red zone

    def alloc(self, size: int, align: int, minimal: bool) -> int | None:
        for i, (start, end) in enumerate(self._free):
            addr = (start + align - 1) // align * align
            if minimal and addr // align % 2 == 0:
                addr += align
            extent_end = addr + size + RED_ZONE
            if extent_end <= end:
                self._free[i : i + 1] = [(extent_end, end)] if extent_end < end else []
                self._used[addr] = (start, extent_end)
                return addr
        return None

    def free(self, addr: int) -> None:
        start, end = self._used.pop(addr)
        at = bisect_right(self._free, (start, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at > 0 and self._free[at - 1][1] == start:
            start = self._free.pop(at - 1)[0]
        insort(self._free, (start, end))

    def red_zone(self, addr: int) -> int:
        return self._used[addr][1] - RED_ZONE

    def allocations(self) -> KeysView[int]:
        return self._used.keys()


class GuestRam:
    """The memory of one fake guest.

    `regions` are sizes in bytes or `RegionSpec`s. All regions lie in one memfd, or with
    `shared_fd=False` in one each. `populate` touches every page at once, so that page faults do
    not count into a measurement.

    Raises ValueError for sizes or offsets that are no multiples of 4096 and for overlapping
    guest or user addresses; OSError when memory is short.
    """

    def __init__(
        self,
        regions: Sequence[int | RegionSpec] = (16 << 20,),
        *,
        shared_fd: bool = True,
        populate: bool = False,
    ) -> None:
        self._shared_fd = shared_fd
        self._populate = populate
        self._fds: set[int] = set()
        self._regions: list[RamRegion] = []
        self._arenas: dict[RamRegion, _Arena] = {}
        self._serial = 0
        self._next_offset = _FIRST_OFFSET
        self._memfd: int | None = None
        try:
            for spec in regions:
                self.add_region(spec)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap everything and close the files. BufferError while a `DriverQueue` is open."""
        for region in self._regions:
            region.map.close()
        self._regions.clear()
        self._arenas.clear()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._memfd = None

    @property
    def regions(self) -> tuple[RamRegion, ...]:
        """The regions in the order of their creation."""
        return tuple(self._regions)

    def add_region(self, spec: int | RegionSpec) -> RamRegion:
        """Hot-plug a region. ValueError: bad size, or an overlap; see the class."""
        if isinstance(spec, int):
            spec = RegionSpec(spec)
        if spec.size <= 0 or spec.size % PAGE:
            raise ValueError(f"region size {spec.size} is not a positive multiple of {PAGE}")
        n = self._serial
        guest = _FIRST_GUEST_ADDR + n * _GUEST_STEP if spec.guest_addr is None else spec.guest_addr
        user = _FIRST_USER_ADDR - n * _USER_STEP if spec.user_addr is None else spec.user_addr
        for other in self._regions:
            for what, a, b in (("guest", guest, other.guest_addr), ("user", user, other.user_addr)):
                if a < b + other.size and b < a + spec.size:
                    raise ValueError(f"{what} addresses of the new region overlap those at {b:#x}")
        offset = self._next_offset if spec.mmap_offset is None else spec.mmap_offset
        if offset < 0 or offset % PAGE:
            raise ValueError(f"mmap offset {offset} is not a multiple of {PAGE}")
        fd, created = self._file_for_new_region()
        try:
            os.ftruncate(fd, max(offset + spec.size, os.fstat(fd).st_size))
            flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if self._populate else 0)
            mapping = mmap.mmap(fd, spec.size, flags=flags, offset=offset)
        except BaseException:
            if created:
                self._forget_file(fd)
            raise
        region = RamRegion(guest, spec.size, user, fd, offset, mapping)
        self._serial += 1
        # A hole of one page between regions: an offset mistake reads zeros, not a neighbour.
        self._next_offset = max(self._next_offset, offset + spec.size + PAGE)
        self._regions.append(region)
        self._arenas[region] = _Arena(guest, guest + spec.size)
        return region

    def remove_region(self, region: RamRegion) -> None:
        """Unplug a region and forget its allocations. BufferError if a `DriverQueue` uses it."""
        region.map.close()
        self._regions.remove(region)
        del self._arenas[region]
        if not self._shared_fd:
            self._forget_file(region.fd)

    def alloc(
        self,
        size: int,
        align: int = 1,
        *,
        region: RamRegion | None = None,
        minimal_alignment: bool = False,
    ) -> int:
        """Allocate `size` bytes inside one region; returns the guest address.

        The address is a multiple of `align`, and with `minimal_alignment` of nothing larger
        (no multiple of 2 * align). Contents are whatever they were. Raises MemoryError.
        """
        if size < 0 or align < 1:
            raise ValueError(f"cannot allocate {size} bytes aligned to {align}")
        for candidate in (region,) if region is not None else self.regions:
            addr = self._arenas[candidate].alloc(size, align, minimal_alignment)
            if addr is not None:
                self.write(addr + size, bytes([RED_BYTE]) * RED_ZONE)
                return addr
        raise MemoryError(f"guest memory has no {size} free bytes in a row")

    def free(self, guest_addr: int) -> None:
        """Give back an allocation. ValueError if it is none, GuestRamError if it was overrun."""
        arena = self._arena_of(guest_addr)
        self._check_red_zone(arena, guest_addr)
        arena.free(guest_addr)

    def check(self) -> None:
        """Raise GuestRamError if the red zone of any allocation was overwritten."""
        for arena in self._arenas.values():
            for addr in arena.allocations():
                self._check_red_zone(arena, addr)

    def read(self, guest_addr: int, size: int) -> bytes:
        """Copy out `size` bytes; regions with touching guest addresses count as one.

        Raises ValueError outside guest memory.
        """
        parts = [
            region.map[at : at + count] for region, at, count in self._extents(guest_addr, size)
        ]
        return b"".join(parts)

    def write(self, guest_addr: int, data: bytes | bytearray | memoryview) -> None:
        """Copy in `data`. Raises ValueError outside guest memory (nothing is written then)."""
        view = memoryview(data).cast("B")
        for region, at, count in list(self._extents(guest_addr, len(view))):
            region.map[at : at + count] = view[:count]
            view = view[count:]

    def fill(self, guest_addr: int, size: int, byte: int) -> None:
        """Set `size` bytes to `byte`. Raises ValueError outside guest memory."""
        self.write(guest_addr, bytes([byte]) * size)

    def find_region(self, guest_addr: int, size: int = 1) -> RamRegion:
        """The region that holds all of [guest_addr, guest_addr + size). ValueError if none."""
        for region in self._regions:
            if region.guest_addr <= guest_addr and guest_addr + size <= region.end:
                return region
        raise ValueError(f"no region holds {size} bytes at guest address {guest_addr:#x}")

    def user_addr(self, guest_addr: int) -> int:
        """Translate a guest address into the front-end's user address. ValueError outside."""
        region = self.find_region(guest_addr)
        return region.user_addr + guest_addr - region.guest_addr

    def guest_addr(self, user_addr: int) -> int:
        """Translate a user address into a guest address. ValueError outside."""
        for region in self._regions:
            if region.user_addr <= user_addr < region.user_addr + region.size:
                return region.guest_addr + user_addr - region.user_addr
        raise ValueError(f"no region holds user address {user_addr:#x}")

    def _extents(self, guest_addr: int, size: int) -> Iterator[tuple[RamRegion, int, int]]:
        while size > 0:
            region = self.find_region(guest_addr)
            count = min(size, region.end - guest_addr)
            yield region, guest_addr - region.guest_addr, count
            guest_addr += count
            size -= count

    def _arena_of(self, guest_addr: int) -> _Arena:
        arena = self._arenas[self.find_region(guest_addr)]
        if guest_addr not in arena.allocations():
            raise ValueError(f"nothing is allocated at guest address {guest_addr:#x}")
        return arena

    def _check_red_zone(self, arena: _Arena, guest_addr: int) -> None:
        zone = arena.red_zone(guest_addr)
        if self.read(zone, RED_ZONE) != bytes([RED_BYTE]) * RED_ZONE:
            raise GuestRamError(
                f"something wrote behind the {zone - guest_addr} bytes allocated at guest address "
                f"{guest_addr:#x}"
            )

    def _file_for_new_region(self) -> tuple[int, bool]:
        if self._memfd is not None and self._shared_fd:
            return self._memfd, False
        fd = os.memfd_create("guest-ram", os.MFD_CLOEXEC)
        self._fds.add(fd)
        self._memfd = fd
        return fd, True

    def _forget_file(self, fd: int) -> None:
        self._fds.discard(fd)
        os.close(fd)
        if self._memfd == fd:
            self._memfd = None
