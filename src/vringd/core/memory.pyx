"""Guest memory: mappings of the front-end's files and the translation of guest addresses.

`GuestMemory` is immutable and replaced whole, so that threads of the data plane read it without
a lock. Every address that a guest or a front-end gives is checked here and nowhere else.

A front-end that truncates its memory file makes our next access raise SIGBUS. The handler here
puts an anonymous page where the file's page was, marks the mapping as broken and returns: the
device that uses it fails, the process lives on.
"""

from libc.stdint cimport UINT64_MAX, int64_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from vringd.core.sys cimport (
    MADV_DONTDUMP, MADV_DONTFORK, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED,
    PROT_READ, PROT_WRITE, SA_NODEFER, SA_SIGINFO, SIGBUS, align_up, errno, iovec, madvise, mmap,
    munmap, sigaction, sigaction_t, sigemptyset, siginfo_t, vr_fetch_add_u32, vr_load_acquire_u32,
    vr_load_relaxed_u32, vr_or_relaxed_u8, vr_store_release_u32)

import os

MAX_REGIONS = 509           # what a front-end may give (vhost-user GET_MAX_MEM_SLOTS)

cdef enum:
    MAX_MAPPINGS = 32768


# ---- SIGBUS -------------------------------------------------------------------------------------

cdef struct Mapping:
    uint32_t used           # 1 while start and length are valid
    uint32_t broken
    uint64_t start
    uint64_t length
    uint64_t page_size


cdef Mapping mappings[MAX_MAPPINGS]
cdef uint32_t mappings_high = 0     # slots at or above were never used
cdef uint32_t faults = 0
cdef uint64_t page_bytes = os.sysconf("SC_PAGESIZE")
cdef bint handler_installed = False
cdef sigaction_t previous_action


cdef uint32_t *fault_count() noexcept nogil:
    return &faults


cdef bint replace_page(uint64_t addr, uint64_t size) noexcept nogil:
    return mmap(<void *> <uintptr_t> (addr & ~(size - 1)), size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED


cdef void on_sigbus(int signum, siginfo_t *info, void *context) noexcept nogil:
    # Async-signal-safe: atomics and mmap(2) only. Slots are published with release stores, and
    # a slot cannot be freed while a thread is accessing the mapping that it describes.
    cdef uint64_t addr = <uint64_t> <uintptr_t> info.si_addr
    cdef uint32_t i
    for i in range(vr_load_acquire_u32(&mappings_high)):
        if not vr_load_acquire_u32(&mappings[i].used):
            continue
        if addr - mappings[i].start >= mappings[i].length:
            continue
        # Only the page that faulted: the others may hold data of requests in flight. If the
        # kernel refuses that, the mapping is of huge pages (and start is a multiple of them).
        if (not replace_page(addr, page_bytes)
                and not replace_page(addr, mappings[i].page_size)):
            break
        vr_store_release_u32(&mappings[i].broken, 1)
        vr_fetch_add_u32(&faults, 1)
        return
    # Not ours: give the signal back to whoever had it; the access is repeated and faults again.
    sigaction(SIGBUS, &previous_action, NULL)


cdef int take_slot(void *start, size_t length, uint64_t page_size) except -1:
    """Register a mapping with the SIGBUS handler. Runs under the GIL, hence alone."""
    global mappings_high, handler_installed
    cdef sigaction_t action
    cdef uint32_t i
    if not handler_installed:
        action.sa_sigaction = on_sigbus
        # The handler may run on any thread; NODEFER so that a fault inside it (impossible by
        # construction) would end the process instead of hanging it.
        action.sa_flags = SA_SIGINFO | SA_NODEFER
        sigemptyset(&action.sa_mask)
        if sigaction(SIGBUS, &action, &previous_action) != 0:
            raise OSError(errno, os.strerror(errno))
        handler_installed = True
    for i in range(<uint32_t> MAX_MAPPINGS):
        if not mappings[i].used:
            mappings[i].start = <uint64_t> <uintptr_t> start
            mappings[i].length = length
            mappings[i].page_size = page_size
            mappings[i].broken = 0
            vr_store_release_u32(&mappings[i].used, 1)
            if i >= mappings_high:
                vr_store_release_u32(&mappings_high, i + 1)
            return <int> i
    raise OSError(12, f"more than {MAX_MAPPINGS} memory regions are mapped in this process")


cdef int map_file(FileMapping *mapping, int fd, uint64_t offset, uint64_t size) except -1:
    """Map fd's [offset, offset + size) shared. Raises ValueError or OSError."""
    cdef uint64_t page, start, length
    cdef void *base
    cdef int slot
    status = os.fstat(fd)
    # The block size of a hugetlbfs file is its page size, which offsets must be multiples of.
    page = max(<uint64_t> os.sysconf("SC_PAGESIZE"), <uint64_t> status.st_blksize)
    if page & (page - 1):
        page = os.sysconf("SC_PAGESIZE")
    if offset > UINT64_MAX - size or offset + size > <uint64_t> 1 << 62:
        raise ValueError(f"offset {offset:#x} and size {size:#x} overflow")
    if offset + size > <uint64_t> status.st_size:
        raise ValueError(
            f"the file of the mapping has {status.st_size} bytes, but {offset + size} are to be "
            "mapped")
    start = offset & ~(page - 1)
    length = align_up(offset + size - start, page)  # cannot wrap: below 2^62 + page
    base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, <int64_t> start)
    if base == MAP_FAILED:
        raise OSError(errno, f"cannot map a front-end's memory: {os.strerror(errno)}")
    # A child must not keep guest memory alive; a core dump must not hold the guest's secrets.
    madvise(base, length, MADV_DONTFORK)
    madvise(base, length, MADV_DONTDUMP)
    try:
        slot = take_slot(base, length, page)
    except OSError:
        munmap(base, length)
        raise
    mapping.base = <uint8_t *> base
    mapping.length = length
    mapping.start = mapping.base + (offset - start)
    mapping.slot = slot
    mapping.broken = &mappings[slot].broken
    return 0


cdef void unmap_file(FileMapping *mapping) noexcept:
    if mapping.base != NULL:
        # Unmapped first: a slot that is free again may at once describe another mapping.
        munmap(mapping.base, mapping.length)
        vr_store_release_u32(&mappings[mapping.slot].used, 0)
        mapping.base = NULL


# ---- mappings -----------------------------------------------------------------------------------

cdef class MemoryRegion:
    """One memory region of a front-end, mapped here until the last reference to it goes.

    guest_addr, user_addr: where the guest and the front-end see it; size and mmap_offset in
    bytes; fd is used during the call only.

    Raises ValueError when a range is empty, wraps or lies outside the file; OSError when it
    cannot be mapped. (vhost-user specification, "Memory region description".)
    """

    def __init__(self, guest_addr, size, user_addr, int fd, mmap_offset):
        if size == 0:
            raise ValueError("a memory region of size 0")
        for name, start in (("guest", guest_addr), ("user", user_addr)):
            if start + size > 1 << 64:
                raise ValueError(f"memory region at {name} address {start:#x} wraps around")
        unmap_file(&self.mapping)       # __init__ may be called twice
        map_file(&self.mapping, fd, mmap_offset, size)
        self.guest_addr, self.size = guest_addr, size
        self.user_addr, self.mmap_offset = user_addr, mmap_offset

    def __dealloc__(self):
        unmap_file(&self.mapping)

    @property
    def broken(self):
        """Whether an access met a file that had been truncated."""
        return bool(vr_load_relaxed_u32(self.mapping.broken))

    def __repr__(self):
        return f"<MemoryRegion guest={self.guest_addr:#x} size={self.size:#x}>"


cdef class GuestMemory:
    """An immutable set of regions; the map from guest and user addresses to ours.

    Raises ValueError when regions overlap or are more than MAX_REGIONS.
    """

    def __cinit__(self, *args, **kwargs):
        self.map.count = 0
        self.map.regions = <Region *> calloc(1, sizeof(Region))

    def __init__(self, regions=()):
        cdef MemoryRegion region
        cdef Region *entry
        ordered = sorted(regions, key=lambda r: r.guest_addr)
        if len(ordered) > MAX_REGIONS:
            raise ValueError(f"{len(ordered)} memory regions; at most {MAX_REGIONS} are allowed")
        for name in ("guest_addr", "user_addr"):
            by_name = sorted(ordered, key=lambda r, name=name: getattr(r, name))
            for low, high in zip(by_name, by_name[1:]):
                if getattr(low, name) + low.size > getattr(high, name):
                    raise ValueError(f"memory regions {low!r} and {high!r} overlap")
        if ordered:
            free(self.map.regions)
            self.map.regions = <Region *> calloc(len(ordered), sizeof(Region))
        if self.map.regions == NULL:
            raise MemoryError
        for i, region in enumerate(ordered):
            entry = &self.map.regions[i]
            entry.guest_addr = region.guest_addr
            entry.size = region.size
            entry.user_addr = region.user_addr
            entry.host = region.mapping.start
            entry.broken = region.mapping.broken
        self.map.count = <uint32_t> len(ordered)
        self.regions = tuple(ordered)

    def __dealloc__(self):
        free(self.map.regions)

    @property
    def broken(self):
        """Whether any region is broken."""
        return bool(map_broken(&self.map))

    def read(self, guest_addr, size):
        """Copy size bytes at guest_addr. Raises ValueError outside memory."""
        cdef uint32_t hint = 0
        cdef uint8_t *p = translate(&self.map, guest_addr, size, &hint)
        if p == NULL:
            raise ValueError(f"guest address {guest_addr:#x} + {size} is outside memory")
        return p[:<Py_ssize_t> size]

    def write(self, guest_addr, const uint8_t[::1] data not None):
        """Store data at guest_addr. Raises ValueError outside memory."""
        cdef uint32_t hint = 0
        cdef size_t size = data.shape[0]
        cdef uint8_t *p = translate(&self.map, guest_addr, size, &hint)
        if p == NULL:
            raise ValueError(f"guest address {guest_addr:#x} + {size} is outside memory")
        if size:
            memcpy(p, &data[0], size)

    def user_to_guest(self, user_addr, size):
        """The guest address of a front-end's address. Raises ValueError outside memory."""
        cdef uint64_t guest_addr = 0
        if translate_user(&self.map, user_addr, size, &guest_addr) == NULL:
            raise ValueError(f"user address {user_addr:#x} + {size} is outside memory")
        return guest_addr


cdef class DirtyLog:
    """The bitmap in which a migrating front-end wants to see every page that we write.

    size in bytes; one bit per 4096 bytes of guest-physical memory, bit n of byte m stands for
    page 8 m + n. Raises ValueError or OSError. (vhost-user specification, "Migration".)
    """

    def __init__(self, int fd, size, offset):
        if size == 0:
            raise ValueError("a dirty log of size 0")
        unmap_file(&self.mapping)
        map_file(&self.mapping, fd, offset, size)
        self.bitmap.bits = self.mapping.start
        self.bitmap.pages = <uint64_t> size * 8

    def __dealloc__(self):
        unmap_file(&self.mapping)

    def mark(self, guest_addr, size):
        """Set the bits of [guest_addr, guest_addr + size)."""
        mark_dirty(&self.bitmap, guest_addr, size)


# ---- translation --------------------------------------------------------------------------------

cdef Region *find_region_slow(const MemoryMap *m, uint64_t addr, uint32_t *hint) noexcept nogil:
    """The region that holds addr, by bisection, or NULL; remembers it in hint."""
    cdef uint32_t low = 0, high = m.count, middle
    while low < high:
        middle = (low + high) // 2
        if m.regions[middle].guest_addr <= addr:
            low = middle + 1
        else:
            high = middle
    # low is the number of regions that start at or below addr.
    if low == 0 or addr - m.regions[low - 1].guest_addr >= m.regions[low - 1].size:
        return NULL
    hint[0] = low - 1
    return &m.regions[low - 1]


cdef int map_iovec_slow(const MemoryMap *m, uint64_t addr, uint64_t size, uint32_t *hint,
                        iovec *iov, int room) noexcept nogil:
    cdef Region *region
    cdef uint64_t offset, here
    cdef int n = 0
    if size > UINT64_MAX - addr:
        return -1
    while size:
        region = &m.regions[hint[0]]
        if addr - region.guest_addr >= region.size:
            region = find_region_slow(m, addr, hint)
            if region == NULL:
                return -1
        if n == room:
            return -2
        offset = addr - region.guest_addr
        here = min(size, region.size - offset)
        iov[n].iov_base = region.host + offset
        iov[n].iov_len = here
        n += 1
        addr += here            # cannot wrap: addr + size does not
        size -= here
    return n


cdef uint8_t *translate_user(const MemoryMap *m, uint64_t user_addr, uint64_t size,
                             uint64_t *guest_addr) noexcept nogil:
    """Our address of the front-end's [user_addr, +size), or NULL; its guest address too."""
    cdef uint64_t offset
    cdef uint32_t i
    for i in range(m.count):
        offset = user_addr - m.regions[i].user_addr
        if offset < m.regions[i].size:
            if size > m.regions[i].size - offset:
                return NULL
            guest_addr[0] = m.regions[i].guest_addr + offset
            return m.regions[i].host + offset
    return NULL


cdef bint guest_address(const MemoryMap *m, const uint8_t *host,
                        uint64_t *guest_addr) noexcept nogil:
    """The guest address of one of our addresses; False if no region holds it."""
    cdef uint64_t offset
    cdef uint32_t i
    for i in range(m.count):
        offset = <uint64_t> <uintptr_t> host - <uint64_t> <uintptr_t> m.regions[i].host
        if offset < m.regions[i].size:
            guest_addr[0] = m.regions[i].guest_addr + offset
            return True
    return False


cdef bint map_broken(const MemoryMap *m) noexcept nogil:
    cdef uint32_t i
    for i in range(m.count):
        if vr_load_relaxed_u32(m.regions[i].broken):
            return True
    return False


# ---- migration log ------------------------------------------------------------------------------

cdef void mark_dirty(DirtyBitmap *log, uint64_t guest_addr, uint64_t size) noexcept nogil:
    """Set the bit of each page of [guest_addr, +size); pages beyond the bitmap have none."""
    cdef uint64_t page, last
    if size == 0:
        return
    page = guest_addr >> LOG_PAGE_SHIFT
    last = (guest_addr + size - 1) >> LOG_PAGE_SHIFT
    while page <= last and page < log.pages:
        # Atomic: another IOThread may mark a neighbour, the front-end may take the byte.
        vr_or_relaxed_u8(log.bits + page // 8, <uint8_t> (1 << (page % 8)))
        page += 1


cdef void mark_dirty_host(DirtyBitmap *log, const MemoryMap *m, const uint8_t *host,
                          uint64_t size) noexcept nogil:
    cdef uint64_t guest_addr = 0
    if guest_address(m, host, &guest_addr):
        mark_dirty(log, guest_addr, size)
