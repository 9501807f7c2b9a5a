# Guest memory as this process sees it: address translation with the only range checks there are.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.core.sys cimport iovec, vr_load_relaxed_u32, vr_or_relaxed_u8

cdef enum:
    LOG_PAGE_SHIFT = 12         # the migration bitmap has one bit per 4096 bytes (VHOST_LOG_PAGE)


cdef struct Region:
    uint64_t guest_addr
    uint64_t size           # bytes; guest_addr + size does not wrap (checked when mapped)
    uint64_t user_addr      # address of the region in the front-end, for ring addresses
    uint8_t *host           # address of the region here
    uint32_t *broken        # not 0 once an access met a truncated file


cdef struct MemoryMap:
    uint32_t count
    Region *regions         # sorted by guest_addr; never fewer than one (an empty one: size 0)


cdef struct DirtyBitmap:
    uint8_t *bits
    uint64_t pages          # bits in the bitmap


cdef struct FileMapping:
    uint8_t *base           # what munmap needs
    size_t length
    uint8_t *start          # what was asked for
    int slot                # in the SIGBUS table, -1: none
    uint32_t *broken


cdef class MemoryRegion:
    cdef readonly uint64_t guest_addr, size, user_addr, mmap_offset
    cdef FileMapping mapping


cdef class GuestMemory:
    cdef readonly tuple regions
    cdef MemoryMap map


cdef class DirtyLog:
    cdef DirtyBitmap bitmap
    cdef FileMapping mapping


# Map a front-end's file, known to the SIGBUS handler; unmap_file may be called on a zeroed struct.
cdef int map_file(FileMapping *mapping, int fd, uint64_t offset, uint64_t size) except -1
cdef void unmap_file(FileMapping *mapping) noexcept

# Number of SIGBUS faults met so far in mappings of this process: compare with an older value.
cdef uint32_t *fault_count() noexcept nogil

cdef Region *find_region_slow(const MemoryMap *m, uint64_t addr, uint32_t *hint) noexcept nogil
cdef int map_iovec_slow(const MemoryMap *m, uint64_t addr, uint64_t size, uint32_t *hint,
                        iovec *iov, int room) noexcept nogil
cdef uint8_t *translate_user(const MemoryMap *m, uint64_t user_addr, uint64_t size,
                             uint64_t *guest_addr) noexcept nogil
cdef bint map_broken(const MemoryMap *m) noexcept nogil
cdef bint guest_address(const MemoryMap *m, const uint8_t *host,
                        uint64_t *guest_addr) noexcept nogil
cdef void mark_dirty(DirtyBitmap *log, uint64_t guest_addr, uint64_t size) noexcept nogil
cdef void mark_dirty_host(DirtyBitmap *log, const MemoryMap *m, const uint8_t *host,
                          uint64_t size) noexcept nogil


cdef inline uint8_t *translate(const MemoryMap *m, uint64_t addr, uint64_t size,
                               uint32_t *hint) noexcept nogil:
    """Our address of [addr, addr + size), or NULL unless one region holds all of it.

    hint is the region of the last hit; callers keep one for each kind of address.
    """
    cdef Region *region = &m.regions[hint[0]]
    # An address below the region wraps to a huge offset, so one comparison checks both ends.
    cdef uint64_t offset = addr - region.guest_addr
    if offset >= region.size:
        region = find_region_slow(m, addr, hint)
        if region == NULL:
            return NULL
        offset = addr - region.guest_addr
    if size > region.size - offset:     # cannot wrap: offset < region.size
        return NULL
    return region.host + offset


cdef inline int map_iovec(const MemoryMap *m, uint64_t addr, uint64_t size, uint32_t *hint,
                          iovec *iov, int room) noexcept nogil:
    """Describe [addr, addr + size) by iov[0:n]; n, or -1 outside memory, or -2 if n > room.

    A buffer may cross from one region into the next one when they are neighbours.
    """
    cdef Region *region = &m.regions[hint[0]]
    cdef uint64_t offset = addr - region.guest_addr
    if offset < region.size and size <= region.size - offset and room > 0:
        iov.iov_base = region.host + offset
        iov.iov_len = size
        return 1
    return map_iovec_slow(m, addr, size, hint, iov, room)
