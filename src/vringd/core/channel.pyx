"""Base classes of what an IOThread drives, and of what it can be asked.

They are called by the one IOThread that owns the queue or the channel, so they take no lock.
"""

from libc.stdint cimport int32_t, uint64_t

from vringd.core.sys cimport (
    io_uring, io_uring_register_files_sparse, io_uring_register_files_update, vr_push_ptr, write)

cdef enum:
    FILE_SLOTS = 64             # one for each bit of ThreadState.file_slots


cdef class QueueHandler:
    """A device, as its queues see it."""

    cdef void handle(self, Vring *q, Request *req) noexcept nogil:
        """Act on a chain that was just popped: submit it to q.channel or push it back at once."""

    cdef void complete(self, Request *req) noexcept nogil:
        """req.result (0 or a negative errno) is known: push the chain or take the next step."""


cdef class Channel:
    """One IOThread's own path to a back-end.

    submit never fails: every outcome, good or bad, is handed to `finish`, from within submit or
    later. Nothing else of a request may be touched after that. A channel that has nothing to do
    between submissions and completions sets needs_turns to False, for as long as it likes.
    """

    def __cinit__(self, *args, **kwargs):
        self.needs_turns = True

    cdef int start(self) noexcept nogil:
        """Called first, in the IOThread; self.thread is set. 0 or a negative errno."""
        return 0

    cdef bint stop(self) noexcept nogil:
        """Called last, when no request is in flight; False: not yet, ask again next turn."""
        return True

    cdef void submit(self, Request *req) noexcept nogil:
        """Begin the operation that req describes."""

    cdef void flush(self) noexcept nogil:
        """The turn's requests have been submitted: send them if they were being collected."""

    cdef void operation_done(self, Request *req, int32_t result) noexcept nogil:
        """An io_uring operation tagged with req completed."""

    cdef void readable(self) noexcept nogil:
        """A watched descriptor (TAG_CHANNEL) is readable."""

    cdef void watch_ended(self) noexcept nogil:
        """A watch of the channel's is no more, because it was ended or the kernel dropped it."""

    cdef uint64_t run_timers(self, uint64_t now) noexcept nogil:
        """Finish what is due; when to call again (CLOCK_MONOTONIC ns), 0: no need."""
        return 0


cdef class Question:
    """Something that the control plane wants an IOThread to tell (`IOThread.ask`).

    The thread looks at it when it has popped all that was available in its queues at the time of
    asking, and the answer arrives after what was completed until then has been published. So
    this class itself is a useful question: have you seen all that came before?
    """

    cdef bint answered(self) noexcept nogil:
        """Called once a turn, in the IOThread, until it returns True."""
        return True


cdef void finish_remotely(ThreadState *thread, Request *req, int32_t result) noexcept nogil:
    """Give a finished request back from any other thread: the IOThread will call complete."""
    cdef uint64_t one = 1
    req.result = result
    vr_push_ptr(&thread.remote, req, <void **> &req.next)
    write(thread.wake_fd, &one, 8)


# ---- registered files ---------------------------------------------------------------------------

cdef int register_file(ThreadState *thread, int fd) noexcept nogil:
    """Register fd with the thread's ring, in that thread (it is a single-issuer ring): its index,
    or a negative errno, after which fd itself serves."""
    cdef io_uring *ring = (<Poller> thread.poller).ring
    cdef int index, rc
    if thread.files_registered == 0:
        rc = io_uring_register_files_sparse(ring, FILE_SLOTS)       # 5.19 and later
        thread.files_registered = 1 if rc == 0 else 2
    if thread.files_registered != 1:
        return -1
    for index in range(FILE_SLOTS):
        if not thread.file_slots >> index & 1:
            rc = io_uring_register_files_update(ring, <unsigned> index, &fd, 1)
            if rc < 0:
                return rc
            thread.file_slots |= <uint64_t> 1 << index
            return index
    return -1


cdef void unregister_file(ThreadState *thread, int index) noexcept nogil:
    cdef int none = -1
    io_uring_register_files_update((<Poller> thread.poller).ring, <unsigned> index, &none, 1)
    thread.file_slots &= ~(<uint64_t> 1 << index)
