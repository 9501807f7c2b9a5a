"""aio=io_uring: files through the IOThread's own ring, submitted once per turn."""

from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t, uintptr_t

from vringd.block.file_steps cimport (
    STEP_DONE, STEP_READ, STEP_SYNC, STEP_WRITE, first_step, next_step)
from vringd.core.buffers cimport buffer_index
from vringd.core.channel cimport finish, register_file, unregister_file
from vringd.core.poller cimport Poller, take_sqe
from vringd.core.sys cimport (
    EAGAIN, EINVAL, IORING_FSYNC_DATASYNC, IOSQE_FIXED_FILE, RWF_DSYNC, io_uring_prep_fallocate,
    io_uring_prep_fsync, io_uring_prep_read, io_uring_prep_read_fixed, io_uring_prep_readv,
    io_uring_prep_write, io_uring_prep_write_fixed, io_uring_prep_writev, io_uring_sq_ready,
    io_uring_sqe, io_uring_sqe_set_data64, io_uring_submit)


cdef class UringFileChannel(Channel):
    """owner: the file's owner, kept alive; fd: its descriptor; the rest as in FileTarget.

    registered_buffers: register the guest's memory with the ring (it is pinned then).
    """

    def __init__(self, owner, int fd, *, memory_alignment=1, bint ignore_flush=False,
                 bint discard=False, int detect_zeroes=0, bint registered_buffers=False):
        self.owner = owner
        self.wants_buffers = registered_buffers
        self.needs_turns = False
        self.target.fd = fd
        self.target.memory_alignment = memory_alignment
        self.target.ignore_flush, self.target.discard = ignore_flush, discard
        self.target.detect_zeroes = <unsigned char> detect_zeroes

    cdef int start(self) noexcept nogil:
        cdef int index
        self.ring = (<Poller> self.thread.poller).ring
        if self.ring == NULL:
            return -EINVAL
        # A registered file saves the kernel a reference count for each request.
        index = register_file(self.thread, self.target.fd)
        self.sqe_fd = index if index >= 0 else self.target.fd
        self.sqe_flags = IOSQE_FIXED_FILE if index >= 0 else 0
        return 0

    cdef bint stop(self) noexcept nogil:
        if self.sqe_flags:
            unregister_file(self.thread, self.sqe_fd)
        return True

    cdef bint issue(self, Request *req, Step *step) noexcept nogil:
        """Prepare the step's submission entry; False if there is none to be had."""
        cdef io_uring_sqe *sqe = take_sqe(self.ring)
        cdef int index = -1
        if sqe == NULL:
            return False
        if self.wants_buffers and step.count == 1 and step.kind <= STEP_WRITE:
            index = buffer_index(&self.thread.buffers, <uint8_t *> step.iov.iov_base,
                                 step.iov.iov_len, &self.buffer_hint)
        if step.kind == STEP_READ:
            if index >= 0:
                io_uring_prep_read_fixed(sqe, self.sqe_fd, step.iov.iov_base,
                                         <unsigned> step.iov.iov_len, step.offset, index)
            elif step.count == 1:
                io_uring_prep_read(sqe, self.sqe_fd, step.iov.iov_base,
                                   <unsigned> step.iov.iov_len, step.offset)
            else:
                io_uring_prep_readv(sqe, self.sqe_fd, step.iov, step.count, step.offset)
        elif step.kind == STEP_WRITE:
            if index >= 0:
                io_uring_prep_write_fixed(sqe, self.sqe_fd, step.iov.iov_base,
                                          <unsigned> step.iov.iov_len, step.offset, index)
            elif step.count == 1:
                io_uring_prep_write(sqe, self.sqe_fd, step.iov.iov_base,
                                    <unsigned> step.iov.iov_len, step.offset)
            else:
                io_uring_prep_writev(sqe, self.sqe_fd, step.iov, step.count, step.offset)
            if step.dsync:
                sqe.rw_flags = RWF_DSYNC
        elif step.kind == STEP_SYNC:
            io_uring_prep_fsync(sqe, self.sqe_fd, IORING_FSYNC_DATASYNC)
        else:
            io_uring_prep_fallocate(sqe, self.sqe_fd, step.mode, <int64_t> step.offset,
                                    <int64_t> step.length)
        sqe.flags |= <unsigned char> self.sqe_flags
        io_uring_sqe_set_data64(sqe, <uint64_t> <uintptr_t> req)    # TAG_REQUEST is 0
        if (self.thread.aio_max_batch
                and io_uring_sq_ready(self.ring) >= self.thread.aio_max_batch):
            io_uring_submit(self.ring)
        return True

    cdef void postpone(self, Request *req) noexcept nogil:
        req.next = NULL
        if self.backlog == NULL:
            self.backlog = req
        else:
            self.backlog_last.next = req
        self.backlog_last = req
        self.needs_turns = True

    cdef void submit(self, Request *req) noexcept nogil:
        cdef Step step
        req.channel = <void *> self
        first_step(&self.target, req, &step)
        if step.kind == STEP_DONE:
            finish(req, step.result)
        elif not self.issue(req, &step):
            self.postpone(req)

    cdef void flush(self) noexcept nogil:
        cdef Request *req
        cdef Step step
        while self.backlog != NULL:
            req = self.backlog
            next_step(&self.target, req, -EAGAIN, &step)    # the same step again
            if not self.issue(req, &step):
                return
            self.backlog = req.next
        self.needs_turns = False

    cdef void operation_done(self, Request *req, int32_t result) noexcept nogil:
        cdef Step step
        next_step(&self.target, req, result, &step)
        if step.kind == STEP_DONE:
            finish(req, step.result)
        elif not self.issue(req, &step):
            self.postpone(req)
