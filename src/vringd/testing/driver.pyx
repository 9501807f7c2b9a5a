"""The driver (guest) side of virtqueues, split and packed, for tests and load generators.

The work is done by the nogil functions of `driver.pxd`; `DriverQueue` is the Python face for
tests: it owns the ring's memory and the eventfds, and it judges the device.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from vringd.core.sys cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EINTR, VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC, close, errno, eventfd, vr_now_ns,
    vr_load_acquire_u16, vr_load_relaxed_u16, vr_load_relaxed_u32, vr_store_relaxed_u16,
    vr_store_relaxed_u32, vr_store_release_u16, vring_desc, vring_used_elem,
)

from vringd.testing.ring_layout import RingLayout, part_sizes


cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **memory, size_t alignment, size_t size)


cdef uint32_t FRESH_PACKED_BASE = 0x80008000   # position 0, both wrap counters 1


class DriverError(Exception):
    """The device broke a rule of the ring; the message says which and where."""


cdef void _shuffle(uint16_t *values, uint32_t n, uint32_t seed) noexcept nogil:
    """Fisher-Yates with a xorshift generator: the same order for the same seed."""
    cdef uint32_t i, j, state = seed
    cdef uint16_t value
    for i in range(n - 1, 0, -1):
        state ^= state << 13
        state ^= state >> 17
        state ^= state << 5
        j = state % (i + 1)
        value = values[i]
        values[i] = values[j]
        values[j] = value


cdef void _link_free_ids(DriverRing *dq, uint32_t scramble) noexcept nogil:
    """Make the free list: by index under split IN_ORDER (2.7.5), else in the scrambled order."""
    cdef uint32_t i
    cdef bint by_index = dq.in_order and not dq.packed
    for i in range(dq.size):
        dq.fifo[i] = <uint16_t>i
    if scramble and not by_index:
        _shuffle(dq.fifo, dq.size, scramble)
    for i in range(dq.size):
        # Circular, so that a split IN_ORDER ring goes round without relinking.
        dq.slots[dq.fifo[i]].next = dq.fifo[i + 1 if i + 1 < dq.size else 0]
    dq.free_head = dq.fifo[0]


cdef void _clear_packed(DriverRing *dq, uint32_t base) noexcept nogil:
    """Bring the ring into the state in which everything before `base` was used."""
    cdef uint32_t i
    cdef bint wrap
    dq.next_slot = <uint16_t>(base & 0x7FFF)
    dq.wrap = (base >> 15) & 1
    dq.used_slot = dq.next_slot
    dq.used_wrap = dq.wrap
    dq.kick_slot = dq.next_slot
    dq.kick_wrap = dq.wrap
    memset(dq.pdesc, 0, dq.size * sizeof(vring_desc))
    memset(dq.avail, 0, 4)
    memset(dq.used, 0, 4)
    for i in range(dq.size):
        wrap = dq.wrap if i < dq.next_slot else not dq.wrap
        dq.pdesc[i].flags = PACKED_AVAIL | PACKED_USED if wrap else 0


cdef void _clear_split(DriverRing *dq, uint16_t base) noexcept nogil:
    memset(dq.desc, 0, dq.size * sizeof(vring_desc))
    memset(dq.avail, 0, 4 + 2 * dq.size)
    memset(dq.used, 0, 4 + sizeof(vring_used_elem) * dq.size)
    dq.avail[1] = base
    dq.used[1] = base
    dq.used_event[0] = base
    dq.avail_event[0] = base
    dq.added = dq.published = dq.popped = base


cdef int dq_init(DriverRing *dq, const DqConfig *config) noexcept nogil:
    cdef uint32_t fifo_size = 1
    memset(dq, 0, sizeof(DriverRing))
    while fifo_size < config.size:
        fifo_size *= 2
    dq.desc = <vring_desc *>config.desc
    dq.pdesc = <vring_packed_desc *>config.desc
    dq.avail = <uint16_t *>config.avail
    dq.used = <uint16_t *>config.used
    dq.used_ring = <vring_used_elem *>(dq.used + 2)
    dq.size = config.size
    dq.mask = fifo_size - 1
    dq.fifo_mask = fifo_size - 1
    dq.packed = (config.flags & DQ_PACKED) != 0
    dq.event_idx = (config.flags & DQ_EVENT_IDX) != 0
    dq.in_order = (config.flags & DQ_IN_ORDER) != 0
    if not dq.packed:
        dq.used_event = dq.avail + 2 + dq.size
        dq.avail_event = <uint16_t *>(dq.used_ring + dq.size)
    dq.tables = <vring_desc *>config.tables
    dq.tables_addr = config.tables_addr
    dq.table_entries = config.table_entries if config.tables != NULL else 0
    dq.kick_fd = config.kick_fd
    dq.call_fd = config.call_fd
    dq.scramble = config.scramble
    dq.slots = <DqSlot *>calloc(dq.size, sizeof(DqSlot))
    dq.fifo = <uint16_t *>calloc(fifo_size, sizeof(uint16_t))
    if dq.slots == NULL or dq.fifo == NULL:
        dq_free(dq)
        return -1
    dq_reset(dq, config.base)
    return 0


cdef void dq_free(DriverRing *dq) noexcept nogil:
    free(dq.slots)
    free(dq.fifo)
    dq.slots = NULL
    dq.fifo = NULL


cdef void dq_reset(DriverRing *dq, uint32_t base) noexcept nogil:
    memset(dq.slots, 0, dq.size * sizeof(DqSlot))
    _link_free_ids(dq, dq.scramble)
    dq.base = base
    dq.num_free = dq.size
    dq.added = dq.published = dq.popped = 0
    dq.unkicked = 0
    dq.unpublished_slots = 0
    dq.batch_left = 0
    dq.error = DQ_OK
    if dq.packed:
        _clear_packed(dq, base)
    else:
        _clear_split(dq, <uint16_t>base)


cdef void *ram_pointer(object ram, uint64_t guest_addr, size_t size, list pins) except NULL:
    region = ram.find_region(guest_addr, size)
    view = memoryview(region.map)
    pins.append(view)
    cdef uint64_t start = region.guest_addr
    return <char *>PyMemoryView_GET_BUFFER(view).buf + (guest_addr - start)


cdef int _new_eventfd() except -1:
    cdef int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if fd < 0:
        raise OSError(errno, "eventfd failed")
    return fd


cdef uint32_t _checked_base(object base, bint packed, uint32_t size) except? 0xFFFFFFFF:
    """The start index to use. ValueError for a packed position that is not an empty ring's."""
    if base is None:
        return FRESH_PACKED_BASE if packed else 0
    cdef uint32_t value = base
    if not packed:
        if value > 0xFFFF:
            raise ValueError(f"base {value:#x} of a split ring does not fit 16 bits")
    elif value & 0xFFFF != value >> 16:
        raise ValueError(f"base {value:#x}: the used position differs from the available one")
    elif value & 0x7FFF >= size:
        raise ValueError(f"base {value:#x} lies outside a ring of {size} entries")
    return value


cdef class DriverQueue:
    def __cinit__(self):
        self.kick_fd = self.call_fd = self.err_fd = -1

    def __init__(
        self, ram, uint32_t size, *, bint packed=False, bint event_idx=True, bint indirect=True,
        bint in_order=False, base=None, layout=None, uint32_t max_indirect=32,
        uint32_t scramble=1,
    ):
        cdef DqConfig config
        if self.ram is not None:
            raise RuntimeError("a DriverQueue is initialised once")
        memset(&config, 0, sizeof(config))
        config.size = size
        config.flags = (
            (DQ_PACKED if packed else 0) | (DQ_EVENT_IDX if event_idx else 0)
            | (DQ_IN_ORDER if in_order else 0)
        )
        config.base = _checked_base(base, packed, size)
        config.scramble = scramble
        if layout is not None and (layout.size != size or layout.packed != packed):
            raise ValueError(f"the layout is for another ring: {layout}")
        self.ram = ram
        self.layout = layout
        self._own_layout = layout is None
        self._pins = []
        self.indirect = indirect and max_indirect > 0
        self.max_indirect = max_indirect if indirect else 0
        try:
            self._set_up(&config)
        except BaseException:
            self._release_memory()
            raise
        self._armed = True    # a fresh ring asks for notifications
        self._due = False

    cdef int _set_up(self, DqConfig *config) except -1:
        cdef uint32_t size = config.size
        cdef bint packed = (config.flags & DQ_PACKED) != 0
        cdef size_t tables_size = <size_t>size * self.max_indirect * sizeof(vring_desc)
        if self.layout is None:
            self.layout = RingLayout.allocate(self.ram, size, packed=packed)
        desc_size, avail_size, used_size = part_sizes(size, packed=packed)
        config.desc = ram_pointer(self.ram, self.layout.desc, desc_size, self._pins)
        config.avail = ram_pointer(self.ram, self.layout.avail, avail_size, self._pins)
        config.used = ram_pointer(self.ram, self.layout.used, used_size, self._pins)
        if self.indirect:
            self._tables_addr = self.ram.alloc(tables_size, 16)
            config.tables = ram_pointer(self.ram, self._tables_addr, tables_size, self._pins)
            config.tables_addr = self._tables_addr
            config.table_entries = self.max_indirect
        self.kick_fd = _new_eventfd()
        self.call_fd = _new_eventfd()
        self.err_fd = _new_eventfd()
        config.kick_fd = self.kick_fd
        config.call_fd = self.call_fd
        # Cache lines of its own: threads that use different rings must not share any.
        if posix_memalign(<void **>&self.dq, 64, (sizeof(DriverRing) + 63) // 64 * 64):
            self.dq = NULL
            raise MemoryError
        if dq_init(self.dq, config) < 0:
            free(self.dq)
            self.dq = NULL
            raise MemoryError
        return 0

    def _release_memory(self):
        self._pins.clear()
        try:
            if self._tables_addr:
                self.ram.free(self._tables_addr)
        finally:
            if self._own_layout and self.layout is not None:
                self.layout.free(self.ram)

    def __dealloc__(self):
        if self.dq != NULL:
            dq_free(self.dq)
            free(self.dq)
        PyMem_Free(self._segments)
        for fd in (self.kick_fd, self.call_fd, self.err_fd):
            if fd >= 0:
                close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        if self.dq == NULL:
            return
        dq_free(self.dq)
        free(self.dq)
        self.dq = NULL
        for fd in (self.kick_fd, self.call_fd, self.err_fd):
            close(fd)
        self.kick_fd = self.call_fd = self.err_fd = -1
        self._release_memory()

    def reset(self, base=None):
        self._check_open()
        dq_reset(self.dq, _checked_base(base, self.dq.packed, self.dq.size))
        for fd in (self.kick_fd, self.call_fd, self.err_fd):
            dq_take_signals(fd)
        self._armed = True    # a fresh ring asks for notifications
        self._due = False

    # State

    @property
    def size(self):
        self._check_open()
        return self.dq.size

    @property
    def packed(self):
        self._check_open()
        return bool(self.dq.packed)

    @property
    def event_idx(self):
        self._check_open()
        return bool(self.dq.event_idx)

    @property
    def in_order(self):
        self._check_open()
        return bool(self.dq.in_order)

    @property
    def base(self):
        self._check_open()
        return self.dq.base

    @property
    def features(self):
        self._check_open()
        return (
            <uint64_t>1 << VIRTIO_F_VERSION_1
            | <uint64_t>self.dq.packed << VIRTIO_F_RING_PACKED
            | <uint64_t>self.dq.in_order << VIRTIO_F_IN_ORDER
            | <uint64_t>self.dq.event_idx << VIRTIO_RING_F_EVENT_IDX
            | <uint64_t>self.indirect << VIRTIO_RING_F_INDIRECT_DESC
        )

    @property
    def num_free(self):
        self._check_open()
        return self.dq.num_free

    @property
    def in_flight(self):
        self._check_open()
        return self.dq.added - self.dq.popped

    @property
    def avail_idx(self):
        self._check_open()
        if self.dq.packed:
            return self.dq.kick_slot | self.dq.kick_wrap << 15
        return <uint16_t>self.dq.published

    @property
    def last_used_idx(self):
        self._check_open()
        if self.dq.packed:
            return self.dq.used_slot | self.dq.used_wrap << 15
        return <uint16_t>self.dq.popped

    @property
    def has_used(self):
        self._check_open()
        return bool(dq_has_used(self.dq))

    # Buffers

    def add(self, out=(), in_=(), *, bint indirect=False, uint32_t direct=0):
        cdef uint32_t n_out, n, count
        cdef int id
        cdef uint64_t token
        self._check_open()
        n_out = self._collect(out, 0)
        n = self._collect(in_, n_out)
        token = self.dq.added
        if n == 0:
            raise ValueError("a buffer needs at least one segment")
        if not indirect or direct >= n:
            if direct:
                raise ValueError("direct counts the segments before an indirect table")
            direct = n
            count = n
        else:
            if not self.indirect:
                raise ValueError("this queue was made without indirect descriptors")
            if direct and self.dq.packed:
                raise ValueError("a packed ring cannot mix direct and indirect (2.8.7)")
            if n - direct > self.max_indirect:
                raise ValueError(f"{n - direct} segments exceed max_indirect={self.max_indirect}")
            count = direct + 1
        if count > self.dq.size:
            raise ValueError(f"{count} descriptors never fit a ring of {self.dq.size}")
        id = _dq_add(self.dq, self._segments, n_out, n - n_out, direct, token)
        if id < 0:
            raise BufferError(f"{count} descriptors do not fit: {self.dq.num_free} are free")
        return token

    def publish(self):
        self._check_open()
        return dq_publish(self.dq)

    def kick_needed(self):
        self._check_open()
        return bool(dq_kick_needed(self.dq))

    def kick(self, *, bint force=False):
        self._check_open()
        cdef bint needed = dq_kick_needed(self.dq)
        if needed or force:
            dq_signal(self.kick_fd)
            return True
        return False

    def pop_used(self):
        cdef DqUsed used
        cdef int found
        self._check_open()
        found = dq_pop_used(self.dq, &used)
        if found < 0:
            raise self._fault()
        if found == 0:
            return None
        if self._armed:
            self._due = True
            self._armed = False    # an event index is spent now
        return used.cookie, used.length

    def descriptors(self, uint64_t token):
        self._check_open()
        cdef int id = self._find(token)
        cdef uint32_t at = self.dq.slots[id].edge if self.dq.packed else id
        cdef list result = []
        while len(result) < self.dq.slots[id].count:
            result.append(at)
            at = (at + 1) % self.dq.size if self.dq.packed else self.dq.slots[at].next
        return tuple(result)

    def buffer_id(self, uint64_t token):
        self._check_open()
        return self._find(token)

    def indirect_table(self, uint64_t token):
        self._check_open()
        if not self.indirect:
            raise ValueError("this queue was made without indirect descriptors")
        return self._tables_addr + <uint64_t>self._find(token) * self.max_indirect * 16

    # Notifications

    def enable_callbacks(self):
        self._check_open()
        cdef bint more
        dq_take_signals(self.call_fd)   # whatever it announced is seen by the look below
        more = dq_enable_callbacks(self.dq)
        self._armed = not more
        self._due = False
        return bool(more)

    def disable_callbacks(self):
        self._check_open()
        dq_disable_callbacks(self.dq)
        self._armed = self._due = False

    def wait(self, double timeout=5.0, *, double grace=1.0):
        self._check_open()
        cdef uint64_t deadline = vr_now_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
        cdef double left
        if self._due:
            if not self._wait_call(grace):
                raise DriverError(
                    "lost notification: a used buffer that had to be announced was not, within "
                    f"{grace} s; {self._position()}"
                )
            self._due = False
        if not self._armed and self.enable_callbacks():
            return True
        while True:
            left = (<double>deadline - <double>vr_now_ns()) / 1e9
            if self._wait_call(max(left, 0.0)):
                if dq_has_used(self.dq):
                    self._armed = False
                    return True
                self.spurious += 1
                continue
            if not dq_has_used(self.dq):
                return False
            # It was armed with nothing to be popped, so what is there now had to be announced.
            if not self._wait_call(grace):
                raise DriverError(
                    "lost notification: there are used buffers, callbacks were enabled before "
                    f"the device used them, but {grace} s later it has not notified; "
                    f"{self._position()}"
                )
            self._armed = False
            return True

    def take_notifications(self):
        self._check_open()
        cdef uint64_t count = dq_take_signals(self.call_fd)
        if count:
            self._due = False
        return count

    def take_kicks(self):
        self._check_open()
        return dq_take_signals(self.kick_fd)

    def take_error(self):
        self._check_open()
        return dq_take_signals(self.err_fd) > 0

    # Raw access, to lie to the device

    def write_desc(self, uint32_t index, uint64_t addr, uint32_t length, uint16_t flags,
                   uint16_t next):
        self._check_entry(False, index)
        self.dq.desc[index].addr = addr
        self.dq.desc[index].len = length
        self.dq.desc[index].flags = flags
        self.dq.desc[index].next = next

    def read_desc(self, uint32_t index):
        self._check_entry(False, index)
        cdef vring_desc *d = &self.dq.desc[index]
        return d.addr, d.len, d.flags, d.next

    def write_avail(self, uint16_t index, heads):
        self._check_entry(False, 0)
        for head in heads:
            self.dq.avail[2 + (index & self.dq.mask)] = head
            index += 1

    def set_avail_idx(self, uint16_t index):
        self._check_entry(False, 0)
        vr_store_release_u16(&self.dq.avail[1], index)

    def set_avail_flags(self, uint16_t flags):
        self._check_entry(False, 0)
        vr_store_relaxed_u16(&self.dq.avail[0], flags)

    def set_used_event(self, uint16_t index):
        self._check_entry(False, 0)
        vr_store_relaxed_u16(self.dq.used_event, index)

    def set_driver_event(self, uint16_t off_wrap, uint16_t flags):
        self._check_entry(True, 0)
        vr_store_relaxed_u32(self.dq.avail, off_wrap | <uint32_t>flags << 16)

    def write_packed_desc(self, uint32_t index, uint64_t addr, uint32_t length, uint16_t id,
                          uint16_t flags):
        self._check_entry(True, index)
        self.dq.pdesc[index].addr = addr
        self.dq.pdesc[index].len = length
        self.dq.pdesc[index].id = id
        vr_store_release_u16(&self.dq.pdesc[index].flags, flags)

    def read_packed_desc(self, uint32_t index):
        self._check_entry(True, index)
        cdef uint16_t flags = vr_load_acquire_u16(&self.dq.pdesc[index].flags)
        return self.dq.pdesc[index].addr, self.dq.pdesc[index].len, self.dq.pdesc[index].id, flags

    @property
    def used_idx(self):
        self._check_entry(False, 0)
        return vr_load_acquire_u16(&self.dq.used[1])

    @property
    def used_flags(self):
        self._check_entry(False, 0)
        return vr_load_relaxed_u16(&self.dq.used[0])

    @property
    def avail_event(self):
        self._check_entry(False, 0)
        return vr_load_relaxed_u16(self.dq.avail_event)

    @property
    def device_event(self):
        self._check_entry(True, 0)
        cdef uint32_t event = vr_load_relaxed_u32(self.dq.used)
        return event & 0xFFFF, event >> 16

    def read_used(self, uint16_t index):
        self._check_entry(False, 0)
        cdef vring_used_elem *e = &self.dq.used_ring[index & self.dq.mask]
        return e.id, e.len

    # Internal

    def _position(self):
        return f"last used {self.last_used_idx:#x}, available {self.avail_idx:#x}"

    cdef int _check_open(self) except -1:
        if self.dq == NULL:
            raise ValueError("this DriverQueue is closed")
        return 0

    cdef int _check_entry(self, bint packed, uint32_t index) except -1:
        self._check_open()
        if self.dq.packed != packed:
            raise ValueError(f"only for {'packed' if packed else 'split'} rings")
        if index >= self.dq.size:
            raise ValueError(f"entry {index} lies outside a ring of {self.dq.size}")
        return 0

    cdef uint32_t _collect(self, object segments, uint32_t at) except? 0xFFFFFFFF:
        """Append `segments` to the array, of which `at` are filled; returns the new fill."""
        cdef DqSegment *grown
        for addr, length in segments:
            if at == self._capacity:
                grown = <DqSegment *>PyMem_Realloc(
                    self._segments, (2 * self._capacity + 16) * sizeof(DqSegment)
                )
                if grown == NULL:
                    raise MemoryError
                self._segments = grown
                self._capacity = 2 * self._capacity + 16
            self._segments[at].addr = addr
            self._segments[at].length = length
            at += 1
        return at

    cdef int _find(self, uint64_t token) except -1:
        cdef uint32_t i
        for i in range(self.dq.size):
            if self.dq.slots[i].count and self.dq.slots[i].cookie == token:
                return i
        raise KeyError(f"no buffer with token {token} is in flight")

    cdef int _wait_call(self, double seconds) except -1:
        """Wait for the call eventfd and clear it; 1 if it was set."""
        cdef uint64_t deadline = vr_now_ns() + <uint64_t>(seconds * 1e9)
        cdef uint64_t now
        cdef int found, timeout_ms
        while True:
            now = vr_now_ns()
            # Rounded up: poll must not end before the deadline.
            timeout_ms = <int>((deadline - now + 999999) // 1000000) if now < deadline else 0
            with nogil:
                found = dq_wait_call(self.dq, timeout_ms)
            if found >= 0:
                return found
            if errno != EINTR:
                raise OSError(errno, "poll failed")
            PyErr_CheckSignals()

    cdef object _fault(self):
        cdef DriverRing *dq = self.dq
        id, value = dq.error_id, dq.error_value
        if dq.error == DQ_USED_IDX_JUMPED:
            out = dq.published - dq.popped
            text = f"used idx is {value} ahead, but only {out} buffers were in flight"
        elif dq.error == DQ_USED_WHEN_IDLE:
            text = f"slot {id} is marked used, but no buffer was in flight (flags {value:#06x})"
        elif dq.error == DQ_BAD_FLAGS:
            text = (
                f"slot {id} has flags {value:#06x}, neither available nor used under the used "
                f"wrap counter {dq.used_wrap}"
            )
        elif dq.error == DQ_ID_OUT_OF_RANGE:
            text = f"used id {id} lies outside a ring of {dq.size} entries"
        elif dq.error == DQ_ID_NOT_IN_FLIGHT:
            text = f"used id {id} is no buffer in flight: never given, or returned already"
        elif dq.error == DQ_ID_NOT_PUBLISHED:
            text = f"used id {id} was not yet made available"
        elif dq.error == DQ_TOO_LONG:
            text = (
                f"used id {id} claims {value} written bytes, but the buffer has "
                f"{dq.slots[id].in_len} writable ones"
            )
        else:
            text = (
                f"used id {id} finishes {value} buffers, but used idx advanced by less: out of "
                "order although IN_ORDER was negotiated"
            )
        return DriverError(f"{text}; {self._position()}")
