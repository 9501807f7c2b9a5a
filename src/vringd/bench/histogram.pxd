# Latencies in buckets of equal relative width: 64 for each power of two, so exact to 1.6 %.

from libc.stdint cimport uint32_t, uint64_t

from vringd.core.sys cimport vr_log2


cdef enum:
    LINEAR = 128                # below, each nanosecond has a bucket of its own
    BUCKETS = 2560              # up to 2^45 ns, ten hours


cdef struct Latencies:          # nanoseconds
    uint64_t count
    uint64_t least
    uint64_t most
    double total
    double squares
    uint64_t bucket[BUCKETS]


cdef inline uint32_t bucket_of(uint64_t ns) noexcept nogil:
    cdef int shift
    if ns < LINEAR:
        return <uint32_t> ns
    shift = vr_log2(ns) - 6
    # ns >> shift is at least 64 and below 128, hence the buckets follow each other.
    return min(<uint32_t> (shift * 64 + (ns >> shift)), <uint32_t> (BUCKETS - 1))


cdef inline void note(Latencies *latencies, uint64_t ns) noexcept nogil:
    latencies.bucket[bucket_of(ns)] += 1
    if latencies.count == 0 or ns < latencies.least:
        latencies.least = ns
    if ns > latencies.most:
        latencies.most = ns
    latencies.count += 1
    latencies.total += <double> ns
    latencies.squares += <double> ns * <double> ns
