from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.core.channel cimport QueueHandler
from vringd.core.vring cimport Request, Vring


cdef class BlkDevice(QueueHandler):
    # Set by the control plane, read by every IOThread: whole words, so no lock.
    cdef uint64_t capacity_bytes
    cdef uint64_t block_mask    # logical block size - 1
    cdef uint32_t writeback_now
    cdef uint32_t ranges        # bits of the range operations that were negotiated
    cdef uint8_t read_only
    cdef uint8_t serial[20]
    # The control plane's own.
    cdef object settings
    cdef bint default_writeback
    cdef uint64_t driver_features
    cdef uint32_t store_id(self, Request *req) noexcept nogil
    cdef void begin_ranges(self, Vring *q, Request *req, uint32_t kind,
                           uint64_t size) noexcept nogil
    cdef void next_range(self, Vring *q, Request *req) noexcept nogil
    cdef void complete_ranges(self, Vring *q, Request *req, int status) noexcept nogil
    cdef void refuse(self, Vring *q, Request *req, int status) noexcept nogil
    cdef void answer(self, Vring *q, Request *req, int status, uint32_t written) noexcept nogil
