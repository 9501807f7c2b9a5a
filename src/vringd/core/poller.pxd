# How an IOThread waits: io_uring, or epoll where io_uring is forbidden.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from vringd.core.sys cimport io_uring, io_uring_get_sqe, io_uring_sqe, io_uring_submit


cdef enum Tag:                  # low bits of an event's tag; the rest is a pointer
    TAG_REQUEST                 # an operation of a Request is complete
    TAG_KICK                    # a Vring's kick eventfd was written
    TAG_WAKE                    # the IOThread's own eventfd was written
    TAG_CHANNEL                 # a Channel's descriptor is readable
    TAG_NONE                    # nobody waits for it
    TAG_MASK = 7


cdef struct Event:
    uint64_t tag
    int32_t result
    uint32_t more               # of a watch: not 0 if it goes on


cdef class Poller:
    cdef io_uring *ring         # NULL: not an io_uring poller
    cdef int open(self) noexcept nogil
    cdef void close(self) noexcept nogil
    cdef int watch(self, int fd, uint64_t tag) noexcept nogil
    cdef int unwatch(self, int fd, uint64_t tag) noexcept nogil
    cdef int wait(self, int64_t timeout_ns, Event *events, int room) noexcept nogil
    cdef bint pending(self) noexcept nogil


cdef class UringPoller(Poller):
    cdef io_uring the_ring
    cdef bint is_open


cdef class EpollPoller(Poller):
    cdef int epoll_fd


cdef inline io_uring_sqe *take_sqe(io_uring *ring) noexcept nogil:
    """A submission entry, or NULL while the kernel takes none (its completion queue is full):
    the caller keeps the request and tries again after the next wait."""
    cdef io_uring_sqe *sqe = io_uring_get_sqe(ring)
    if sqe == NULL:
        io_uring_submit(ring)
        sqe = io_uring_get_sqe(ring)
    return sqe
