# When to interrupt a driver: at once, or a moment later for several completions together.
#
# A driver that sleeps until it is interrupted must be interrupted at once. A driver that is awake
# and finds completions by itself (because more were published while it was still submitting)
# needs no interrupt: sending one costs both sides a system call. Which of the two it is shows in
# the gaps between its requests. A run is a series of requests with no gap of QUIET_NS; a driver
# with one request outstanding makes runs of one, and for it nothing is ever delayed. After longer
# runs the decision waits until the driver has been quiet for QUIET_NS, by when it has either
# seen the completions (and with EVENT_IDX moved used_event past them) or gone to sleep; and never
# longer than LIMIT_NS, since another of the guest's CPUs may wait while this one submits.

from libc.stdint cimport uint32_t, uint64_t

from vringd.core.vring cimport Vring


cdef enum:
    QUIET_NS = 700
    LIMIT_NS = 4000


cdef inline void note_popped(Vring *q, uint64_t now, uint32_t count) noexcept nogil:
    """count requests were popped at now."""
    if now - q.last_pop_ns > QUIET_NS:
        q.last_run = q.run
        q.run = 0
    q.run += count
    q.last_pop_ns = now


cdef inline bint may_wait(Vring *q, uint64_t now) noexcept nogil:
    """Whether the interrupt for what has been published may be sent later."""
    if q.run <= 1 and q.last_run <= 1:
        return False
    return now - q.last_pop_ns < QUIET_NS and now - q.unsignalled_since < LIMIT_NS
