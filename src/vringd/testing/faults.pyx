"""A channel that delays operations or lets them fail, in front of any other channel."""

from libc.stdint cimport uint64_t

from vringd.core.channel cimport finish
from vringd.core.sys cimport vr_fetch_add_u64, vr_load_relaxed_u64, vr_store_relaxed_u64

OPERATIONS = ("read", "write", "flush", "discard", "write_zeroes", "secure_erase")


cdef class FaultRules:
    """What goes wrong, for all channels of a disk; may be changed while they run."""

    def set(self, operations=OPERATIONS, *, int error=0, every=0, delay_ns=0):
        """From now on every `every`-th of the named operations fails with errno `error`, and each
        of them is delayed by delay_ns."""
        bits = 0
        for name in operations:
            bits |= 1 << OPERATIONS.index(name)
        vr_store_relaxed_u64(&self.rule.every, 0)
        vr_store_relaxed_u64(&self.rule.ops, bits)
        vr_store_relaxed_u64(&self.rule.error, error)
        vr_store_relaxed_u64(&self.rule.delay_ns, delay_ns)
        vr_store_relaxed_u64(&self.rule.seen, 0)
        vr_store_relaxed_u64(&self.rule.every, every)

    def clear(self):
        """Nothing goes wrong any more."""
        self.set(())

    @property
    def seen(self):
        """Matching operations since `set`."""
        return vr_load_relaxed_u64(&self.rule.seen)


cdef class FaultChannel(Channel):
    """inner does the real work; rules are shared with the disk's other channels."""

    def __init__(self, Channel inner not None, FaultRules rules not None):
        self.inner, self.rules = inner, rules
        self.inner_pointer = <void *> inner
        self.rule = &rules.rule

    cdef int start(self) noexcept nogil:
        (<Channel> self.inner_pointer).thread = self.thread
        return (<Channel> self.inner_pointer).start()

    cdef bint stop(self) noexcept nogil:
        return (<Channel> self.inner_pointer).stop()

    cdef void submit(self, Request *req) noexcept nogil:
        cdef uint64_t every, count
        if not vr_load_relaxed_u64(&self.rule.ops) >> req.op & 1:
            (<Channel> self.inner_pointer).submit(req)
            return
        count = vr_fetch_add_u64(&self.rule.seen, 1) + 1
        every = vr_load_relaxed_u64(&self.rule.every)
        req.private = NULL
        if every and count % every == 0:
            req.private = self.rule     # not NULL: it will fail
        req.due_ns = self.thread.now + vr_load_relaxed_u64(&self.rule.delay_ns)
        if req.due_ns == self.thread.now:
            self.release(req)
            return
        req.next = NULL
        if self.first == NULL:
            self.first = req
        else:
            self.last.next = req
        self.last = req

    cdef void release(self, Request *req) noexcept nogil:
        if req.private != NULL:
            finish(req, -<int> vr_load_relaxed_u64(&self.rule.error))
        else:
            (<Channel> self.inner_pointer).submit(req)

    cdef void flush(self) noexcept nogil:
        (<Channel> self.inner_pointer).flush()

    cdef uint64_t run_timers(self, uint64_t now) noexcept nogil:
        """Delays may change, so a later request may be due earlier: it waits for those before."""
        cdef uint64_t inner, own
        cdef Request *req
        cdef bint released = False
        while self.first != NULL and self.first.due_ns <= now:
            req = self.first
            self.first = req.next
            self.release(req)
            released = True
        if released:
            (<Channel> self.inner_pointer).flush()
        inner = (<Channel> self.inner_pointer).run_timers(now)
        own = self.first.due_ns if self.first != NULL else 0
        return inner if own == 0 or (inner and inner < own) else own
