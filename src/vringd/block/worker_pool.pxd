# Threads that may block, for what an IOThread must not wait for.

from vringd.block.file_steps cimport FileTarget
from vringd.core.channel cimport ThreadState
from vringd.core.sys cimport pthread_cond_t, pthread_mutex_t, pthread_t
from vringd.core.vring cimport Request


cdef struct WorkerPool:
    FileTarget *target
    ThreadState *thread         # where finished requests go
    pthread_mutex_t lock
    pthread_cond_t wakeup
    Request *first              # waiting
    Request *last
    int idle
    int count
    int limit
    int stopping
    pthread_t *workers


cdef int pool_start(WorkerPool *pool, FileTarget *target, ThreadState *thread,
                    int minimum, int limit) noexcept nogil
cdef void pool_submit(WorkerPool *pool, Request *req) noexcept nogil
cdef void pool_stop(WorkerPool *pool) noexcept nogil
