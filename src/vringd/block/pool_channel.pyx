"""aio=threads: files through blocking system calls in worker threads."""

from vringd.block.file_steps cimport FileTarget
from vringd.block.worker_pool cimport WorkerPool, pool_start, pool_stop, pool_submit
from vringd.core.channel cimport Channel
from vringd.core.vring cimport Request


cdef class PoolFileChannel(Channel):
    """owner: the file's owner, kept alive; fd: its descriptor.

    min_workers: threads that are there from the start; max_workers: most that load brings.
    """

    cdef FileTarget target
    cdef WorkerPool pool
    cdef object owner
    cdef int min_workers, max_workers

    def __init__(self, owner, int fd, *, memory_alignment=1, bint ignore_flush=False,
                 bint discard=False, int detect_zeroes=0, int min_workers=0,
                 int max_workers=64):
        self.owner = owner
        self.min_workers, self.max_workers = min_workers, max_workers
        self.needs_turns = False
        self.target.fd = fd
        self.target.memory_alignment = memory_alignment
        self.target.ignore_flush, self.target.discard = ignore_flush, discard
        self.target.detect_zeroes = <unsigned char> detect_zeroes

    cdef int start(self) noexcept nogil:
        return pool_start(&self.pool, &self.target, self.thread, self.min_workers,
                          self.max_workers)

    cdef bint stop(self) noexcept nogil:
        pool_stop(&self.pool)
        return True

    cdef void submit(self, Request *req) noexcept nogil:
        pool_submit(&self.pool, req)
