# What devices do with the segments of a popped chain.

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from vringd.core.sys cimport iovec, vr_likely
from vringd.core.vring cimport Request


cdef inline bint take_front(Request *req, uint32_t *first, void *target,
                            uint32_t size) noexcept nogil:
    """Move size bytes from the front of the readable segments, of which first are used up, to
    target; False if there are not as many."""
    cdef iovec *iov
    cdef uint32_t here
    cdef uint8_t *at = <uint8_t *> target
    if vr_likely(first[0] < req.out_iovs and req.segments[first[0]].iov_len == size):
        memcpy(target, req.segments[first[0]].iov_base, size)   # of a constant size: no call
        first[0] += 1
        return True
    while size:
        if first[0] == req.out_iovs:
            return False
        iov = &req.segments[first[0]]
        here = <uint32_t> min(<uint64_t> size, <uint64_t> iov.iov_len)
        memcpy(at, iov.iov_base, here)
        at += here
        size -= here
        iov.iov_base = <uint8_t *> iov.iov_base + here
        iov.iov_len -= here
        if iov.iov_len == 0:
            first[0] += 1
    return True


cdef inline uint64_t total(const iovec *iov, uint32_t count) noexcept nogil:
    """Bytes of all segments: at most 1026 of less than 4 GiB, so it cannot overflow."""
    cdef uint64_t size = 0
    cdef uint32_t i
    for i in range(count):
        size += iov[i].iov_len
    return size
