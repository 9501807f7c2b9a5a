"""aio=native: files through Linux AIO (io_submit), submitted once per turn.

Only reads and writes go that way; a flush, a discard or zeroing goes to a worker thread, since
io_submit would block for them. (linux/aio_abi.h; io_submit(2).)
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from vringd.block.file_steps cimport (
    STEP_DONE, STEP_READ, STEP_WRITE, FileTarget, Step, first_step, next_step)
from vringd.block.ops cimport OP_READ, OP_WRITE
from vringd.block.worker_pool cimport WorkerPool, pool_start, pool_stop, pool_submit
from vringd.core.channel cimport Channel, finish
from vringd.core.poller cimport TAG_CHANNEL, Poller
from vringd.core.sys cimport (
    EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, IOCB_CMD_PREADV, IOCB_CMD_PWRITEV, IOCB_FLAG_RESFD,
    RWF_DSYNC, SYS_io_destroy, SYS_io_getevents, SYS_io_setup, SYS_io_submit, aio_context_t,
    close, errno, eventfd, io_event, iocb, read, syscall, timespec)
from vringd.core.vring cimport Request

cdef enum:
    DEPTH = 1024                # operations in the kernel at once
    RETRY_NS = 1000000
    BATCH = 128                 # io_submit's and io_getevents' at once


cdef class AioFileChannel(Channel):
    """owner: the file's owner, kept alive; fd: its descriptor, opened with O_DIRECT."""

    cdef FileTarget target
    cdef WorkerPool pool
    cdef object owner
    cdef aio_context_t context
    cdef int event_fd
    cdef bint watching, asked   # for event_fd; whether its end was asked for
    cdef iocb blocks[DEPTH]
    cdef uint32_t free_blocks[DEPTH]
    cdef uint32_t free_count
    cdef iocb *prepared[DEPTH]
    cdef uint32_t prepared_count
    cdef Request *backlog       # requests for which there was no control block, in order
    cdef Request *backlog_last

    def __init__(self, owner, int fd, *, memory_alignment=1, bint ignore_flush=False,
                 bint discard=False, int detect_zeroes=0):
        self.owner = owner
        self.event_fd = -1
        self.target.fd = fd
        self.target.memory_alignment = memory_alignment
        self.target.ignore_flush, self.target.discard = ignore_flush, discard
        self.target.detect_zeroes = <unsigned char> detect_zeroes

    def __dealloc__(self):
        if self.event_fd >= 0:
            close(self.event_fd)

    cdef int start(self) noexcept nogil:
        cdef uint32_t i
        cdef int rc = pool_start(&self.pool, &self.target, self.thread, 0, 4)
        if rc != 0:
            return rc
        if syscall(SYS_io_setup, DEPTH, &self.context) != 0:
            return -errno
        self.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.event_fd < 0:
            return -errno
        for i in range(<uint32_t> DEPTH):
            self.free_blocks[i] = i
        self.free_count = DEPTH
        return self.watch()

    cdef bint stop(self) noexcept nogil:
        cdef int rc
        if self.watching and not self.asked:
            rc = (<Poller> self.thread.poller).unwatch(
                self.event_fd, <uint64_t> <uintptr_t> <void *> self | TAG_CHANNEL)
            if rc > 0:
                self.watching = False
            self.asked = rc == 0
        if self.watching:
            return False        # its last event has yet to come
        syscall(SYS_io_destroy, self.context)
        pool_stop(&self.pool)
        return True

    cdef void watch_ended(self) noexcept nogil:
        self.watching = False
        if not self.asked:      # the kernel dropped it
            self.watch()

    cdef int watch(self) noexcept nogil:
        cdef int rc = (<Poller> self.thread.poller).watch(
            self.event_fd, <uint64_t> <uintptr_t> <void *> self | TAG_CHANNEL)
        self.watching = rc == 0
        return rc

    cdef bint prepare(self, Request *req, Step *step) noexcept nogil:
        cdef iocb *block
        if self.free_count == 0 or self.prepared_count == DEPTH:
            return False
        self.free_count -= 1
        block = &self.blocks[self.free_blocks[self.free_count]]
        memset(block, 0, sizeof(iocb))
        block.aio_data = <uint64_t> <uintptr_t> req
        block.aio_lio_opcode = <uint16_t> (
            IOCB_CMD_PREADV if step.kind == STEP_READ else IOCB_CMD_PWRITEV)
        block.aio_fildes = <uint32_t> self.target.fd
        block.aio_buf = <uint64_t> <uintptr_t> step.iov
        block.aio_nbytes = step.count
        block.aio_offset = <int64_t> step.offset
        block.aio_flags = IOCB_FLAG_RESFD
        block.aio_resfd = <uint32_t> self.event_fd
        if step.dsync:
            block.aio_rw_flags = <uint32_t> RWF_DSYNC
        self.prepared[self.prepared_count] = block
        self.prepared_count += 1
        return True

    cdef void go_on(self, Request *req, Step *step) noexcept nogil:
        if step.kind == STEP_DONE:
            finish(req, step.result)
        elif step.kind == STEP_READ or step.kind == STEP_WRITE:
            if not self.prepare(req, step):
                req.next = NULL
                if self.backlog == NULL:
                    self.backlog = req
                else:
                    self.backlog_last.next = req
                self.backlog_last = req
        else:
            pool_submit(&self.pool, req)

    cdef void submit(self, Request *req) noexcept nogil:
        cdef Step step
        req.channel = <void *> self
        if req.op != OP_READ and req.op != OP_WRITE:
            pool_submit(&self.pool, req)
            return
        first_step(&self.target, req, &step)
        self.go_on(req, &step)

    cdef void flush(self) noexcept nogil:
        cdef Request *req
        cdef Step step
        cdef uint32_t sent = 0
        cdef uint32_t i
        cdef long rc
        while self.backlog != NULL and self.free_count:
            req = self.backlog
            self.backlog = req.next
            next_step(&self.target, req, -EAGAIN, &step)    # the same step again
            self.prepare(req, &step)
        while sent < self.prepared_count:
            rc = syscall(SYS_io_submit, self.context,
                         <long> min(self.prepared_count - sent, <uint32_t> BATCH),
                         &self.prepared[sent])
            if rc > 0:
                sent += <uint32_t> rc
            elif rc < 0 and errno == EAGAIN:
                break           # the kernel is full: again when something has completed
            else:               # the first one is bad: it alone has that outcome
                self.completed(self.prepared[sent], -errno if rc < 0 else -EAGAIN)
                sent += 1
        for i in range(self.prepared_count - sent):
            self.prepared[i] = self.prepared[sent + i]
        self.prepared_count -= sent

    cdef uint64_t run_timers(self, uint64_t now) noexcept nogil:
        # What the kernel did not take is tried again soon: with nothing of ours in flight, no
        # completion would bring another turn.
        return now + RETRY_NS if self.prepared_count else 0

    cdef void completed(self, iocb *block, int64_t result) noexcept nogil:
        cdef Request *req = <Request *> <uintptr_t> block.aio_data
        cdef Step step
        self.free_blocks[self.free_count] = <uint32_t> (block - self.blocks)
        self.free_count += 1
        next_step(&self.target, req, result, &step)
        self.go_on(req, &step)

    cdef void readable(self) noexcept nogil:
        cdef io_event events[BATCH]
        cdef timespec none
        cdef uint64_t count
        cdef long n, i
        none.tv_sec = none.tv_nsec = 0
        # Emptied before looking: a completion after the look makes it readable again.
        read(self.event_fd, &count, 8)
        while True:
            n = syscall(SYS_io_getevents, self.context, <long> 0, <long> BATCH, events, &none)
            for i in range(n):
                self.completed(<iocb *> <uintptr_t> events[i].obj, events[i].res)
            if n < BATCH:
                break
