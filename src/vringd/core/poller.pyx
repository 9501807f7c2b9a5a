"""Waiting for events: kicks, completions, wake-ups.

A watch is for readability and is never read from: an eventfd that was written wakes it again at
each write (io_uring's multishot poll; epoll's edge trigger), and a watch set on an eventfd that
already has a count fires at once, so that no kick is lost when a queue moves to another thread.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from vringd.core.sys cimport close as close_fd
from vringd.core.sys cimport (
    EAGAIN, EBUSY, EINTR, ENOSYS, EPOLLET, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL,
    ETIME, IORING_CQE_F_MORE, IORING_FEAT_RSRC_TAGS, IORING_SETUP_CLAMP,
    IORING_SETUP_COOP_TASKRUN, IORING_SETUP_CQSIZE, IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_CQ_OVERFLOW,
    IORING_SQ_TASKRUN, POLLIN, __kernel_timespec, epoll_create1, epoll_ctl, epoll_event,
    epoll_pwait2, epoll_wait, errno, io_uring_cq_advance, io_uring_cq_ready, io_uring_cqe,
    io_uring_get_events, io_uring_params, io_uring_peek_batch_cqe, io_uring_prep_cancel64,
    io_uring_prep_poll_multishot, io_uring_queue_exit, io_uring_queue_init_params,
    io_uring_register_ring_fd, io_uring_sq_ready, io_uring_sqe_set_data64,
    io_uring_submit_and_get_events, io_uring_submit_and_wait, io_uring_submit_and_wait_timeout,
    timespec, vr_load_relaxed_u32)

cdef enum:
    SQ_ENTRIES = 1024           # submissions of one turn; more are submitted in between
    CQ_ENTRIES = 8192           # the kernel keeps what does not fit, at a cost


cdef class Poller:
    """One thread's way of waiting. Every method belongs to that thread, `open` to `close`."""

    cdef int open(self) noexcept nogil:
        """0, or a negative errno."""
        return -ENOSYS

    cdef void close(self) noexcept nogil:
        pass

    cdef int watch(self, int fd, uint64_t tag) noexcept nogil:
        """Report (tag, more) whenever fd is written to. 0 or a negative errno."""
        return -ENOSYS

    cdef int unwatch(self, int fd, uint64_t tag) noexcept nogil:
        """End a watch. 1: it is gone; 0: a last event, with more == 0, will say so; negative: try
        again."""
        return -ENOSYS

    cdef int wait(self, int64_t timeout_ns, Event *events, int room) noexcept nogil:
        """Submit what is prepared; take events, waiting for the first at most timeout_ns (0: do
        not wait, negative: for ever). The number of events, or a negative errno."""
        return -ENOSYS

    cdef bint pending(self) noexcept nogil:
        """Whether wait(0) would do anything: no system call is made to find out."""
        return True


cdef class UringPoller(Poller):
    """io_uring: one system call submits, waits and reaps."""

    cdef int open(self) noexcept nogil:
        cdef io_uring_params params
        cdef int rc = 0
        cdef int attempt
        # Oldest kernels last: DEFER_TASKRUN is of 6.1, COOP_TASKRUN of 5.19.
        for attempt in range(3):
            memset(&params, 0, sizeof(params))
            params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP
            params.cq_entries = CQ_ENTRIES
            if attempt == 0:
                params.flags |= (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN
                                 | IORING_SETUP_TASKRUN_FLAG)
            elif attempt == 1:
                params.flags |= IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG
            rc = io_uring_queue_init_params(SQ_ENTRIES, &self.the_ring, &params)
            if rc == 0 and not params.features & IORING_FEAT_RSRC_TAGS:
                # Before 5.13 there is no multishot poll: epoll serves there.
                io_uring_queue_exit(&self.the_ring)
                return -ENOSYS
            if rc == 0:
                self.ring = &self.the_ring
                self.is_open = True
                io_uring_register_ring_fd(self.ring)    # saves a look-up; may fail
                return 0
        return rc

    cdef void close(self) noexcept nogil:
        if self.is_open:
            io_uring_queue_exit(&self.the_ring)
            self.is_open = False
            self.ring = NULL

    cdef int watch(self, int fd, uint64_t tag) noexcept nogil:
        sqe = take_sqe(self.ring)
        if sqe == NULL:
            return -EBUSY
        io_uring_prep_poll_multishot(sqe, fd, POLLIN)
        io_uring_sqe_set_data64(sqe, tag)
        return 0

    cdef int unwatch(self, int fd, uint64_t tag) noexcept nogil:
        sqe = take_sqe(self.ring)
        if sqe == NULL:
            return -EBUSY
        io_uring_prep_cancel64(sqe, tag, 0)
        io_uring_sqe_set_data64(sqe, TAG_NONE)
        return 0

    cdef int wait(self, int64_t timeout_ns, Event *events, int room) noexcept nogil:
        cdef io_uring_cqe *cqes[128]
        cdef io_uring_cqe *first = NULL
        cdef __kernel_timespec ts
        cdef unsigned count, i
        cdef int rc = 0
        if timeout_ns != 0 and io_uring_cq_ready(self.ring):
            timeout_ns = 0
        if timeout_ns == 0:
            if io_uring_sq_ready(self.ring):
                rc = io_uring_submit_and_get_events(self.ring)
            elif (vr_load_relaxed_u32(self.ring.sq.kflags)
                  & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)):
                rc = io_uring_get_events(self.ring)
        elif timeout_ns < 0:
            rc = io_uring_submit_and_wait(self.ring, 1)
        else:
            ts.tv_sec = timeout_ns // 1000000000
            ts.tv_nsec = timeout_ns % 1000000000
            rc = io_uring_submit_and_wait_timeout(self.ring, &first, 1, &ts, NULL)
        if rc < 0 and rc not in (-EINTR, -ETIME, -EBUSY, -EAGAIN):
            return rc
        count = io_uring_peek_batch_cqe(self.ring, cqes, <unsigned> min(room, 128))
        for i in range(count):
            events[i].tag = cqes[i].user_data
            events[i].result = cqes[i].res
            events[i].more = cqes[i].flags & IORING_CQE_F_MORE
        io_uring_cq_advance(self.ring, count)
        return <int> count

    cdef bint pending(self) noexcept nogil:
        # Without TASKRUN_FLAG (before 5.19) completions appear in the queue by themselves.
        return (io_uring_cq_ready(self.ring) or io_uring_sq_ready(self.ring)
                or vr_load_relaxed_u32(self.ring.sq.kflags)
                & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW))


cdef class EpollPoller(Poller):
    """epoll: for containers that forbid io_uring, and under valgrind."""

    cdef int open(self) noexcept nogil:
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        return -errno if self.epoll_fd < 0 else 0

    cdef void close(self) noexcept nogil:
        if self.epoll_fd > 0:
            close_fd(self.epoll_fd)
            self.epoll_fd = -1

    cdef int watch(self, int fd, uint64_t tag) noexcept nogil:
        cdef epoll_event event
        event.events = EPOLLIN | EPOLLET
        event.data.u64 = tag
        return -errno if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0 else 0

    cdef int unwatch(self, int fd, uint64_t tag) noexcept nogil:
        epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
        return 1

    cdef int wait(self, int64_t timeout_ns, Event *events, int room) noexcept nogil:
        cdef epoll_event ready[128]
        cdef timespec ts
        cdef int count, i
        if timeout_ns > 0:
            ts.tv_sec = timeout_ns // 1000000000
            ts.tv_nsec = timeout_ns % 1000000000
            count = epoll_pwait2(self.epoll_fd, ready, min(room, 128), &ts, NULL)
            if count < 0 and errno == ENOSYS:       # before 5.11: milliseconds, rounded up
                count = epoll_wait(self.epoll_fd, ready, min(room, 128),
                                   <int> ((timeout_ns + 999999) // 1000000))
        else:
            count = epoll_wait(self.epoll_fd, ready, min(room, 128), -1 if timeout_ns < 0 else 0)
        if count < 0:
            return 0 if errno == EINTR else -errno
        for i in range(count):
            events[i].tag = ready[i].data.u64
            events[i].result = 0
            events[i].more = 1
        return count

    cdef bint pending(self) noexcept nogil:
        return True


def io_uring_available():
    """Whether this process may create an io_uring: seccomp or a sysctl may forbid it."""
    cdef UringPoller poller = UringPoller()
    cdef int rc
    with nogil:
        rc = poller.open()
        poller.close()
    return rc == 0
