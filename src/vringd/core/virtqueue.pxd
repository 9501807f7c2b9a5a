# A virtqueue: the four verbs of a ring, whatever its layout, and the object that owns it.
#
#   while True:
#       request = vring_pop(q)
#       if request == NULL:
#           if q.broken or not vring_enable_notification(q): break      # sleep until a kick
#           continue
#       ... vring_push(q, request, bytes_written) when done, now or later ...
#   vring_publish(q); if vring_should_notify(q): interrupt the driver
#
# A ring belongs to one thread at a time, so nothing here takes a lock.

from libc.stdint cimport uint32_t, uint64_t

from vringd.core.inflight cimport InflightBuffer
from vringd.core.memory cimport DirtyLog, GuestMemory
from vringd.core.packed cimport (
    packed_disable_notification, packed_enable_notification, packed_has_work, packed_pop,
    packed_publish, packed_push, packed_should_notify, packed_undo_pop)
from vringd.core.split cimport (
    split_disable_notification, split_enable_notification, split_pop, split_publish, split_push,
    split_should_notify, split_undo_pop)
from vringd.core.stats cimport QueueStats
from vringd.core.sys cimport vr_load_relaxed_u16
from vringd.core.vring cimport Request, RingSetup, Vring


cdef void push_in_order(Vring *q, Request *req, uint32_t written) noexcept nogil


cdef inline void order_append(Vring *q, Request *req) noexcept nogil:
    """Remember the order in which chains were popped (VIRTIO_F_IN_ORDER, virtio 1.3, 2.7.9)."""
    # order_count < size: every chain in it has a slot of its own.
    q.order[(q.order_head + q.order_count) % q.size] = req.slot
    q.order_count += 1
    req.done = 0


cdef inline Request *vring_pop(Vring *q) noexcept nogil:
    """Take the next available chain; NULL when there is none or the ring is broken."""
    cdef Request *req = packed_pop(q) if q.packed else split_pop(q)
    if q.in_order and req != NULL:
        order_append(q, req)
    return req


cdef inline void vring_undo_pop(Vring *q, Request *req) noexcept nogil:
    """Put back the chain popped last, untouched."""
    if q.in_order:
        q.order_count -= 1
    if q.packed:
        packed_undo_pop(q, req)
    else:
        split_undo_pop(q, req)


cdef inline void vring_push(Vring *q, Request *req, uint32_t written) noexcept nogil:
    """Return a chain, with the number of bytes written to it; vring_publish shows it."""
    if q.in_order:
        push_in_order(q, req, written)
    elif q.packed:
        packed_push(q, req, written)
    else:
        split_push(q, req, written)


cdef inline void vring_publish(Vring *q) noexcept nogil:
    """Show the driver everything pushed so far (call only if q.used_pending)."""
    if q.packed:
        packed_publish(q)
    else:
        split_publish(q)


cdef inline bint vring_should_notify(Vring *q) noexcept nogil:
    """Whether the driver wants an interrupt for what was published since the last call."""
    return packed_should_notify(q) if q.packed else split_should_notify(q)


cdef inline bint vring_enable_notification(Vring *q) noexcept nogil:
    """Ask for a kick; True if something is available after all, so that no sleep may follow."""
    return packed_enable_notification(q) if q.packed else split_enable_notification(q)


cdef inline void vring_disable_notification(Vring *q) noexcept nogil:
    """Ask the driver not to kick. On a split ring with EVENT_IDX nothing is to be done: an
    avail_event that the driver has passed asks for no kick until it is moved."""
    if q.packed:
        packed_disable_notification(q)
    elif not q.event_idx:
        split_disable_notification(q)


cdef inline bint vring_has_work(Vring *q) noexcept nogil:
    """Whether vring_pop would find something: one load."""
    if q.packed:
        return packed_has_work(q)
    return (vr_load_relaxed_u16(&q.avail[1]) != q.last_avail
            or q.resubmit_next < q.resubmit_count)


cdef class OwnedFd:
    cdef int fd


cdef class Virtqueue:
    cdef Vring *ring                    # on cache lines of its own
    cdef readonly int index, size
    cdef readonly QueueStats stats
    cdef readonly uint64_t features
    cdef GuestMemory memory
    cdef DirtyLog log
    cdef InflightBuffer inflight
    cdef uint64_t desc, avail, used     # addresses in the front-end
    cdef object log_addr
    cdef RingSetup current              # what the ring has once all updates sent are applied
    cdef OwnedFd kick, call, err
    cdef tuple prepare(self, GuestMemory memory, object log, object log_addr, object call_fd,
                       object enabled)
    cdef int set_base(self, uint32_t base) except -1
    cdef int resolve(self, GuestMemory memory, DirtyLog log, object log_addr,
                     RingSetup *setup) except -1
    cdef int recover_split(self) except -1
    cdef int recover_packed(self) except -1
