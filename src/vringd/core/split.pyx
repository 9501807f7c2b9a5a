"""The device side of a split virtqueue (virtio 1.3, section 2.7).

A guest may rewrite anything at any time, so every index and descriptor is loaded once into a
local before it is checked, and used only from there.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from vringd.core.inflight cimport DescStateSplit, InflightSplit, split_states
from vringd.core.memory cimport mark_dirty, translate
from vringd.core.sys cimport (
    VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
    VRING_USED_F_NO_NOTIFY, vr_fence_compiler, vr_fence_full, vr_likely, vr_load_acquire_u16,
    vr_load_relaxed_u16, vr_load_relaxed_u64, vr_prefetch, vr_store_relaxed_u16,
    vr_store_relaxed_u32, vr_store_release_u16, vr_unlikely, vring_desc)
from vringd.core.vring cimport (
    BROKEN_AVAIL_INDEX, BROKEN_EMPTY_CHAIN, BROKEN_HEAD, BROKEN_HEAD_BUSY, BROKEN_INDIRECT,
    BROKEN_LOOP, BROKEN_NEXT, BROKEN_TOO_MANY, MAX_DESCRIPTORS, Request, Vring, add_segment,
    begin_request, break_ring, faulted, log_written)


cdef enum:
    DESCRIPTORS_AHEAD = 16      # chains whose descriptors are being fetched while one is handled
    BUFFERS_AHEAD = 8


cdef inline bint walk(Vring *q, Request *req, vring_desc *table, uint32_t count,
                      uint32_t index, bint nested) noexcept nogil:
    """Add the buffers of the chain that starts at table[index]; False if it is malformed."""
    cdef vring_desc desc
    cdef vring_desc *inner
    cdef uint32_t seen = 0
    while True:
        # The only copy of the descriptor that is looked at.
        memcpy(&desc, &table[index], sizeof(vring_desc))
        vr_fence_compiler()
        seen += 1
        if desc.flags & VRING_DESC_F_INDIRECT:
            # 2.7.5.3.1: not within an indirect table, not chained further; a table of whole
            # descriptors. A table that follows direct descriptors is allowed.
            if (nested or not q.indirect or desc.flags & VRING_DESC_F_NEXT or desc.len == 0
                    or desc.len % sizeof(vring_desc)):
                break_ring(q, BROKEN_INDIRECT)
                return False
            inner = <vring_desc *> translate(q.memory, desc.addr, desc.len, &q.table_hint)
            if inner == NULL or <uintptr_t> inner % 2:
                break_ring(q, BROKEN_INDIRECT)
                return False
            return walk_indirect(q, req, inner, <uint32_t> (desc.len // sizeof(vring_desc)))
        if not add_segment(q, req, desc.addr, desc.len, desc.flags & VRING_DESC_F_WRITE != 0):
            return False
        if not desc.flags & VRING_DESC_F_NEXT:
            return True
        if desc.next >= count:
            break_ring(q, BROKEN_NEXT)
            return False
        if seen >= count:       # count descriptors were visited, so one would be visited twice
            break_ring(q, BROKEN_LOOP)
            return False
        if seen == MAX_DESCRIPTORS:     # a table of empty buffers must not occupy the thread
            break_ring(q, BROKEN_TOO_MANY)
            return False
        index = desc.next


cdef bint walk_indirect(Vring *q, Request *req, vring_desc *table,
                        uint32_t count) noexcept nogil:
    return walk(q, req, table, count, 0, True)


cdef inline void prefetch_descriptor(Vring *q, uint16_t position) noexcept nogil:
    """Have the first descriptor of an available chain fetched from the driver's core."""
    cdef uint16_t head = vr_load_relaxed_u16(&q.avail[2 + (position & q.mask)])
    if head < q.size:
        vr_prefetch(&q.desc[head])
        vr_prefetch(&q.requests[head])


cdef inline void prefetch_buffer(Vring *q, uint16_t position) noexcept nogil:
    """The same for the first buffer of a chain (a header or an indirect table), whose descriptor
    has arrived by now. What is read here is not checked, and not used for anything else."""
    cdef uint16_t head = vr_load_relaxed_u16(&q.avail[2 + (position & q.mask)])
    cdef uint8_t *buffer
    if head < q.size:
        buffer = translate(q.memory, vr_load_relaxed_u64(&q.desc[head].addr), 16, &q.header_hint)
        if buffer != NULL:
            vr_prefetch(buffer)


cdef void prefetch_batch(Vring *q, uint16_t count) noexcept nogil:
    """count chains have just become available: start fetching the first ones together. One
    transfer between cores takes longer than all the work for a request, but many overlap."""
    cdef uint16_t i
    for i in range(min(count, <uint16_t> DESCRIPTORS_AHEAD)):
        prefetch_descriptor(q, <uint16_t> (q.last_avail + i))
    for i in range(min(count, <uint16_t> BUFFERS_AHEAD)):
        prefetch_buffer(q, <uint16_t> (q.last_avail + i))


cdef Request *split_pop(Vring *q) noexcept nogil:
    """The next available chain, or NULL: nothing is available, or the ring is broken."""
    cdef Request *req
    cdef InflightSplit *inflight
    cdef DescStateSplit *state
    cdef uint16_t head, available, left
    if vr_unlikely(q.resubmit_next < q.resubmit_count):
        head = q.resubmit[q.resubmit_next]
        req = &q.requests[head]
        q.resubmit_next += 1
        q.resubmitted = 1
    else:
        if q.last_avail == q.avail_seen:
            # Acquire: the ring entry and the descriptors were written before idx.
            available = vr_load_acquire_u16(&q.avail[1])
            if available == q.last_avail:
                return NULL
            if <uint16_t> (available - q.last_avail) > q.size:
                break_ring(q, BROKEN_AVAIL_INDEX)
                return NULL
            q.avail_seen = available
            if <uint16_t> (available - q.last_avail) > 1:
                prefetch_batch(q, <uint16_t> (available - q.last_avail))
        head = vr_load_relaxed_u16(&q.avail[2 + (q.last_avail & q.mask)])
        if vr_unlikely(head >= q.size):
            break_ring(q, BROKEN_HEAD)
            return NULL
        req = &q.requests[head]
        if vr_unlikely(req.in_flight):
            break_ring(q, BROKEN_HEAD_BUSY)
            return NULL
        # Relaxed, not plain: the control plane may look (Virtqueue.base).
        vr_store_relaxed_u16(&q.last_avail, <uint16_t> (q.last_avail + 1))
        q.resubmitted = 0
        left = <uint16_t> (q.avail_seen - q.last_avail)
        if left >= DESCRIPTORS_AHEAD:
            prefetch_descriptor(q, <uint16_t> (q.last_avail + DESCRIPTORS_AHEAD - 1))
        if left >= BUFFERS_AHEAD:
            prefetch_buffer(q, <uint16_t> (q.last_avail + BUFFERS_AHEAD - 1))
        if q.inflight != NULL:
            inflight = <InflightSplit *> q.inflight
            state = &split_states(inflight)[head]
            state.counter = q.inflight_counter
            q.inflight_counter += 1
            vr_fence_compiler()     # a kill between the two must not show a stale counter
            state.inflight = 1
    req.head = head
    begin_request(q, req)
    q.in_flight += 1
    if (vr_likely(walk(q, req, q.desc, q.size, head, False))
            and vr_likely(not faulted(q))):
        if vr_likely(req.out_iovs + req.in_iovs != 0):
            return req
        break_ring(q, BROKEN_EMPTY_CHAIN)
    # Nobody will ever complete it: a drain must not wait for it.
    req.in_flight = 0
    q.in_flight -= 1
    return NULL


cdef void split_undo_pop(Vring *q, Request *req) noexcept nogil:
    """Give back the chain popped last: the next pop returns it again."""
    req.in_flight = 0
    q.in_flight -= 1
    if q.resubmitted:           # still in flight as far as the inflight buffer is concerned
        q.resubmit_next -= 1
        return
    q.last_avail = <uint16_t> (q.last_avail - 1)
    if q.inflight != NULL:
        split_states(<InflightSplit *> q.inflight)[req.head].inflight = 0


cdef void split_push(Vring *q, Request *req, uint32_t written) noexcept nogil:
    """Write req's used entry; the driver sees it after split_publish."""
    cdef InflightSplit *inflight
    cdef uint16_t at = <uint16_t> (q.used_idx + q.used_pending)
    if q.log != NULL:
        log_written(q, req)
    vr_store_relaxed_u32(&q.used_ring[at & q.mask].id, req.head)
    vr_store_relaxed_u32(&q.used_ring[at & q.mask].len, written)
    if q.inflight != NULL:
        inflight = <InflightSplit *> q.inflight
        split_states(inflight)[req.head].next = inflight.last_batch_head
        vr_fence_compiler()
        inflight.last_batch_head = req.head
    q.used_pending += 1
    req.in_flight = 0
    q.in_flight -= 1


cdef void split_publish(Vring *q) noexcept nogil:
    """Make the used entries written since the last call visible to the driver."""
    cdef InflightSplit *inflight
    cdef DescStateSplit *states
    cdef uint16_t head, i
    cdef uint16_t used = <uint16_t> (q.used_idx + q.used_pending)
    # Release: the entries, and the data that they stand for, were written before idx.
    vr_store_release_u16(&q.used[1], used)
    if q.log != NULL:           # after the stores: a page copied in between is copied again
        for i in range(q.used_pending):
            mark_dirty(q.log, q.used_log_addr + 4 + 8 * <uint64_t> ((q.used_idx + i) & q.mask), 8)
        mark_dirty(q.log, q.used_log_addr, 4)
    if q.inflight != NULL:
        inflight = <InflightSplit *> q.inflight
        states = split_states(inflight)
        vr_fence_compiler()
        head = inflight.last_batch_head
        for _ in range(q.used_pending):
            if vr_unlikely(head >= q.size):     # the front-end scribbled over its own buffer
                break
            states[head].inflight = 0
            head = states[head].next
        vr_fence_compiler()
        inflight.used_idx = used
    q.unsignalled += q.used_pending
    q.used_idx = used
    q.used_pending = 0


cdef bint split_should_notify(Vring *q) noexcept nogil:
    """Whether the driver wants to be told of what was published since the last call."""
    cdef uint16_t before, event, now
    # Full: used.idx was stored, used_event is loaded; the driver does the converse.
    vr_fence_full()
    now = q.used_idx
    before = q.signalled_used
    q.signalled_used = now
    if not q.signalled_valid:       # after a start what the driver asked for may be stale
        q.signalled_valid = 1
        return True
    if not q.event_idx:
        return not vr_load_relaxed_u16(&q.avail[0]) & VRING_AVAIL_F_NO_INTERRUPT
    event = vr_load_relaxed_u16(&q.avail[2 + q.size])
    return <uint16_t> (now - event - 1) < <uint16_t> (now - before)


cdef bint split_has_work(Vring *q) noexcept nogil:
    return (vr_load_relaxed_u16(&q.avail[1]) != q.last_avail
            or q.resubmit_next < q.resubmit_count)


cdef bint split_enable_notification(Vring *q) noexcept nogil:
    """Ask the driver to kick; True if it made something available meanwhile."""
    if q.event_idx:
        vr_store_relaxed_u16(<uint16_t *> (<uint8_t *> q.used + 4 + 8 * <uint64_t> q.size),
                             q.last_avail)
        if q.log != NULL:
            mark_dirty(q.log, q.used_log_addr + 4 + 8 * <uint64_t> q.size, 2)
    elif q.notify_off:
        vr_store_relaxed_u16(&q.used[0], 0)
        q.notify_off = 0
        if q.log != NULL:
            mark_dirty(q.log, q.used_log_addr, 2)
    # Full: avail_event was stored, avail.idx is loaded; the driver does the converse.
    vr_fence_full()
    return split_has_work(q)


cdef void split_disable_notification(Vring *q) noexcept nogil:
    """Ask the driver not to kick (only without EVENT_IDX)."""
    if not q.notify_off:
        vr_store_relaxed_u16(&q.used[0], VRING_USED_F_NO_NOTIFY)
        q.notify_off = 1
        if q.log != NULL:
            mark_dirty(q.log, q.used_log_addr, 2)
