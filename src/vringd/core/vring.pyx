"""The parts of a ring that split and packed share and that are off the fast path."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from vringd.core.memory cimport fault_count, map_broken, mark_dirty_host
from vringd.core.sys cimport (
    iovec, vr_load_relaxed_u32, vr_store_relaxed_u32, vr_unlikely, write)
from vringd.core.watchdog cimport begin_signal, end_signal


cdef const char *broken_text(int reason) noexcept nogil:
    """What a broken ring's log line says."""
    if reason == BROKEN_AVAIL_INDEX:
        return b"the available index moved by more than the queue size"
    if reason == BROKEN_HEAD:
        return b"a head descriptor index is not below the queue size"
    if reason == BROKEN_HEAD_BUSY:
        return b"a descriptor was made available again while it was in flight"
    if reason == BROKEN_NEXT:
        return b"a next descriptor index is outside its table"
    if reason == BROKEN_LOOP:
        return b"a descriptor chain is longer than its table (a loop)"
    if reason == BROKEN_ORDER:
        return b"a device-readable descriptor follows a device-writable one"
    if reason == BROKEN_INDIRECT:
        return b"an indirect descriptor table is malformed"
    if reason == BROKEN_ADDRESS:
        return b"a buffer lies outside guest memory"
    if reason == BROKEN_TOO_MANY:
        return b"a chain has more than 1026 segments"
    if reason == BROKEN_NO_MEMORY:
        return b"out of memory"
    if reason == BROKEN_GUEST_MEMORY:
        return b"a shared memory file of the front-end was truncated"
    if reason == BROKEN_RING_ADDRESS:
        return b"the ring is not in guest memory any more"
    if reason == BROKEN_EMPTY_CHAIN:
        return b"a chain without any buffer"
    if reason == BROKEN_REQUEST:
        return b"a request without a whole header or without room for its status"
    if reason == BROKEN_CALL:
        return b"the front-end let the call eventfd run full"
    return b"not broken"


cdef void install_setup(Vring *q, RingSetup *setup) noexcept nogil:
    """Replace memory, addresses, log and call eventfd: by the thread that owns the ring."""
    q.memory = setup.memory
    q.desc, q.avail, q.used, q.used_ring = setup.desc, setup.avail, setup.used, setup.used_ring
    q.ring, q.driver_event, q.device_event = setup.ring, setup.driver_event, setup.device_event
    q.log, q.log_broken = setup.log, setup.log_broken
    q.used_log_addr, q.event_log_addr = setup.used_log_addr, setup.event_log_addr
    q.call_fd, q.enabled = setup.call_fd, setup.enabled
    # A hint may be beyond a shorter map.
    q.table_hint = q.header_hint = q.data_hint = 0
    q.faults = fault_count()
    # So that the next pop looks at the new mappings.
    q.faults_seen = vr_load_relaxed_u32(q.faults) - 1


cdef void break_ring(Vring *q, int reason) noexcept nogil:
    """Stop serving q; the IOThread reports it to the control plane. The first reason counts."""
    # Lost memory reads as zeros, which make no sense as a ring either: name the cause.
    if q.broken == NOT_BROKEN and reason != BROKEN_GUEST_MEMORY and faulted(q):
        return
    if q.broken == NOT_BROKEN:
        q.broken = <uint8_t> reason


cdef void interrupt(Vring *q) noexcept nogil:
    """Write the call eventfd. Its flags and its count are the front-end's: if that made the write
    wait, the watchdog ends it."""
    cdef uint64_t one = 1
    if q.call_fd < 0:
        return
    if q.signals == NULL:
        write(q.call_fd, &one, 8)
        return
    begin_signal(q.signals, q.call_fd)
    write(q.call_fd, &one, 8)
    end_signal(q.signals)
    if vr_unlikely(vr_load_relaxed_u32(&q.signals.freed)):
        vr_store_relaxed_u32(&q.signals.freed, 0)
        break_ring(q, BROKEN_CALL)


cdef bint grow_iovecs(Request *req) noexcept nogil:
    """Give req room for MAX_IOVECS segments, for good: allocated at most once in a ring's life."""
    cdef iovec *iov = <iovec *> malloc(MAX_IOVECS * sizeof(iovec))
    if iov == NULL:
        return False
    memcpy(iov, req.segments, (req.out_iovs + req.in_iovs) * sizeof(iovec))
    req.segments = iov
    req.iov_room = MAX_IOVECS
    return True


cdef bint look_for_fault(Vring *q) noexcept nogil:
    """Some mapping of the process met a SIGBUS since the last look: was it one of ours?"""
    q.faults_seen = vr_load_relaxed_u32(q.faults)
    if (map_broken(q.memory)
            or (q.log_broken != NULL and vr_load_relaxed_u32(q.log_broken))
            or (q.inflight_broken != NULL and vr_load_relaxed_u32(q.inflight_broken))):
        break_ring(q, BROKEN_GUEST_MEMORY)
        return True
    return False


cdef void log_written(Vring *q, Request *req) noexcept nogil:
    """Mark every page that the device may have written for req: before the driver is told."""
    cdef uint32_t i
    for i in range(req.out_iovs, req.out_iovs + req.in_iovs):
        mark_dirty_host(q.log, q.memory, <uint8_t *> req.segments[i].iov_base,
                        req.segments[i].iov_len)
