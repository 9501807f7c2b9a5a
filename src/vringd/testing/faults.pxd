from libc.stdint cimport uint64_t

from vringd.core.channel cimport Channel
from vringd.core.vring cimport Request


cdef struct FaultRule:          # changed by the control plane, read by IOThreads: whole words
    uint64_t ops                # bit n: operations of kind n (block.ops.Op)
    uint64_t error              # errno, 0: none
    uint64_t every              # the n-th, 2n-th ... matching operation; 0: none
    uint64_t delay_ns
    uint64_t seen               # matching operations so far


cdef class FaultRules:
    cdef FaultRule rule


cdef class FaultChannel(Channel):
    cdef Channel inner
    cdef void *inner_pointer
    cdef FaultRules rules
    cdef FaultRule *rule
    cdef Request *first         # delayed, soonest first
    cdef Request *last
    cdef void release(self, Request *req) noexcept nogil
