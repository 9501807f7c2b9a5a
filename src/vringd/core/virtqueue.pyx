"""The Virtqueue object: a ring as the control plane sees it.

It is made when the front-end has described a ring completely, handed to an IOThread, taken back
drained, and thrown away. Its positions outlive it as `base`, its counters as `stats`.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free

from vringd.core.inflight cimport (
    INFLIGHT_VERSION, DescStatePacked, DescStateSplit, InflightPacked, InflightSplit,
    packed_states, split_states)
from vringd.core.memory cimport translate_user
from vringd.core.packed cimport packed_forget_unpublished
from vringd.core.sys cimport (
    F_DUPFD_CLOEXEC, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED,
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC, alloc_lines, close, errno, fcntl,
    vr_load_relaxed_u16, vr_load_relaxed_u8, vr_now_ns, vring_desc, vring_packed_desc,
    vring_packed_desc_event, vring_used_elem, write)
from vringd.core.vring cimport (
    INLINE_IOVECS, MAX_QUEUE_SIZE as MAX_SIZE, RingSetup, broken_text, install_setup)

import os

from vringd.core.watchdog import signal_eventfd

MAX_QUEUE_SIZE = MAX_SIZE


cdef class OwnedFd:
    """A duplicate of a descriptor, closed with the last reference; -1 stands for none."""

    def __cinit__(self, int fd):
        self.fd = -1
        if fd >= 0:
            self.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)
            if self.fd < 0:
                raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)


cdef void push_in_order(Vring *q, Request *req, uint32_t written) noexcept nogil:
    """Hold a completion back until all chains popped before it are complete."""
    req.done = 1
    req.written = written
    while q.order_count:
        req = &q.requests[q.order[q.order_head]]
        if not req.done:
            return
        req.done = 0
        q.order_head = <uint16_t> ((q.order_head + 1) % q.size)
        q.order_count -= 1
        if q.packed:
            packed_push(q, req, req.written)
        else:
            split_push(q, req, req.written)


cdef class Chain:
    """A popped chain, for devices written in Python and for tests: its segments as bytes."""

    cdef Request *request
    cdef bint returned
    cdef readonly Virtqueue queue

    @property
    def head(self):
        """The head descriptor (split) or the buffer id (packed)."""
        return self.request.head

    def readable(self, most=None):
        """The device-readable bytes, joined; most: no more than that many of them."""
        cdef uint32_t i
        cdef uint64_t left = <uint64_t> -1 if most is None else most
        cdef size_t here
        parts = []
        for i in range(self.request.out_iovs):
            here = <size_t> min(left, <uint64_t> self.request.segments[i].iov_len)
            parts.append((<uint8_t *> self.request.segments[i].iov_base)[:here])
            left -= here
            if left == 0:
                break
        return b"".join(parts)

    def writable_size(self):
        """Bytes of room in the device-writable segments."""
        cdef uint32_t i
        total = 0
        for i in range(self.request.out_iovs, self.request.out_iovs + self.request.in_iovs):
            total += self.request.segments[i].iov_len
        return total

    def segments(self):
        """Lengths of the segments: `(readable, writable)`."""
        lengths = [self.request.segments[i].iov_len
                   for i in range(self.request.out_iovs + self.request.in_iovs)]
        return lengths[:self.request.out_iovs], lengths[self.request.out_iovs:]

    def write(self, const uint8_t[::1] data not None):
        """Store data at the start of the writable segments; the number of bytes that fitted."""
        cdef uint32_t i
        cdef size_t done = 0, k, room
        cdef uint8_t *target
        for i in range(self.request.out_iovs, self.request.out_iovs + self.request.in_iovs):
            target = <uint8_t *> self.request.segments[i].iov_base
            room = self.request.segments[i].iov_len
            for k in range(min(room, <size_t> data.shape[0] - done)):
                target[k] = data[done + k]
            done += min(room, <size_t> data.shape[0] - done)
        return done


cdef int take_back(Virtqueue queue, Chain chain) except -1:
    if chain.queue is not queue:
        raise ValueError("the chain is another queue's")
    if chain.returned:
        raise ValueError("the chain was already pushed")
    chain.returned = True
    return 0


cdef bint is_fresh(Vring *q, uint16_t version) except -1:
    """Whether an inflight region has never been used. Raises ValueError if it is of a kind that
    came after this code."""
    if version not in (0, INFLIGHT_VERSION):
        raise ValueError(
            f"queue {q.index}: the inflight buffer has version {version}; only "
            f"{<int> INFLIGHT_VERSION} is known")
    return version == 0


cdef class Virtqueue:
    """One ring of a started device.

    index: of the queue in its device. size: entries. features: what the driver acknowledged.
    desc, avail, used: addresses in the front-end (packed: descriptor ring, driver event area,
    device event area). base: as SET_VRING_BASE gave it. kick_fd, call_fd, err_fd: eventfds or -1;
    they are duplicated. log_addr: guest address for logging writes to the used ring, or None to
    derive it. stats: counters to go on with, None for new ones.

    Raises ValueError when the description makes no sense, OSError when out of resources.
    (vhost-user specification, "Ring states" and "Vring descriptor indices for packed".)
    """

    def __cinit__(self, *args, **kwargs):
        self.ring = <Vring *> alloc_lines(sizeof(Vring))
        if self.ring == NULL:
            raise MemoryError
        self.ring.call_fd = self.ring.kick_fd = -1

    def __init__(self, int index, *, int size, uint64_t features, GuestMemory memory not None,
                 uint64_t desc, uint64_t avail, uint64_t used, uint32_t base, int kick_fd,
                 int call_fd, int err_fd, DirtyLog log=None, log_addr=None,
                 InflightBuffer inflight=None, QueueStats stats=None):
        cdef Vring *q = self.ring
        cdef int i
        if q.requests != NULL:
            raise ValueError("a Virtqueue is initialised once")
        q.packed = (features >> VIRTIO_F_RING_PACKED) & 1
        if not 1 <= size <= MAX_QUEUE_SIZE:
            raise ValueError(f"queue {index}: size {size} is not in 1..{MAX_QUEUE_SIZE}")
        if not q.packed and size & (size - 1):
            raise ValueError(f"queue {index}: size {size} is not a power of two")
        self.index, self.size, self.features = index, size, features
        self.desc, self.avail, self.used = desc, avail, used
        self.inflight = inflight
        self.stats = stats if stats is not None else QueueStats()
        q.index, q.size, q.mask = <uint16_t> index, <uint16_t> size, <uint16_t> (size - 1)
        q.event_idx = (features >> VIRTIO_RING_F_EVENT_IDX) & 1
        q.indirect = (features >> VIRTIO_RING_F_INDIRECT_DESC) & 1
        q.stats = self.stats.counters
        q.owner = <void *> self
        q.own_clock = vr_now_ns()
        q.clock = &q.own_clock
        self.kick, self.call, self.err = OwnedFd(kick_fd), OwnedFd(call_fd), OwnedFd(err_fd)
        q.kick_fd = self.kick.fd
        self.memory, self.log, self.log_addr = memory, log, log_addr
        self.current.call_fd = self.call.fd
        self.current.enabled = 1
        self.resolve(memory, log, log_addr, &self.current)
        install_setup(q, &self.current)

        q.in_order = (features >> VIRTIO_F_IN_ORDER) & 1
        q.requests = <Request *> alloc_lines(size * sizeof(Request))
        q.order = <uint16_t *> calloc(size, sizeof(uint16_t))
        q.free_slots = <uint16_t *> calloc(size, sizeof(uint16_t))
        q.batch = <uint16_t *> calloc(size, sizeof(uint16_t))
        q.resubmit = <uint16_t *> calloc(size, sizeof(uint16_t))
        if q.requests == NULL or q.free_slots == NULL or q.batch == NULL or q.resubmit == NULL or (
                q.order == NULL):
            raise MemoryError
        for i in range(size):
            q.requests[i].queue = q
            q.requests[i].slot = <uint16_t> i
            q.requests[i].segments = q.requests[i].inline_iov
            q.requests[i].iov_room = INLINE_IOVECS
            q.free_slots[i] = <uint16_t> (size - 1 - i)
        q.free_count = <uint16_t> size

        self.set_base(base)
        if inflight is not None:
            if inflight.packed != q.packed or inflight.queue_size < size:
                raise ValueError(
                    f"queue {index}: the inflight buffer is for "
                    f"{'packed' if inflight.packed else 'split'} rings of {inflight.queue_size} "
                    "entries")
            if index >= inflight.num_queues:
                raise ValueError(
                    f"queue {index}: the inflight buffer is for {inflight.num_queues} queues")
            q.inflight = inflight.region(index)
            q.inflight_broken = inflight.mapping.broken
            if q.packed:
                self.recover_packed()
            else:
                self.recover_split()
        q.signalled_used = q.used_idx
        q.notify_off = 1        # a predecessor may have left it so

    def __dealloc__(self):
        cdef Vring *q = self.ring
        cdef int i
        if q == NULL:
            return
        if q.requests != NULL:
            for i in range(self.size):
                if q.requests[i].segments != q.requests[i].inline_iov:
                    free(q.requests[i].segments)
        free(q.requests)
        free(q.free_slots)
        free(q.batch)
        free(q.resubmit)
        free(q.order)
        free(q)

    # ---- set-up -----------------------------------------------------------------------------

    cdef int resolve(self, GuestMemory memory, DirtyLog log, object log_addr,
                     RingSetup *setup) except -1:
        """Find the ring in memory and fill setup's addresses; raises ValueError if it is not
        there, and changes nothing else."""
        cdef uint64_t guest = 0, used_guest = 0, n = self.size
        cdef bint packed = self.ring.packed
        cdef uint8_t *desc
        cdef uint8_t *avail
        cdef uint8_t *used
        cdef uint64_t avail_size = 4 if packed else 6 + 2 * n
        cdef uint64_t used_size = 4 if packed else 6 + 8 * n
        names = (("descriptor ring", "driver event area", "device event area") if packed
                 else ("descriptor table", "available ring", "used ring"))
        for name, address, length, alignment in (
                (names[0], self.desc, 16 * n, 16), (names[1], self.avail, avail_size,
                                                    4 if packed else 2),
                (names[2], self.used, used_size, 4)):
            if address % alignment:
                raise ValueError(
                    f"queue {self.index}: the {name} at {address:#x} is not aligned to {alignment}")
            if translate_user(&memory.map, address, length, &guest) == NULL:
                raise ValueError(
                    f"queue {self.index}: the {name} at {address:#x} is outside the memory table")
        avail = translate_user(&memory.map, self.avail, avail_size, &guest)
        used = translate_user(&memory.map, self.used, used_size, &used_guest)
        desc = translate_user(&memory.map, self.desc, 16 * n, &guest)
        if (<uintptr_t> desc % 16 or <uintptr_t> avail % (4 if packed else 2)
                or <uintptr_t> used % 4):
            # An aligned user address in a region that is mapped at an odd offset.
            raise ValueError(f"queue {self.index}: the ring is not aligned in its memory file")
        setup.memory = &memory.map
        setup.desc, setup.ring = <vring_desc *> desc, <vring_packed_desc *> desc
        setup.avail, setup.driver_event = <uint16_t *> avail, <vring_packed_desc_event *> avail
        setup.used, setup.device_event = <uint16_t *> used, <vring_packed_desc_event *> used
        setup.used_ring = <vring_used_elem *> (used + 4)
        setup.log = NULL if log is None else &log.bitmap
        setup.log_broken = NULL if log is None else log.mapping.broken
        # The specification's log address is the split used ring's; what we write of a packed
        # ring is known by the memory table alone.
        setup.used_log_addr = guest if packed else used_guest if log_addr is None else log_addr
        setup.event_log_addr = used_guest
        return 0

    cdef int set_base(self, uint32_t base) except -1:
        cdef Vring *q = self.ring
        if q.packed:
            q.last_avail = base & 0x7fff
            q.avail_wrap = (base >> 15) & 1
            q.used_idx = (base >> 16) & 0x7fff
            q.used_wrap = (base >> 31) & 1
            if q.last_avail >= q.size or q.used_idx >= q.size:
                raise ValueError(f"queue {self.index}: base {base:#x} is outside the ring")
        else:
            if base > 0xffff:
                raise ValueError(f"queue {self.index}: base {base:#x} is more than 16 bits")
            q.last_avail = <uint16_t> base
            # Drained before it was stopped: all that was popped had been used.
            q.used_idx = vr_load_relaxed_u16(&q.used[1])
        q.avail_seen = q.last_avail
        return 0

    cdef int recover_split(self) except -1:
        """Prepare the inflight region, or learn from it what a predecessor left unfinished."""
        cdef Vring *q = self.ring
        cdef InflightSplit *region = <InflightSplit *> q.inflight
        cdef DescStateSplit *states = split_states(region)
        cdef uint16_t used = vr_load_relaxed_u16(&q.used[1]), head, i
        if is_fresh(q, region.version):
            for i in range(q.size):
                states[i].inflight = 0
            region.features = 0
            region.desc_num = q.size
            region.last_batch_head = 0
            region.used_idx = used
            region.version = INFLIGHT_VERSION
            return 0
        if region.desc_num != q.size:
            raise ValueError(
                f"queue {self.index}: the inflight buffer has {region.desc_num} entries for a "
                f"ring of {self.size}")
        # The batch that was being published when the predecessor died is done.
        head = region.last_batch_head
        for i in range(<uint16_t> (used - region.used_idx)):
            if head >= q.size or i >= q.size:
                break
            states[head].inflight = 0
            head = states[head].next
        region.used_idx = used
        heads = sorted((states[i].counter, i) for i in range(q.size) if states[i].inflight)
        for i, (counter, slot) in enumerate(heads):
            q.resubmit[i] = slot
            q.inflight_counter = counter + 1
        q.resubmit_count = <uint32_t> len(heads)
        q.used_idx = used
        q.last_avail = <uint16_t> (used + <uint16_t> len(heads))
        q.avail_seen = q.last_avail
        return 0

    cdef int recover_packed(self) except -1:
        cdef Vring *q = self.ring
        cdef InflightPacked *region = <InflightPacked *> q.inflight
        cdef DescStatePacked *states = packed_states(region)
        cdef uint16_t i, at, flags, count, wrap
        cdef uint32_t advance
        if is_fresh(q, region.version):
            for i in range(q.size):
                states[i].inflight = 0
                states[i].next = <uint16_t> (i + 1)
            region.features = 0
            region.desc_num = q.size
            region.free_head = region.old_free_head = 0
            region.used_idx = region.old_used_idx = q.used_idx
            region.used_wrap_counter = region.old_used_wrap_counter = q.used_wrap
            region.version = INFLIGHT_VERSION
            return 0
        if region.desc_num != q.size or region.old_used_idx >= q.size:
            raise ValueError(
                f"queue {self.index}: the inflight buffer has {region.desc_num} entries and used "
                f"index {region.old_used_idx} for a ring of {self.size}")
        if (region.used_idx != region.old_used_idx
                or region.used_wrap_counter != region.old_used_wrap_counter):
            # Was the first entry of the batch made visible? Then its flags are not those of an
            # available one any more, but of a used one or of one available in the next lap.
            flags = vr_load_relaxed_u16(&q.ring[region.old_used_idx].flags)
            wrap = region.old_used_wrap_counter & 1
            if (flags >> 7) & 1 != wrap or (flags >> 15) & 1 == wrap:
                region.old_free_head = region.free_head
                region.old_used_idx = region.used_idx
                region.old_used_wrap_counter = region.used_wrap_counter
        region.free_head = region.old_free_head
        region.used_idx = region.old_used_idx
        region.used_wrap_counter = region.old_used_wrap_counter
        # What is on the free list is not in flight.
        at, count = region.free_head, 0
        while at < q.size and count < q.size:
            states[at].inflight = 0
            at = states[at].next
            count += 1
        heads = sorted((states[i].counter, i) for i in range(q.size) if states[i].inflight)
        advance = 0
        for i, (counter, slot) in enumerate(heads):
            count = states[slot].num
            if count == 0 or count > q.size:
                raise ValueError(f"queue {self.index}: a corrupt inflight buffer")
            q.requests[<int> slot].ndescs = count
            q.resubmit[i] = slot
            q.inflight_counter = counter + 1
            advance += count
        if advance > q.size:
            raise ValueError(f"queue {self.index}: a corrupt inflight buffer")
        q.resubmit_count = <uint32_t> len(heads)
        q.free_count = <uint16_t> (q.size - len(heads))
        q.claimed = <uint16_t> advance
        q.used_idx = region.used_idx
        q.used_wrap = region.used_wrap_counter & 1
        q.avail_wrap = q.used_wrap
        advance += q.used_idx
        if advance >= q.size:
            advance -= q.size
            q.avail_wrap ^= 1
        q.last_avail = <uint16_t> advance
        packed_forget_unpublished(q)
        return 0

    cdef tuple prepare(self, GuestMemory memory, object log, object log_addr, object call_fd,
                       object enabled):
        """Work a change into `current`; the objects that the ring uses until it has that.

        Raises ValueError if the ring is not in the new memory: then nothing has changed.
        """
        cdef RingSetup setup = self.current
        cdef OwnedFd call = self.call if call_fd is None else OwnedFd(call_fd)
        replaced = (self.memory, self.log, self.call)
        new_memory = self.memory if memory is None else memory
        new_log = self.log if log is ... else log
        new_log_addr = self.log_addr if log_addr is ... else log_addr
        self.resolve(new_memory, new_log, new_log_addr, &setup)
        setup.call_fd = call.fd
        if enabled is not None:
            setup.enabled = bool(enabled)
        self.current = setup
        self.memory, self.log, self.log_addr, self.call = new_memory, new_log, new_log_addr, call
        return replaced

    # ---- what the control plane asks ----------------------------------------------------------

    @property
    def base(self):
        """The ring's position as GET_VRING_BASE wants it; exact while no IOThread has it."""
        cdef Vring *q = self.ring
        if not q.packed:
            return vr_load_relaxed_u16(&q.last_avail)
        return (vr_load_relaxed_u16(&q.last_avail)
                | <uint32_t> vr_load_relaxed_u8(&q.avail_wrap) << 15
                | <uint32_t> vr_load_relaxed_u16(&q.used_idx) << 16
                | <uint32_t> vr_load_relaxed_u8(&q.used_wrap) << 31)

    @property
    def broken(self):
        """Why the ring is not served any more, or None."""
        if not self.ring.broken:
            return None
        return broken_text(self.ring.broken).decode()

    @property
    def in_flight(self):
        """Requests popped and not yet pushed; exact while no IOThread has the queue."""
        return self.ring.in_flight

    @property
    def kick_fd(self):
        """The kick eventfd, -1 if there is none: to wait for, never to be read."""
        return self.kick.fd

    @property
    def packed(self):
        return bool(self.ring.packed)

    def signal_error(self):
        """Tell the front-end, through the error eventfd, that the ring is broken."""
        cdef uint64_t one = 1
        if self.err.fd >= 0:
            write(self.err.fd, &one, 8)

    # ---- the ring's verbs, for devices in Python and for tests --------------------------------
    # Not while an IOThread has the queue.

    def update(self, *, memory=None, log=..., log_addr=..., call_fd=None):
        """Replace parts of the set-up, as `IOThread.update` does for a queue that it has."""
        self.prepare(memory, log, log_addr, call_fd, None)
        install_setup(self.ring, &self.current)

    def pop(self):
        """The next available Chain, or None."""
        cdef Request *request = vring_pop(self.ring)
        cdef Chain chain
        if request == NULL:
            return None
        chain = Chain.__new__(Chain)
        chain.request = request
        chain.queue = self
        return chain

    def undo_pop(self, Chain chain not None):
        """Put back the chain popped last. Raises ValueError if it is not in flight here."""
        take_back(self, chain)
        vring_undo_pop(self.ring, chain.request)

    def push(self, Chain chain not None, uint32_t written):
        """Return a chain; written: bytes stored in its writable segments. Raises ValueError if
        it is not in flight here."""
        take_back(self, chain)
        vring_push(self.ring, chain.request, written)

    def publish(self):
        """Show everything pushed to the driver; whether the driver wants to be notified."""
        if self.ring.used_pending:
            vring_publish(self.ring)
        if not self.ring.unsignalled:
            return False
        self.ring.unsignalled = 0
        return vring_should_notify(self.ring)

    def notify(self):
        """Interrupt the driver; as `signal_eventfd`, with what it raises."""
        if self.call.fd >= 0:
            signal_eventfd(self.call.fd)

    def enable_notification(self):
        """Ask the driver to kick; whether something is available already."""
        return vring_enable_notification(self.ring)

    def disable_notification(self):
        """Ask the driver not to kick."""
        vring_disable_notification(self.ring)
