# What an IOThread drives: queue handlers (devices) above the rings, channels below them.

from libc.stdint cimport int32_t, uint32_t, uint64_t, uint8_t

from vringd.core.buffers cimport BufferTable
from vringd.core.poller cimport Poller
from vringd.core.polling cimport PollPolicy
from vringd.core.vring cimport Message, Request, Vring
from vringd.core.watchdog cimport SignalSlot


cdef struct ThreadState:        # of one IOThread; only its thread touches it, but for the lists
    # ---- pushed to by other threads
    void *inbox                 # Message list from the control plane
    void *remote                # Request list from back-ends with threads of their own
    void *outbox                # Message list to the control plane
    int wake_fd                 # written after pushing to inbox or remote
    int ack_fd                  # written after pushing to outbox
    # ---- the thread's own
    void *poller                # Poller (borrowed)
    uint64_t now                # CLOCK_MONOTONIC ns, at the start of this turn
    Vring **queues
    uint32_t queue_count
    void **channels             # Channel (borrowed)
    uint32_t channel_count
    uint32_t draining           # queues being detached
    Message *asked              # questions that have no answer yet
    uint64_t file_slots         # bits of the registered files in use
    uint8_t files_registered    # 1: the table exists; 2: the kernel refused it
    BufferTable buffers         # guest memory registered with the ring
    uint32_t aio_max_batch      # most requests in one submission; 0: no limit of its own
    uint8_t stopping
    uint8_t polls_rings         # some queue has no kick eventfd
    char thread_name[16]
    int tid
    Message last_words          # FAILED
    int error                   # why the thread ended, a negative errno
    PollPolicy polling
    SignalSlot signals
    # ---- counters: written here, read anywhere
    uint64_t turns
    uint64_t sleeps
    uint64_t spins_won          # idle spins that ended with work


cdef class QueueHandler:
    cdef void handle(self, Vring *q, Request *req) noexcept nogil
    cdef void complete(self, Request *req) noexcept nogil


cdef class Channel:
    cdef ThreadState *thread    # set while started
    cdef bint needs_turns       # flush and run_timers have something to do
    cdef bint wants_buffers     # guest memory of its queues is to be registered with the ring
    cdef int start(self) noexcept nogil
    cdef bint stop(self) noexcept nogil
    cdef void submit(self, Request *req) noexcept nogil
    cdef void flush(self) noexcept nogil
    cdef void operation_done(self, Request *req, int32_t result) noexcept nogil
    cdef void readable(self) noexcept nogil
    cdef void watch_ended(self) noexcept nogil
    cdef uint64_t run_timers(self, uint64_t now) noexcept nogil


cdef class Question:
    cdef bint answered(self) noexcept nogil


cdef void finish_remotely(ThreadState *thread, Request *req, int32_t result) noexcept nogil


cdef int register_file(ThreadState *thread, int fd) noexcept nogil
cdef void unregister_file(ThreadState *thread, int index) noexcept nogil


cdef inline void finish(Request *req, int32_t result) noexcept nogil:
    """Give a finished request back to its device: in the IOThread only."""
    req.result = result
    (<QueueHandler> (<Vring *> req.queue).handler).complete(req)
