"""From the front-end's descriptions of its memory to `GuestMemory`.

Every function returns a new `GuestMemory` and leaves the old one as it is, so that a table that
cannot be mapped changes nothing. Specification: "Memory access", SET_MEM_TABLE, ADD_MEM_REG,
REM_MEM_REG.
"""

from __future__ import annotations

from collections.abc import Sequence

from vringd.core.memory import MAX_REGIONS, GuestMemory, MemoryRegion
from vringd.vhost_user.errors import RefusedError
from vringd.vhost_user.wire import LOG_PAGE, RegionDescription


def map_table(regions: Sequence[RegionDescription], fds: Sequence[int]) -> GuestMemory:
    """Memory of exactly these regions, `fds[i]` being the file of `regions[i]`.

    Raises RefusedError when one cannot be mapped or two overlap.
    """
    return _assemble([_map(region, fd) for region, fd in zip(regions, fds, strict=True)])


def with_region(memory: GuestMemory, region: RegionDescription, fd: int) -> GuestMemory:
    """Memory with one region more. Raises RefusedError when that cannot be."""
    if len(memory.regions) >= MAX_REGIONS:
        raise RefusedError(f"there are {MAX_REGIONS} memory regions already")
    return _assemble([*memory.regions, _map(region, fd)])


def without_region(memory: GuestMemory, region: RegionDescription) -> GuestMemory:
    """Memory without the region of this guest address, user address and size.

    Raises RefusedError when there is none.
    """
    kept = [mapped for mapped in memory.regions if not _same(mapped, region)]
    if len(kept) == len(memory.regions):
        raise RefusedError(
            f"there is no memory region at guest address {region.guest_addr:#x} with user "
            f"address {region.user_addr:#x} and size {region.size:#x}"
        )
    return _assemble(kept)


def log_size(memory: GuestMemory) -> int:
    """Bytes of a dirty log that has a bit for every page of this memory."""
    end = max((region.guest_addr + region.size for region in memory.regions), default=0)
    return -(-end // (LOG_PAGE * 8))


def _same(mapped: MemoryRegion, region: RegionDescription) -> bool:
    return (mapped.guest_addr, mapped.user_addr, mapped.size) == (
        region.guest_addr,
        region.user_addr,
        region.size,
    )


def _map(region: RegionDescription, fd: int) -> MemoryRegion:
    try:
        return MemoryRegion(
            region.guest_addr, region.size, region.user_addr, fd, region.mmap_offset
        )
    except (ValueError, OverflowError, OSError) as error:
        raise RefusedError(
            f"memory region at guest address {region.guest_addr:#x}: {error}"
        ) from error


def _assemble(regions: list[MemoryRegion]) -> GuestMemory:
    try:
        return GuestMemory(regions)
    except ValueError as error:
        raise RefusedError(str(error)) from error
