# The buffer, shared with the front-end, that remembers which requests are in flight.
# Layout: vhost-user specification, "Inflight I/O tracking". All fields are native-endian.

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from vringd.core.memory cimport FileMapping


cdef enum:
    INFLIGHT_VERSION = 1


cdef struct DescStateSplit:
    uint8_t inflight
    uint8_t padding[5]
    uint16_t next
    uint64_t counter


cdef struct InflightSplit:
    uint64_t features
    uint16_t version
    uint16_t desc_num
    uint16_t last_batch_head
    uint16_t used_idx
    # DescStateSplit desc[desc_num] follows


cdef struct DescStatePacked:
    uint8_t inflight
    uint8_t padding
    uint16_t next
    uint16_t last
    uint16_t num
    uint64_t counter
    uint16_t id
    uint16_t flags
    uint32_t len
    uint64_t addr


cdef struct InflightPacked:
    uint64_t features
    uint16_t version
    uint16_t desc_num
    uint16_t free_head
    uint16_t old_free_head
    uint16_t used_idx
    uint16_t old_used_idx
    uint8_t used_wrap_counter
    uint8_t old_used_wrap_counter
    uint8_t padding[7]
    # DescStatePacked desc[desc_num] follows, at the next multiple of 8


cdef class InflightBuffer:
    cdef readonly int fd
    cdef readonly uint64_t mmap_size, mmap_offset
    cdef readonly int num_queues, queue_size
    cdef readonly bint packed
    cdef FileMapping mapping
    cdef uint64_t stride
    cdef int map_buffer(self) except -1
    cdef void *region(self, int index) noexcept nogil


cdef inline DescStateSplit *split_states(InflightSplit *region) noexcept nogil:
    return <DescStateSplit *> (<uint8_t *> region + sizeof(InflightSplit))


cdef inline DescStatePacked *packed_states(InflightPacked *region) noexcept nogil:
    # sizeof(InflightPacked) is 32: 29 bytes of fields, padded to the alignment of features.
    return <DescStatePacked *> (<uint8_t *> region + sizeof(InflightPacked))
