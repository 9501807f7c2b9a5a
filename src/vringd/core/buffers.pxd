# Guest memory registered with an IOThread's ring: the kernel then pins its pages once instead of
# once for each request.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.core.memory cimport MemoryMap
from vringd.core.sys cimport io_uring


cdef enum:
    BUFFER_SLOTS = 1024


cdef struct Buffer:
    uint8_t *start              # NULL: the slot is free
    uint64_t size
    uint32_t users              # attached queues whose memory holds it


cdef struct BufferTable:
    Buffer *buffers             # [BUFFER_SLOTS], the index is the kernel's; NULL: not set up
    uint32_t high               # slots at or above are free
    int error                   # why some memory could not be registered, a negative errno


cdef void use_buffers(BufferTable *table, io_uring *ring, const MemoryMap *map) noexcept nogil
cdef void drop_buffers(BufferTable *table, io_uring *ring, const MemoryMap *map) noexcept nogil


cdef inline int buffer_index(const BufferTable *table, const uint8_t *start, uint64_t size,
                             uint32_t *hint) noexcept nogil:
    """The registered buffer that holds [start, +size), or -1; hint: the last one found."""
    cdef const Buffer *buffer
    cdef uint32_t i
    if hint[0] < table.high:
        buffer = &table.buffers[hint[0]]
        if start >= buffer.start and start + size <= buffer.start + buffer.size:
            return <int> hint[0]
    for i in range(table.high):
        buffer = &table.buffers[i]
        if start >= buffer.start and start + size <= buffer.start + buffer.size:
            hint[0] = i
            return <int> i
    return -1
