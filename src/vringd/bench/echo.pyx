"""A device that completes every request at once: what the load generator itself can do.

It is the device side of the rings and nothing else, in a thread of its own: no socket, no disk, no
event loop. It never asks to be kicked, and interrupts whoever asks for that.
"""

from libc.stdint cimport uint32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from vringd.core.sys cimport (
    PR_SET_NAME, alloc_lines, iovec, prctl, pthread_create, pthread_join, pthread_t, vr_gettid,
    vr_load_relaxed_u32, vr_relax, vr_store_relaxed_u32)
from vringd.core.virtqueue cimport (
    Virtqueue, vring_disable_notification, vring_has_work, vring_pop, vring_publish, vring_push,
    vring_should_notify)
from vringd.core.vring cimport Request, Vring, interrupt

import os

cdef enum:
    MAX_QUEUES = 256
    PUBLISH_AFTER = 4           # as the engine does (core/iothread.pyx)
    RESPONSE_BYTES = 12         # of struct virtio_scsi_cmd_resp, before the sense data


cdef inline void answer(Request *req, bint scsi) noexcept nogil:
    """Say that all went well: virtio-blk's status is the last byte of the chain, virtio-scsi's
    response begins the part that the device writes."""
    cdef iovec *segment = &req.segments[req.out_iovs]
    if req.in_iovs == 0:
        return
    if scsi:
        memset(segment.iov_base, 0, min(segment.iov_len, <size_t> RESPONSE_BYTES))
    else:
        segment = &req.segments[req.out_iovs + req.in_iovs - 1]
        (<uint8_t *> segment.iov_base)[segment.iov_len - 1] = 0


cdef void complete_at_once(Vring *q, bint scsi) noexcept nogil:
    """Every request that is available."""
    cdef Request *req
    cdef uint32_t written, i
    vring_disable_notification(q)
    while True:
        req = vring_pop(q)
        if req == NULL:
            break
        written = 0
        for i in range(req.out_iovs, req.out_iovs + req.in_iovs):
            written += <uint32_t> req.segments[i].iov_len
        answer(req, scsi)
        vring_push(q, req, written)
        if q.used_pending >= PUBLISH_AFTER:
            vring_publish(q)
    if q.used_pending:
        vring_publish(q)
    if vring_should_notify(q):
        interrupt(q)


cdef struct State:
    Vring *rings[MAX_QUEUES]
    uint32_t count
    uint32_t stopping
    uint32_t tid
    bint scsi


cdef void *serve(void *argument) noexcept nogil:
    cdef State *state = <State *> argument
    cdef uint32_t i
    cdef bint idle
    prctl(PR_SET_NAME, <char *> b"vringd-echo")
    vr_store_relaxed_u32(&state.tid, <uint32_t> vr_gettid())
    while not vr_load_relaxed_u32(&state.stopping):
        idle = True
        for i in range(state.count):
            if vring_has_work(state.rings[i]):
                complete_at_once(state.rings[i], state.scsi)
                idle = False
        if idle:
            vr_relax()
    return NULL


cdef class EchoServer:
    """Serves the ring of each `Virtqueue`, from `start` to `stop`. cpus: none for any. scsi: the
    requests are virtio-scsi's, not virtio-blk's."""

    cdef State *state
    cdef pthread_t thread
    cdef bint running
    cdef list queues
    cdef tuple cpus

    def __cinit__(self):
        self.state = <State *> alloc_lines(sizeof(State))
        if self.state == NULL:
            raise MemoryError

    def __init__(self, queues, cpus=(), *, bint scsi=False):
        cdef Virtqueue queue
        self.queues, self.cpus = list(queues), tuple(cpus)
        self.state.scsi = scsi
        if len(self.queues) > MAX_QUEUES:
            raise ValueError(f"more than {MAX_QUEUES} queues")
        for queue in self.queues:
            self.state.rings[self.state.count] = queue.ring
            self.state.count += 1

    def __dealloc__(self):
        if not self.running:
            free(self.state)

    def start(self):
        """Start the thread. Raises OSError, also for CPUs that it may not use."""
        cdef int rc = pthread_create(&self.thread, NULL, serve, self.state)
        if rc != 0:
            raise OSError(rc, os.strerror(rc))
        self.running = True
        while not vr_load_relaxed_u32(&self.state.tid):
            pass
        if self.cpus:
            try:
                os.sched_setaffinity(vr_load_relaxed_u32(&self.state.tid), self.cpus)
            except OSError:
                self.stop()
                raise

    def stop(self):
        """End the thread; again does nothing."""
        if self.running:
            vr_store_relaxed_u32(&self.state.stopping, 1)
            with nogil:
                pthread_join(self.thread, NULL)
            self.running = False
