from libc.stdint cimport uint64_t

from vringd.core.channel cimport Channel
from vringd.core.sys cimport pthread_mutex_t
from vringd.core.vring cimport Request


cdef class ServiceSlots:
    """The servers of a modelled disk, shared by the channels of all IOThreads."""
    cdef uint64_t *free_at      # when each server is idle again, ns
    cdef int count
    cdef pthread_mutex_t lock
    cdef uint64_t reserve(self, uint64_t now, uint64_t service_ns) noexcept nogil


cdef class NullChannel(Channel):
    cdef uint64_t latency_ns, cpu_ns
    cdef uint64_t busy_ns           # cpu_ns less what the clock takes
    cdef bint read_zeroes
    cdef ServiceSlots slots     # None: any number at once
    cdef void *slots_pointer
    cdef Request *first         # waiting for their time, soonest first
    cdef Request *last
    cdef void begin(self, Request *req) noexcept nogil
