# Counters and latency histograms of one queue: one writer (its IOThread), read without a lock.

from libc.stdint cimport uint64_t

from vringd.core.sys cimport vr_count_u64, vr_log2


cdef enum:
    HISTOGRAM_BUCKETS = 40      # bucket b: latencies in [2^b, 2^(b+1)) ns; the last is open (9 min)


cdef enum OpKind:
    KIND_READ
    KIND_WRITE
    KIND_FLUSH
    KIND_DISCARD                # discard, write zeroes, secure erase
    KIND_OTHER
    KIND_COUNT


cdef struct OpStats:
    uint64_t ops
    uint64_t bytes
    uint64_t errors
    uint64_t histogram[HISTOGRAM_BUCKETS]


cdef struct RingStats:
    OpStats kind[KIND_COUNT]
    uint64_t kicks              # wake-ups by the front-end (several kicks may be one wake-up)
    uint64_t notifications      # interrupts sent
    uint64_t batches            # turns in which the queue had requests
    uint64_t invalid            # requests answered with an error because they made no sense


cdef class QueueStats:
    cdef RingStats *counters    # on cache lines of its own


cdef inline int latency_bucket(uint64_t ns) noexcept nogil:
    cdef int bucket = vr_log2(ns)
    return bucket if bucket < HISTOGRAM_BUCKETS else HISTOGRAM_BUCKETS - 1
