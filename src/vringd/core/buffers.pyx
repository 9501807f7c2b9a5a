"""Registered buffers of one ring, counted by the queues that use them.

All of it runs in the IOThread: the ring accepts registrations from its own thread only. What
cannot be registered (RLIMIT_MEMLOCK, memory of a kind that cannot be pinned) is served without.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc

from vringd.core.memory cimport MemoryMap
from vringd.core.sys cimport (
    ENOMEM, io_uring, io_uring_register_buffers_sparse, io_uring_register_buffers_update_tag,
    iovec)

cdef enum:
    LARGEST = 1 << 30           # what the kernel takes as one buffer


cdef bint set_up(BufferTable *table, io_uring *ring) noexcept nogil:
    cdef int rc
    if table.buffers != NULL:
        return True
    if table.error != 0:
        return False
    rc = io_uring_register_buffers_sparse(ring, BUFFER_SLOTS)       # 5.19 and later
    if rc == 0:
        table.buffers = <Buffer *> calloc(BUFFER_SLOTS, sizeof(Buffer))
        rc = 0 if table.buffers != NULL else -ENOMEM
    table.error = rc
    return rc == 0


cdef void use_one(BufferTable *table, io_uring *ring, uint8_t *start, uint64_t size) noexcept nogil:
    cdef iovec iov
    cdef unsigned long long tag = 0
    cdef uint32_t i
    cdef uint32_t slot = BUFFER_SLOTS
    cdef int rc
    for i in range(table.high):
        if table.buffers[i].start == start and table.buffers[i].size == size:
            table.buffers[i].users += 1
            return
        if table.buffers[i].start == NULL and slot == BUFFER_SLOTS:
            slot = i
    if slot == BUFFER_SLOTS:
        slot = table.high
    if slot == BUFFER_SLOTS:
        table.error = -ENOMEM
        return
    iov.iov_base, iov.iov_len = start, size
    rc = io_uring_register_buffers_update_tag(ring, slot, &iov, &tag, 1)
    if rc < 0:
        table.error = rc
        return
    table.buffers[slot].start, table.buffers[slot].size = start, size
    table.buffers[slot].users = 1
    table.high = max(table.high, slot + 1)


cdef void drop_one(BufferTable *table, io_uring *ring, uint8_t *start,
                   uint64_t size) noexcept nogil:
    cdef iovec none
    cdef unsigned long long tag = 0
    cdef uint32_t i
    for i in range(table.high):
        if table.buffers[i].start == start and table.buffers[i].size == size:
            table.buffers[i].users -= 1
            if table.buffers[i].users == 0:
                none.iov_base, none.iov_len = NULL, 0
                io_uring_register_buffers_update_tag(ring, i, &none, &tag, 1)
                table.buffers[i].start, table.buffers[i].size = NULL, 0
            return


cdef void use_buffers(BufferTable *table, io_uring *ring, const MemoryMap *map) noexcept nogil:
    """One more queue uses the regions of map."""
    cdef uint64_t offset
    cdef uint32_t i
    if not set_up(table, ring):
        return
    for i in range(map.count):
        offset = 0
        while offset < map.regions[i].size:
            use_one(table, ring, map.regions[i].host + offset,
                    min(<uint64_t> LARGEST, map.regions[i].size - offset))
            offset += LARGEST


cdef void drop_buffers(BufferTable *table, io_uring *ring, const MemoryMap *map) noexcept nogil:
    """One queue less uses the regions of map, which may be unmapped after this."""
    cdef uint64_t offset
    cdef uint32_t i
    if table.buffers == NULL:
        return
    for i in range(map.count):
        offset = 0
        while offset < map.regions[i].size:
            drop_one(table, ring, map.regions[i].host + offset,
                     min(<uint64_t> LARGEST, map.regions[i].size - offset))
            offset += LARGEST
