"""Counters of one queue, kept for its whole life: they survive a move to another IOThread.

The IOThread that owns the queue is the only writer and stores whole words, so a reader in
another thread sees each counter as it was at some moment; counters are not a snapshot together.
"""

from libc.stdlib cimport free

from vringd.core.sys cimport alloc_lines, vr_load_relaxed_u64

KINDS = ("read", "write", "flush", "discard", "other")


cdef class QueueStats:
    """What a queue has done: see `snapshot`."""

    def __cinit__(self):
        self.counters = <RingStats *> alloc_lines(sizeof(RingStats))
        if self.counters == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.counters)

    def snapshot(self):
        """A dict: for each kind of request `{"ops", "bytes", "errors", "histogram"}`, and counts.

        histogram[b] counts the requests that took [2^b, 2^(b+1)) nanoseconds from being popped to
        being pushed; the counts are of kicks, notifications, batches and invalid requests.
        """
        cdef int k, b
        result = {}
        for k, name in enumerate(KINDS):
            result[name] = {
                "ops": vr_load_relaxed_u64(&self.counters.kind[k].ops),
                "bytes": vr_load_relaxed_u64(&self.counters.kind[k].bytes),
                "errors": vr_load_relaxed_u64(&self.counters.kind[k].errors),
                "histogram": [
                    vr_load_relaxed_u64(&self.counters.kind[k].histogram[b])
                    for b in range(HISTOGRAM_BUCKETS)
                ],
            }
        result["kicks"] = vr_load_relaxed_u64(&self.counters.kicks)
        result["notifications"] = vr_load_relaxed_u64(&self.counters.notifications)
        result["batches"] = vr_load_relaxed_u64(&self.counters.batches)
        result["invalid"] = vr_load_relaxed_u64(&self.counters.invalid)
        return result


def percentile(histogram, fraction):
    """The latency in nanoseconds below which `fraction` of a histogram's requests lie, or None.

    Linear inside a bucket, hence exact to a factor of two at worst.
    """
    total = sum(histogram)
    if total == 0:
        return None
    rank = fraction * total
    seen = 0
    for bucket, count in enumerate(histogram):
        if count and seen + count >= rank:
            inside = (rank - seen) / count
            low = 0 if bucket == 0 else 2 ** bucket
            return round(low + inside * (2 ** (bucket + 1) - low))
        seen += count
    return 2 ** len(histogram)
