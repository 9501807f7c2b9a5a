# The driver (guest) side of a virtqueue, split and packed: virtio 1.3, sections 2.7 and 2.8.
#
# A DriverRing belongs to one thread at a time. Loop of a user, all without the GIL:
#
#     dq_add(dq, segments, n_out, n_in, cookie)     # as often as there is room
#     dq_publish(dq)                                # the device may see them now
#     if dq_kick_needed(dq): dq_signal(dq.kick_fd)
#     while dq_pop_used(dq, &used) == 1: ...        # used.cookie, used.length
#     if not dq_enable_callbacks(dq): dq_wait_call(dq, timeout_ms)
#
# The device is not trusted: what the driver must remember stands in its own memory and nothing
# is ever read back from a descriptor that it wrote, so a lying device ends in dq.error.

from libc.stdint cimport uint16_t, uint32_t, uint64_t

from vringd.core.sys cimport (
    POLLIN, VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT,
    VRING_DESC_F_WRITE, VRING_PACKED_EVENT_FLAG_DESC, VRING_PACKED_EVENT_FLAG_DISABLE,
    VRING_PACKED_EVENT_FLAG_ENABLE, VRING_USED_F_NO_NOTIFY, read, vr_fence_full,
    vr_load_acquire_u16, vr_load_relaxed_u16, vr_load_relaxed_u32, vr_store_relaxed_u16,
    vr_store_relaxed_u32, vr_store_release_u16, vr_unlikely, vring_desc, vring_packed_desc,
    vring_used_elem, write,
)


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long nfds, int timeout_ms)


cdef enum:
    PACKED_AVAIL = 1 << 7       # VRING_PACKED_DESC_F_AVAIL and _USED are bit numbers
    PACKED_USED = 1 << 15
    POISON = 0xFFFF             # in fields that the device must not look at


cdef enum:
    # Why dq_pop_used refused: dq.error; dq.error_id and dq.error_value tell the details.
    DQ_OK = 0
    DQ_USED_IDX_JUMPED = 1      # error_value: how many entries used.idx claims
    DQ_USED_WHEN_IDLE = 2       # packed: error_id: the slot
    DQ_BAD_FLAGS = 3            # packed: error_id: the slot, error_value: its flags
    DQ_ID_OUT_OF_RANGE = 4
    DQ_ID_NOT_IN_FLIGHT = 5
    DQ_ID_NOT_PUBLISHED = 6
    DQ_TOO_LONG = 7             # error_value: the length
    DQ_OUT_OF_ORDER = 8         # IN_ORDER split: error_value: buffers that this id would finish


cdef enum:
    DQ_PACKED = 1
    DQ_EVENT_IDX = 2
    DQ_IN_ORDER = 4


cdef struct DqSegment:
    uint64_t addr               # guest address
    uint32_t length             # bytes


cdef struct DqUsed:
    uint64_t cookie             # as given to dq_add
    uint32_t length             # bytes that the device says it wrote
    uint16_t id                 # head descriptor (split) or buffer id (packed)


cdef struct DqSlot:
    # What the driver remembers of the buffer with this id; `next` is per descriptor (split).
    uint64_t cookie
    uint64_t seq                # 0, 1, 2... in the order of dq_add, from the ring's start index
    uint64_t in_len             # device-writable bytes
    uint16_t count              # descriptors taken from the ring; 0: not in flight
    uint16_t edge               # split: the last descriptor of the chain; packed: its first slot
    uint16_t next               # split: the next descriptor of the chain; free list


cdef struct DqConfig:
    uint32_t size               # entries; split: a power of two; at most 32768
    uint32_t flags              # DQ_*
    uint32_t base               # start state as in SET_VRING_BASE
    uint32_t scramble           # seed to shuffle descriptor ids with; 0: ascending
    void *desc
    void *avail                 # packed: driver event area
    void *used                  # packed: device event area
    void *tables                # size * table_entries indirect descriptors, or NULL
    uint64_t tables_addr        # their guest address
    uint32_t table_entries
    int kick_fd
    int call_fd


cdef struct DriverRing:
    # Set once
    vring_desc *desc            # split
    vring_packed_desc *pdesc    # packed: the same address
    uint16_t *avail             # flags, idx, ring[size], used_event; packed: off_wrap, flags
    uint16_t *used              # flags, idx, ...; packed: off_wrap, flags
    vring_used_elem *used_ring
    uint16_t *used_event        # written by us
    uint16_t *avail_event       # written by the device
    vring_desc *tables
    uint64_t tables_addr
    uint32_t table_entries
    uint32_t size
    uint32_t mask               # size - 1 where size is a power of two (always in split rings)
    uint32_t fifo_mask
    bint packed
    bint event_idx
    bint in_order
    int kick_fd
    int call_fd
    uint32_t base
    uint32_t scramble
    DqSlot *slots
    uint16_t *fifo              # IN_ORDER: ids by seq
    # Adding
    uint64_t added              # buffers ever added; low 16 bits are the split avail index
    uint64_t published          # of these, visible to the device
    uint32_t num_free           # descriptors
    uint16_t free_head          # split: descriptor; packed: buffer id
    uint16_t next_slot          # packed: where the next descriptor goes
    uint16_t wrap               # packed: the driver ring wrap counter there
    uint16_t first_slot         # packed: head of the first unpublished buffer...
    uint16_t first_flags        # ...and the flags that will publish it
    uint32_t unpublished_slots  # packed: descriptors of the unpublished buffers
    uint32_t unkicked           # entries published since dq_kick_needed last looked
    uint16_t kick_slot          # packed: published position
    uint16_t kick_wrap
    # Taking back
    uint64_t popped             # buffers ever taken back; low 16 bits: split used index
    uint16_t used_slot          # packed: where the device writes next
    uint16_t used_wrap
    uint32_t batch_left         # IN_ORDER: buffers that the used element last read still covers
    uint32_t batch_len          # and the length that it gave for the last of them
    # The device's fault
    int error                   # DQ_*; stays until dq_reset
    uint32_t error_id
    uint64_t error_value


# 0, or -1 when memory is short. Zeroes and initialises the ring in guest memory.
cdef int dq_init(DriverRing *dq, const DqConfig *config) noexcept nogil
cdef void dq_free(DriverRing *dq) noexcept nogil
# Back to an empty ring at `base`, as after a device reset; buffers in flight are forgotten.
cdef void dq_reset(DriverRing *dq, uint32_t base) noexcept nogil


cdef inline void _dq_fill_table(
    DriverRing *dq, uint16_t id, const DqSegment *segments, uint32_t n, uint32_t n_out,
) noexcept nogil:
    """Write the indirect table of buffer `id`; a packed one is linked only by its order."""
    cdef vring_desc *table = dq.tables + <size_t>id * dq.table_entries
    cdef uint16_t link = 0 if dq.packed else <uint16_t>VRING_DESC_F_NEXT
    cdef uint32_t k
    cdef uint16_t flags
    for k in range(n):
        flags = <uint16_t>VRING_DESC_F_WRITE if k >= n_out else 0
        table[k].addr = segments[k].addr
        table[k].len = segments[k].length
        if link == 0:
            (<vring_packed_desc *>table)[k].id = POISON
            (<vring_packed_desc *>table)[k].flags = flags
        else:
            table[k].flags = flags | link if k + 1 < n else flags
            table[k].next = <uint16_t>(k + 1) if k + 1 < n else <uint16_t>POISON


cdef inline uint16_t _dq_flags(uint32_t k, uint32_t count, uint32_t n_out) noexcept nogil:
    """Flags of segment `k` of `count`."""
    return (
        (<uint16_t>VRING_DESC_F_WRITE if k >= n_out else 0)
        | (<uint16_t>VRING_DESC_F_NEXT if k + 1 < count else 0)
    )


cdef inline void _dq_fill_split(
    DriverRing *dq, uint16_t id, const DqSegment *segments, uint32_t n_direct, uint32_t n_out,
    const DqSegment *table,
) noexcept nogil:
    """Write a chain of `n_direct` segments and, unless it is NULL, the descriptor of a table."""
    cdef vring_desc *desc = dq.desc
    cdef const DqSlot *slots = dq.slots
    cdef uint32_t count = n_direct + (table != NULL)
    cdef uint32_t k
    cdef uint16_t at = id
    cdef uint16_t last = id
    for k in range(n_direct):
        desc[at].addr = segments[k].addr
        desc[at].len = segments[k].length
        desc[at].flags = _dq_flags(k, count, n_out)
        last = at
        at = slots[at].next
        desc[last].next = at
    if table != NULL:
        desc[at].addr = table.addr
        desc[at].len = table.length
        desc[at].flags = <uint16_t>VRING_DESC_F_INDIRECT
        last = at
        at = slots[at].next
    desc[last].next = POISON
    dq.slots[id].edge = last
    dq.free_head = at
    dq.avail[2 + (dq.added & dq.mask)] = id


cdef inline void _dq_fill_packed(
    DriverRing *dq, uint16_t id, const DqSegment *segments, uint32_t count, uint32_t n_out,
    const DqSegment *table,
) noexcept nogil:
    """Write a chain of `count` segments, or the one descriptor of a table."""
    cdef vring_packed_desc *desc = dq.pdesc
    cdef uint32_t size = dq.size
    cdef uint32_t k
    cdef uint16_t at = dq.next_slot
    cdef uint16_t wrap = dq.wrap
    cdef uint16_t flags
    cdef bint first = dq.added == dq.published
    dq.slots[id].edge = at
    dq.free_head = dq.slots[id].next
    for k in range(count):
        flags = <uint16_t>PACKED_AVAIL if wrap else <uint16_t>PACKED_USED
        if table != NULL:
            desc[at].addr = table.addr
            desc[at].len = table.length
            flags |= <uint16_t>VRING_DESC_F_INDIRECT
        else:
            desc[at].addr = segments[k].addr
            desc[at].len = segments[k].length
            flags |= _dq_flags(k, count, n_out)
        # The id counts in the last descriptor only (2.8.6).
        desc[at].id = id if k + 1 == count else <uint16_t>POISON
        # The first unpublished head is what the device waits for: dq_publish sets its flags after
        # all the others, in one store for the whole batch. Until then the slot keeps flags of an
        # earlier lap, which do not say "available" under the present counter.
        if first:
            first = False
            dq.first_slot = at
            dq.first_flags = flags
        else:
            desc[at].flags = flags
        at += 1
        if at == size:
            at = 0
            wrap ^= 1
    dq.next_slot = at
    dq.wrap = wrap
    dq.unpublished_slots += count


cdef inline int _dq_add(
    DriverRing *dq, const DqSegment *segments, uint32_t n_out, uint32_t n_in, uint32_t n_direct,
    uint64_t cookie,
) noexcept nogil:
    """Add with the first `n_direct` segments in the ring and the others in an indirect table."""
    cdef uint32_t n = n_out + n_in
    cdef uint32_t count = n if n_direct == n else n_direct + 1
    cdef uint32_t k
    cdef uint64_t in_len = 0
    cdef uint16_t id = dq.free_head
    cdef DqSegment table
    cdef const DqSegment *table_or_null = NULL
    cdef DqSlot *slot = &dq.slots[id]
    if count > dq.num_free or n == 0:
        return -1
    if n_direct < n:
        if n - n_direct > dq.table_entries:
            return -1
        _dq_fill_table(
            dq, id, segments + n_direct, n - n_direct, n_out - n_direct if n_out > n_direct else 0
        )
        table.addr = dq.tables_addr + <uint64_t>id * dq.table_entries * sizeof(vring_desc)
        table.length = (n - n_direct) * <uint32_t>sizeof(vring_desc)
        table_or_null = &table
    for k in range(n_out, n):
        in_len += segments[k].length
    if dq.packed:
        _dq_fill_packed(dq, id, segments, count, n_out, table_or_null)
    else:
        _dq_fill_split(dq, id, segments, n_direct, n_out, table_or_null)
    slot.cookie = cookie
    slot.seq = dq.added
    slot.in_len = in_len
    slot.count = <uint16_t>count
    if dq.in_order:
        dq.fifo[dq.added & dq.fifo_mask] = id
    dq.num_free -= count
    dq.added += 1
    return id


cdef inline int dq_add(
    DriverRing *dq, const DqSegment *segments, uint32_t n_out, uint32_t n_in, uint64_t cookie,
) noexcept nogil:
    """Add a buffer of `n_out` device-readable, then `n_in` device-writable segments.

    Returns its id, or -1 when the ring is too full (or there is no segment). Invisible to the
    device until dq_publish.
    """
    return _dq_add(dq, segments, n_out, n_in, n_out + n_in, cookie)


cdef inline int dq_add_indirect(
    DriverRing *dq, const DqSegment *segments, uint32_t n_out, uint32_t n_in, uint64_t cookie,
) noexcept nogil:
    """As dq_add, in one ring entry; -1 also when the table is too small for the segments."""
    return _dq_add(dq, segments, n_out, n_in, 0, cookie)


cdef inline uint32_t dq_publish(DriverRing *dq) noexcept nogil:
    """Make the added buffers visible; returns how many."""
    cdef uint32_t n = <uint32_t>(dq.added - dq.published)
    if n == 0:
        return 0
    # Release: whoever sees the index (or the first head's flags) sees the descriptors, the ring
    # entries and the buffers' contents.
    if dq.packed:
        vr_store_release_u16(&dq.pdesc[dq.first_slot].flags, dq.first_flags)
        dq.unkicked += dq.unpublished_slots
        dq.unpublished_slots = 0
        dq.kick_slot = dq.next_slot
        dq.kick_wrap = dq.wrap
    else:
        vr_store_release_u16(&dq.avail[1], <uint16_t>dq.added)
        dq.unkicked += n
    dq.published = dq.added
    return n


cdef inline bint dq_kick_needed(DriverRing *dq) noexcept nogil:
    """Whether the device asked to be told of what was published since the last call.

    Asking consumes: the caller must kick if the answer is true.
    """
    cdef uint32_t n = dq.unkicked
    cdef uint32_t event, flags, position, wanted
    cdef uint16_t new
    dq.unkicked = 0
    if n == 0:
        return False
    # Full: the store of the index (flags) must be visible before the event word is read, or both
    # sides could miss each other; see the device's fence between its event and its last look.
    vr_fence_full()
    if not dq.packed:
        if not dq.event_idx:
            return not vr_load_relaxed_u16(&dq.used[0]) & <uint16_t>VRING_USED_F_NO_NOTIFY
        new = <uint16_t>dq.published
        return n > 0xFFFF or (
            <uint16_t>(new - vr_load_relaxed_u16(dq.avail_event) - 1) < <uint16_t>n
        )
    event = vr_load_relaxed_u32(dq.used)   # one load: offset and flags belong together
    flags = (event >> 16) & 3
    if flags != <uint32_t>VRING_PACKED_EVENT_FLAG_DESC or not dq.event_idx:
        return flags != <uint32_t>VRING_PACKED_EVENT_FLAG_DISABLE
    # Positions on a circle of two laps, the one with wrap counter 1 first.
    position = dq.kick_slot + (0 if dq.kick_wrap else dq.size)
    wanted = (event & 0x7FFF) + (0 if event & 0x8000 else dq.size)
    if wanted >= 2 * dq.size:
        return True    # no such position: better a kick too many
    position += 2 * dq.size if position <= wanted else 0
    return position - wanted - 1 < n


cdef inline bint dq_has_used(const DriverRing *dq) noexcept nogil:
    """Whether dq_pop_used would find something."""
    cdef uint16_t flags, want
    if dq.batch_left:
        return True
    if not dq.packed:
        return vr_load_acquire_u16(&dq.used[1]) != <uint16_t>dq.popped
    want = <uint16_t>(PACKED_AVAIL | PACKED_USED) if dq.used_wrap else 0
    flags = vr_load_acquire_u16(&dq.pdesc[dq.used_slot].flags)
    return (flags & (PACKED_AVAIL | PACKED_USED)) == want


cdef inline int _dq_fail(DriverRing *dq, int error, uint32_t id, uint64_t value) noexcept nogil:
    dq.error = error
    dq.error_id = id
    dq.error_value = value
    return -1


cdef inline int _dq_read_used(
    DriverRing *dq, uint32_t *id, uint32_t *length, uint32_t *ready,
) noexcept nogil:
    """Read the used element that is next; 1, 0 or -1. `ready`: entries that used.idx promises."""
    cdef uint16_t flags, want
    cdef uint32_t idle = dq.published == dq.popped
    if not dq.packed:
        # Acquire: the elements and the buffers' contents were written before the index.
        ready[0] = <uint16_t>(vr_load_acquire_u16(&dq.used[1]) - <uint16_t>dq.popped)
        if ready[0] == 0:
            return 0
        if vr_unlikely(ready[0] > dq.published - dq.popped):
            return _dq_fail(dq, DQ_USED_IDX_JUMPED, 0, ready[0])
        id[0] = dq.used_ring[dq.popped & dq.mask].id
        length[0] = dq.used_ring[dq.popped & dq.mask].len
        return 1
    flags = vr_load_acquire_u16(&dq.pdesc[dq.used_slot].flags)
    want = <uint16_t>(PACKED_AVAIL | PACKED_USED) if dq.used_wrap else 0
    if (flags & (PACKED_AVAIL | PACKED_USED)) != want:
        # With buffers out, this slot still has the flags that we gave it, or it was used.
        want = <uint16_t>PACKED_AVAIL if dq.used_wrap else <uint16_t>PACKED_USED
        if vr_unlikely(not idle and (flags & (PACKED_AVAIL | PACKED_USED)) != want):
            return _dq_fail(dq, DQ_BAD_FLAGS, dq.used_slot, flags)
        return 0
    if vr_unlikely(idle):
        return _dq_fail(dq, DQ_USED_WHEN_IDLE, dq.used_slot, flags)
    ready[0] = <uint32_t>(dq.published - dq.popped)
    id[0] = dq.pdesc[dq.used_slot].id
    length[0] = dq.pdesc[dq.used_slot].len if flags & VRING_DESC_F_WRITE else 0
    return 1


cdef inline int dq_pop_used(DriverRing *dq, DqUsed *result) noexcept nogil:
    """Take back a buffer: 1 and `result`, 0 if there is none, -1 if the device erred (dq.error)."""
    cdef uint32_t id = 0
    cdef uint32_t length = 0
    cdef uint32_t ready = 0
    cdef int found
    cdef DqSlot *slot
    if vr_unlikely(dq.error):
        return -1
    if dq.batch_left == 0:
        found = _dq_read_used(dq, &id, &length, &ready)
        if found != 1:
            return found
        if vr_unlikely(id >= dq.size):
            return _dq_fail(dq, DQ_ID_OUT_OF_RANGE, id, length)
        slot = &dq.slots[id]
        if vr_unlikely(slot.count == 0):
            return _dq_fail(dq, DQ_ID_NOT_IN_FLIGHT, id, length)
        if vr_unlikely(slot.seq >= dq.published):
            return _dq_fail(dq, DQ_ID_NOT_PUBLISHED, id, length)
        if vr_unlikely(length > slot.in_len):
            return _dq_fail(dq, DQ_TOO_LONG, id, length)
        if dq.in_order:
            # One element may finish all buffers up to `id` (2.7.9, 2.8.9).
            if vr_unlikely(slot.seq - dq.popped >= ready):
                return _dq_fail(dq, DQ_OUT_OF_ORDER, id, slot.seq - dq.popped + 1)
            dq.batch_left = <uint32_t>(slot.seq - dq.popped + 1)
            dq.batch_len = length
    if dq.in_order:
        id = dq.fifo[dq.popped & dq.fifo_mask]
        dq.batch_left -= 1
        # Buffers without an element of their own count as written completely.
        length = <uint32_t>dq.slots[id].in_len if dq.batch_left else dq.batch_len
    slot = &dq.slots[id]
    result.cookie = slot.cookie
    result.length = length
    result.id = <uint16_t>id
    if dq.packed:
        dq.used_slot += slot.count
        if dq.used_slot >= dq.size:
            dq.used_slot -= <uint16_t>dq.size
            dq.used_wrap ^= 1
        slot.next = dq.free_head
        dq.free_head = <uint16_t>id
    elif not dq.in_order:
        dq.slots[slot.edge].next = dq.free_head
        dq.free_head = <uint16_t>id
    dq.num_free += slot.count
    slot.count = 0
    dq.popped += 1
    return 1


cdef inline bint dq_enable_callbacks(DriverRing *dq) noexcept nogil:
    """Ask to be told of the next used buffer; true if there already are some to be popped.

    After true no notification is owed: pop first, then ask again.
    """
    cdef uint32_t event
    if dq.batch_left:
        return True
    if not dq.packed:
        if dq.event_idx:
            vr_store_relaxed_u16(dq.used_event, <uint16_t>dq.popped)
        else:
            vr_store_relaxed_u16(&dq.avail[0], 0)
    else:
        event = <uint32_t>VRING_PACKED_EVENT_FLAG_ENABLE << 16
        if dq.event_idx:
            event = <uint32_t>VRING_PACKED_EVENT_FLAG_DESC << 16
            event |= dq.used_slot | <uint32_t>dq.used_wrap << 15
        vr_store_relaxed_u32(dq.avail, event)
    # Full: the request must be visible before the last look, or a device that used a buffer in
    # between sees no request while we see no buffer.
    vr_fence_full()
    return dq_has_used(dq)


cdef inline void dq_disable_callbacks(DriverRing *dq) noexcept nogil:
    """Advise the device not to notify; a notification may come nevertheless."""
    if dq.packed:
        vr_store_relaxed_u32(dq.avail, <uint32_t>VRING_PACKED_EVENT_FLAG_DISABLE << 16)
    elif dq.event_idx:
        # As far ahead as 16 bits allow; an index in the past could still lie within the batch
        # that the device is about to announce.
        vr_store_relaxed_u16(dq.used_event, <uint16_t>(dq.popped + 0x8000))
    else:
        vr_store_relaxed_u16(&dq.avail[0], <uint16_t>VRING_AVAIL_F_NO_INTERRUPT)


cdef inline void dq_signal(int fd) noexcept nogil:
    """Add 1 to an eventfd."""
    cdef uint64_t one = 1
    write(fd, &one, sizeof(one))


cdef inline uint64_t dq_take_signals(int fd) noexcept nogil:
    """Read and clear a non-blocking eventfd; 0 if it was clear."""
    cdef uint64_t count = 0
    if read(fd, &count, sizeof(count)) != sizeof(count):
        return 0
    return count


cdef inline int dq_wait_call(DriverRing *dq, int timeout_ms) noexcept nogil:
    """Sleep until the device notifies and clear the notification.

    1: notified, 0: timeout (-1: none), -1: interrupted by a signal or failed (errno).
    """
    cdef pollfd pfd
    cdef int found
    pfd.fd = dq.call_fd
    pfd.events = <short>POLLIN
    pfd.revents = 0
    found = poll(&pfd, 1, timeout_ms)
    if found == 1:
        dq_take_signals(dq.call_fd)
    return found


# Where `ram` (a GuestRam) has guest address `guest_addr` mapped. Appends what keeps the mapping
# alive to `pins`. ValueError if the `size` bytes do not lie in one region.
cdef void *ram_pointer(object ram, uint64_t guest_addr, size_t size, list pins) except NULL


cdef class DriverQueue:
    # Another thread may use `dq` without the GIL while no method is called.
    cdef DriverRing *dq
    cdef readonly object ram
    cdef readonly object layout
    cdef readonly int kick_fd
    cdef readonly int call_fd
    cdef readonly int err_fd
    cdef readonly bint indirect
    cdef readonly uint32_t max_indirect
    cdef readonly uint64_t spurious
    cdef uint64_t _tables_addr
    cdef bint _own_layout
    cdef list _pins
    cdef DqSegment *_segments
    cdef uint32_t _capacity
    cdef bint _armed    # the next used buffer must be announced: it was not there when we asked
    cdef bint _due      # one that had to be announced was popped, the notification not yet taken

    cdef int _set_up(self, DqConfig *config) except -1
    cdef int _check_open(self) except -1
    cdef int _check_entry(self, bint packed, uint32_t index) except -1
    cdef uint32_t _collect(self, object segments, uint32_t at) except? 0xFFFFFFFF
    cdef int _find(self, uint64_t token) except -1
    cdef int _wait_call(self, double seconds) except -1
    cdef object _fault(self)
