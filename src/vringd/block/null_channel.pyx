"""A disk without bytes: for measuring everything else, and for modelling slow disks."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from vringd.block.ops cimport OP_READ
from vringd.core.channel cimport finish
from vringd.core.sys cimport (
    CLOCK_THREAD_CPUTIME_ID, clock_gettime, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock, timespec)


cdef class ServiceSlots:
    """count servers; a request takes the one that is free first."""

    def __cinit__(self, int count):
        if count < 1:
            raise ValueError(f"parallelism {count} is not positive")
        self.count = count
        self.free_at = <uint64_t *> calloc(count, sizeof(uint64_t))
        if self.free_at == NULL:
            raise MemoryError
        pthread_mutex_init(&self.lock, NULL)

    def __dealloc__(self):
        if self.free_at != NULL:
            pthread_mutex_destroy(&self.lock)
            free(self.free_at)

    cdef uint64_t reserve(self, uint64_t now, uint64_t service_ns) noexcept nogil:
        """When a request that arrives now will have been served."""
        cdef int i, best = 0
        cdef uint64_t done
        pthread_mutex_lock(&self.lock)
        for i in range(1, self.count):
            if self.free_at[i] < self.free_at[best]:
                best = i
        done = max(now, self.free_at[best]) + service_ns
        self.free_at[best] = done
        pthread_mutex_unlock(&self.lock)
        return done


cdef uint64_t thread_cpu_ns() noexcept nogil:
    cdef timespec ts
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts)
    return <uint64_t> ts.tv_sec * 1000000000 + <uint64_t> ts.tv_nsec


cdef uint64_t clock_cost() noexcept nogil:
    """CPU time of one reading of that clock: a system call."""
    cdef uint64_t least = 1000000
    cdef uint64_t before = thread_cpu_ns()
    cdef uint64_t after
    cdef int _
    for _ in range(100):
        after = thread_cpu_ns()
        least = min(least, after - before)
        before = after
    return least


cdef class NullChannel(Channel):
    """latency_ns: time that each request takes; cpu_ns: CPU time that the IOThread spends on it
    (CPU time, not elapsed time: two threads on one core must not seem to scale)."""

    def __init__(self, *, latency_ns, cpu_ns, bint read_zeroes, ServiceSlots slots=None):
        cdef uint64_t reading
        self.latency_ns, self.cpu_ns = latency_ns, cpu_ns
        if cpu_ns:
            # A busy request begins half a reading before its first time and ends half a reading
            # after its last, which is half a reading late on average.
            reading = clock_cost()
            self.busy_ns = max(<uint64_t> 1, self.cpu_ns - min(self.cpu_ns, reading + reading // 2))
        self.read_zeroes = read_zeroes
        self.needs_turns = latency_ns != 0
        self.slots = slots
        self.slots_pointer = <void *> slots if slots is not None else NULL

    cdef void begin(self, Request *req) noexcept nogil:
        cdef uint64_t until
        cdef uint32_t i
        if self.read_zeroes and req.op == OP_READ:
            for i in range(req.niov):
                memset(req.iov[i].iov_base, 0, req.iov[i].iov_len)
        if self.cpu_ns:
            until = thread_cpu_ns() + self.busy_ns
            while thread_cpu_ns() < until:
                pass

    cdef void submit(self, Request *req) noexcept nogil:
        self.begin(req)
        if self.latency_ns == 0:
            finish(req, 0)
            return
        if self.slots_pointer != NULL:
            req.due_ns = (<ServiceSlots> self.slots_pointer).reserve(
                self.thread.now, self.latency_ns)
        else:
            req.due_ns = self.thread.now + self.latency_ns
        # In submission order due times never decrease: with one latency, the earliest server's
        # time only grows.
        req.next = NULL
        if self.first == NULL:
            self.first = req
        else:
            self.last.next = req
        self.last = req

    cdef uint64_t run_timers(self, uint64_t now) noexcept nogil:
        cdef Request *req
        while self.first != NULL and self.first.due_ns <= now:
            req = self.first
            self.first = req.next
            finish(req, 0)
        return self.first.due_ns if self.first != NULL else 0
