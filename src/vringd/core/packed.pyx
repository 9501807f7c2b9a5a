"""The device side of a packed virtqueue (virtio 1.3, section 2.8).

One ring of descriptors serves both ways. A descriptor is available when its AVAIL bit equals the
driver's wrap counter and its USED bit does not; it is used when both equal the device's wrap
counter. Positions count ring entries and wrap at the ring's size, which needs not be a power of
two.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from vringd.core.inflight cimport DescStatePacked, InflightPacked, packed_states
from vringd.core.memory cimport mark_dirty, translate
from vringd.core.sys cimport (
    VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_PACKED_EVENT_FLAG_DESC,
    VRING_PACKED_EVENT_FLAG_DISABLE, VRING_PACKED_EVENT_FLAG_ENABLE, vr_fence_compiler,
    vr_fence_full, vr_likely, vr_load_acquire_u16, vr_load_relaxed_u16, vr_store_relaxed_u16,
    vr_store_relaxed_u32, vr_store_relaxed_u8, vr_store_release_u16, vr_unlikely,
    vring_packed_desc)
from vringd.core.vring cimport (
    BROKEN_EMPTY_CHAIN, BROKEN_HEAD_BUSY, BROKEN_INDIRECT, BROKEN_LOOP, BROKEN_TOO_MANY,
    MAX_DESCRIPTORS, Request, Vring, add_segment, begin_request, break_ring, faulted, log_written)


cdef enum:
    F_AVAIL = 1 << 7            # 1 << VRING_PACKED_DESC_F_AVAIL
    F_USED = 1 << 15            # 1 << VRING_PACKED_DESC_F_USED
    EVENT_WRAP = 1 << 15        # 1 << VRING_PACKED_EVENT_F_WRAP_CTR


cdef inline bint is_available(uint16_t flags, bint wrap) noexcept nogil:
    return (flags & F_AVAIL != 0) == wrap and (flags & F_USED != 0) != wrap


cdef inline bint add_table(Vring *q, Request *req, uint64_t addr, uint32_t length) noexcept nogil:
    """Add the buffers of an indirect table (2.8.8): its entries are used in order; of their
    flags only WRITE counts."""
    cdef vring_packed_desc desc
    cdef vring_packed_desc *table
    cdef uint32_t i
    if not q.indirect or length == 0 or length % sizeof(vring_packed_desc):
        break_ring(q, BROKEN_INDIRECT)
        return False
    table = <vring_packed_desc *> translate(q.memory, addr, length, &q.table_hint)
    if table == NULL:
        break_ring(q, BROKEN_INDIRECT)
        return False
    if length // sizeof(vring_packed_desc) > MAX_DESCRIPTORS:
        # A table of empty buffers must not occupy the thread.
        break_ring(q, BROKEN_TOO_MANY)
        return False
    for i in range(length // <uint32_t> sizeof(vring_packed_desc)):
        memcpy(&desc, &table[i], sizeof(vring_packed_desc))
        vr_fence_compiler()     # not read again: the guest may rewrite it
        if desc.flags & VRING_DESC_F_INDIRECT:
            break_ring(q, BROKEN_INDIRECT)
            return False
        if not add_segment(q, req, desc.addr, desc.len, desc.flags & VRING_DESC_F_WRITE != 0):
            return False
    return True


cdef inline bint add_descriptor(Vring *q, Request *req, vring_packed_desc *desc) noexcept nogil:
    if desc.flags & VRING_DESC_F_INDIRECT:
        if desc.flags & VRING_DESC_F_NEXT or req.ndescs > 1:
            break_ring(q, BROKEN_INDIRECT)
            return False
        return add_table(q, req, desc.addr, desc.len)
    return add_segment(q, req, desc.addr, desc.len, desc.flags & VRING_DESC_F_WRITE != 0)


cdef bint resubmit(Vring *q, Request **popped) noexcept nogil:
    """Rebuild the next chain that was in flight when the daemon died from the inflight buffer:
    its ring entries may have been overwritten by used ones since."""
    cdef DescStatePacked *states = packed_states(<InflightPacked *> q.inflight)
    cdef vring_packed_desc desc
    cdef uint16_t slot = q.resubmit[q.resubmit_next]
    cdef uint16_t at = slot
    cdef Request *req = &q.requests[slot]
    cdef uint16_t count = req.ndescs    # as recover_packed checked it
    q.resubmit_next += 1
    q.resubmitted = 1
    begin_request(q, req)
    q.in_flight += 1
    req.slot = slot
    req.ndescs = 0
    popped[0] = req
    while req.ndescs < count:
        if at >= q.size:        # the front-end scribbled over its own buffer
            break_ring(q, BROKEN_HEAD_BUSY)
            return False
        desc.addr, desc.len = states[at].addr, states[at].len
        desc.id, desc.flags = states[at].id, states[at].flags
        req.ndescs += 1
        req.head = desc.id
        if not add_descriptor(q, req, &desc):
            return False
        at = states[at].next
    return True


cdef inline void track_descriptor(Vring *q, vring_packed_desc *desc, uint16_t slot,
                                  bint first) noexcept nogil:
    """Note one descriptor of the chain being popped in the inflight buffer."""
    cdef InflightPacked *inflight = <InflightPacked *> q.inflight
    cdef DescStatePacked *states = packed_states(inflight)
    cdef uint16_t at = inflight.free_head
    if first:
        states[slot].num = 0
        states[slot].counter = q.inflight_counter
        q.inflight_counter += 1
        vr_fence_compiler()
        states[slot].inflight = 1
    if at >= q.size:            # the front-end scribbled over its own buffer
        break_ring(q, BROKEN_HEAD_BUSY)
        return
    states[slot].last = at
    states[slot].num += 1
    states[at].addr, states[at].len = desc.addr, desc.len
    states[at].flags, states[at].id = desc.flags, desc.id
    inflight.free_head = states[at].next


cdef inline bint take_chain(Vring *q, Request **popped) noexcept nogil:
    """Fill popped[0] from the ring; False if nothing is available or the chain is malformed."""
    cdef Request *req
    cdef InflightPacked *inflight = NULL
    cdef vring_packed_desc desc
    cdef uint16_t at = q.last_avail
    cdef uint16_t flags, slot
    cdef bint wrap = q.avail_wrap
    if q.inflight != NULL and q.used_pending:
        # The buffer's free list has one uncommitted head only: commit it before taking from it.
        packed_publish(q)
    if vr_unlikely(q.resubmit_next < q.resubmit_count):
        return resubmit(q, popped)
    # Acquire: the driver wrote the rest of the chain before the head's flags.
    flags = vr_load_acquire_u16(&q.ring[at].flags)
    if not is_available(flags, wrap):
        return False
    if vr_unlikely(q.claimed >= q.size or q.free_count == 0):
        # Chains that take up the whole ring are in flight, so an entry was reused.
        break_ring(q, BROKEN_HEAD_BUSY)
        return False
    if q.inflight != NULL:
        inflight = <InflightPacked *> q.inflight
        slot = inflight.old_free_head
        if slot >= q.size or q.requests[slot].in_flight:
            break_ring(q, BROKEN_HEAD_BUSY)
            return False
        q.free_count -= 1
    else:
        q.free_count -= 1
        slot = q.free_slots[q.free_count]
    req = &q.requests[slot]
    popped[0] = req
    begin_request(q, req)
    q.in_flight += 1
    req.slot = slot
    req.ndescs = 0
    while True:
        memcpy(&desc, &q.ring[at], sizeof(vring_packed_desc))
        vr_fence_compiler()     # not read again: the guest may rewrite it
        req.ndescs += 1
        req.head = desc.id      # the id of the chain's last descriptor is the buffer's
        if q.inflight != NULL:
            track_descriptor(q, &desc, slot, req.ndescs == 1)
        if not add_descriptor(q, req, &desc):
            return False
        at += 1                 # at < size <= 2^15 before, so this cannot wrap
        if at == q.size:
            at = 0
            wrap = not wrap
        if not desc.flags & VRING_DESC_F_NEXT:
            break
        if req.ndescs + q.claimed >= q.size:
            break_ring(q, BROKEN_HEAD_BUSY if q.claimed else BROKEN_LOOP)
            return False
    # Relaxed, not plain: the control plane may look (Virtqueue.base).
    vr_store_relaxed_u16(&q.last_avail, at)
    vr_store_relaxed_u8(&q.avail_wrap, wrap)
    q.claimed += req.ndescs
    q.resubmitted = 0
    if inflight != NULL:
        inflight.old_free_head = inflight.free_head
    return True


cdef Request *packed_pop(Vring *q) noexcept nogil:
    """The next available chain, or NULL: nothing is available, or the ring is broken."""
    cdef Request *req = NULL
    if vr_likely(take_chain(q, &req)):
        if vr_likely(q.broken == 0 and not faulted(q)):
            if vr_likely(req.out_iovs + req.in_iovs != 0):
                return req
            break_ring(q, BROKEN_EMPTY_CHAIN)
    if req != NULL:
        # Nobody will ever complete it: a drain must not wait for it.
        req.in_flight = 0
        q.in_flight -= 1
    return NULL


cdef void packed_undo_pop(Vring *q, Request *req) noexcept nogil:
    """Give back the chain popped last: the next pop returns it again."""
    cdef InflightPacked *inflight
    cdef DescStatePacked *states
    req.in_flight = 0
    q.in_flight -= 1
    if q.resubmitted:           # still in flight as far as the inflight buffer is concerned
        q.resubmit_next -= 1
        return
    q.claimed -= req.ndescs
    if q.last_avail < req.ndescs:
        q.last_avail = <uint16_t> (q.last_avail + q.size - req.ndescs)
        q.avail_wrap = not q.avail_wrap
    else:
        q.last_avail -= req.ndescs
    if q.inflight != NULL:
        if q.used_pending:      # as in take_chain: the free list is to be changed
            packed_publish(q)
        inflight = <InflightPacked *> q.inflight
        states = packed_states(inflight)
        # The entries of the chain still link to one another in the order that they were taken.
        if states[req.slot].last < q.size:
            states[states[req.slot].last].next = inflight.free_head
        vr_fence_compiler()
        inflight.free_head = inflight.old_free_head = req.slot
        vr_fence_compiler()     # an entry on the free list is not in flight, whatever it says
        states[req.slot].inflight = 0
        q.free_count += 1
    else:
        q.free_slots[q.free_count] = req.slot
        q.free_count += 1


cdef void packed_push(Vring *q, Request *req, uint32_t written) noexcept nogil:
    """Write req's used descriptor; the driver sees it after packed_publish.

    Between used_idx and last_avail the ring is ours, and req's own entries are among them, so the
    entry written here is never one that the driver still owns.
    """
    cdef InflightPacked *inflight
    cdef DescStatePacked *states
    cdef uint32_t at = <uint32_t> q.used_idx + q.used_pending
    cdef bint wrap = q.used_wrap
    cdef uint16_t flags
    if at >= q.size:            # used_pending <= size, so once is enough
        at -= q.size
        wrap = not wrap
    if q.log != NULL:
        log_written(q, req)
    # 2.8.7: WRITE in a used descriptor says that len bytes were written.
    flags = (F_AVAIL | F_USED) if wrap else 0
    if written:
        flags |= VRING_DESC_F_WRITE
    vr_store_relaxed_u16(&q.ring[at].id, req.head)
    vr_store_relaxed_u32(&q.ring[at].len, written)
    if q.pending_heads == 0:    # the first one is made visible last
        q.first_pending_idx = <uint16_t> at
        q.first_pending_flags = flags
    else:
        # Release: id and len before flags, for a driver that reads this one after the first.
        vr_store_release_u16(&q.ring[at].flags, flags)
    if q.log != NULL:           # after the stores: a page copied in between is copied again
        mark_dirty(q.log, q.used_log_addr + 16 * <uint64_t> at, 16)
    if q.inflight != NULL:
        inflight = <InflightPacked *> q.inflight
        states = packed_states(inflight)
        if states[req.slot].last < q.size:
            states[states[req.slot].last].next = inflight.free_head
        vr_fence_compiler()
        inflight.free_head = req.slot
        q.batch[q.pending_heads] = req.slot
        q.free_count += 1
    else:
        q.free_slots[q.free_count] = req.slot
        q.free_count += 1
    q.pending_heads += 1
    q.used_pending += req.ndescs
    req.in_flight = 0
    q.in_flight -= 1


cdef void packed_publish(Vring *q) noexcept nogil:
    """Make the used descriptors written since the last call visible to the driver."""
    cdef InflightPacked *inflight = NULL
    cdef DescStatePacked *states
    cdef uint32_t used = <uint32_t> q.used_idx + q.used_pending
    cdef uint8_t wrap = q.used_wrap
    cdef uint16_t i
    if used >= q.size:
        used -= q.size
        wrap ^= 1
    if q.inflight != NULL:
        inflight = <InflightPacked *> q.inflight
        inflight.used_idx = <uint16_t> used
        inflight.used_wrap_counter = wrap
        vr_fence_compiler()
    # Release: everything of the batch, and the data, before the flags of its first entry.
    vr_store_release_u16(&q.ring[q.first_pending_idx].flags, q.first_pending_flags)
    if q.log != NULL:
        mark_dirty(q.log, q.used_log_addr + 16 * <uint64_t> q.first_pending_idx, 16)
    if inflight != NULL:
        states = packed_states(inflight)
        vr_fence_compiler()
        for i in range(q.pending_heads):
            states[q.batch[i]].inflight = 0
        vr_fence_compiler()
        inflight.old_free_head = inflight.free_head
        inflight.old_used_idx = inflight.used_idx
        inflight.old_used_wrap_counter = inflight.used_wrap_counter
    q.unsignalled += q.pending_heads
    q.fresh_entries += q.used_pending
    q.claimed -= q.used_pending
    vr_store_relaxed_u16(&q.used_idx, <uint16_t> used)
    vr_store_relaxed_u8(&q.used_wrap, wrap)
    q.used_pending = 0
    q.pending_heads = 0


cdef void packed_forget_unpublished(Vring *q) noexcept nogil:
    """Make the entries of chains in flight look available again.

    A predecessor that was killed before it had published a batch has left used flags in it, but
    for the first entry. The driver would take them for ours as soon as we publish the entry in
    front of them. The entries are ours (see packed_push), so the driver writes none of them now.
    """
    cdef uint32_t _i, at = q.used_idx
    cdef bint wrap = q.used_wrap
    cdef uint16_t flags
    for _i in range(q.claimed):
        flags = vr_load_relaxed_u16(&q.ring[at].flags)
        if (flags & F_AVAIL != 0) == wrap and (flags & F_USED != 0) == wrap:
            vr_store_relaxed_u16(&q.ring[at].flags,
                                 <uint16_t> ((flags & ~(F_AVAIL | F_USED))
                                             | (F_AVAIL if wrap else F_USED)))
            if q.log != NULL:
                mark_dirty(q.log, q.used_log_addr + 16 * <uint64_t> at, 16)
        at += 1
        if at == q.size:
            at = 0
            wrap = not wrap


cdef bint packed_should_notify(Vring *q) noexcept nogil:
    """Whether the driver wants to be told of what was published since the last call (2.8.10)."""
    cdef uint16_t off_wrap, flags, before, event, now
    cdef uint32_t entries = q.fresh_entries
    # Full: flags of used descriptors were stored, the driver's event area is loaded.
    vr_fence_full()
    now = q.used_idx
    before = q.signalled_used
    q.signalled_used = now
    q.fresh_entries = 0
    flags = vr_load_acquire_u16(&q.driver_event.flags) & 3
    if not q.signalled_valid:
        q.signalled_valid = 1
        return True
    if flags == VRING_PACKED_EVENT_FLAG_DISABLE:
        return False
    if flags != VRING_PACKED_EVENT_FLAG_DESC or not q.event_idx:
        return True
    if entries >= q.size:       # a lap or more: every position was passed
        return True
    off_wrap = vr_load_relaxed_u16(&q.driver_event.off_wrap)
    event = off_wrap & <uint16_t> ~EVENT_WRAP
    # Distances are taken on a line: an offset of the previous lap is size entries back.
    if (off_wrap & EVENT_WRAP != 0) != q.used_wrap:
        event = <uint16_t> (event - q.size)
    if before > now:            # the batch itself wrapped
        before = <uint16_t> (before - q.size)
    return <uint16_t> (now - event - 1) < <uint16_t> (now - before)


cdef bint packed_has_work(Vring *q) noexcept nogil:
    return (is_available(vr_load_relaxed_u16(&q.ring[q.last_avail].flags), q.avail_wrap)
            or q.resubmit_next < q.resubmit_count)


cdef bint packed_enable_notification(Vring *q) noexcept nogil:
    """Ask the driver to kick; True if it made something available meanwhile."""
    if q.event_idx:
        vr_store_relaxed_u16(&q.device_event.off_wrap,
                             q.last_avail | (EVENT_WRAP if q.avail_wrap else 0))
        # Release: off_wrap before the flags that make it count.
        vr_store_release_u16(&q.device_event.flags, VRING_PACKED_EVENT_FLAG_DESC)
    else:
        vr_store_relaxed_u16(&q.device_event.flags, VRING_PACKED_EVENT_FLAG_ENABLE)
    q.notify_off = 0
    if q.log != NULL:
        mark_dirty(q.log, q.event_log_addr, 4)
    # Full: the event area was stored, the descriptor is loaded; the driver does the converse.
    vr_fence_full()
    return packed_has_work(q)


cdef void packed_disable_notification(Vring *q) noexcept nogil:
    if not q.notify_off:
        vr_store_relaxed_u16(&q.device_event.flags, VRING_PACKED_EVENT_FLAG_DISABLE)
        q.notify_off = 1
        if q.log != NULL:
            mark_dirty(q.log, q.event_log_addr, 4)
