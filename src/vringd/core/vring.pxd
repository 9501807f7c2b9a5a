# The state of one virtqueue, split or packed, and of the requests in flight on it.
# virtio 1.3, sections 2.7 (split) and 2.8 (packed).

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t

from vringd.core.memory cimport DirtyBitmap, MemoryMap, map_iovec
from vringd.core.stats cimport KIND_COUNT, RingStats, latency_bucket
from vringd.core.sys cimport (
    fcntl, iovec, vr_count_u64, vr_likely, vr_load_relaxed_u32, vring_desc, vring_packed_desc,
    vring_packed_desc_event, vring_used_elem)
from vringd.core.watchdog cimport SignalSlot


cdef enum:
    INLINE_IOVECS = 6           # as many as a request of 4 data segments needs
    MAX_IOVECS = 1026           # header, status and IOV_MAX data segments
    MAX_QUEUE_SIZE = 1024       # entries that we accept; virtio allows 32768
    MAX_DESCRIPTORS = 32768     # of one chain, empty ones included: the largest ring of virtio


cdef enum Broken:               # why a ring is not served any more; texts in vring.pyx
    NOT_BROKEN
    BROKEN_AVAIL_INDEX
    BROKEN_HEAD
    BROKEN_HEAD_BUSY
    BROKEN_NEXT
    BROKEN_LOOP
    BROKEN_ORDER
    BROKEN_INDIRECT
    BROKEN_ADDRESS
    BROKEN_TOO_MANY
    BROKEN_NO_MEMORY
    BROKEN_GUEST_MEMORY
    BROKEN_RING_ADDRESS
    BROKEN_EMPTY_CHAIN
    BROKEN_REQUEST
    BROKEN_CALL


cdef struct Request:
    # One operation in flight: what finishing it needs. One for each descriptor that can be a
    # head, allocated with the ring. Between pop and push it belongs to the device and its channel.
    Request *next               # for the list of whoever holds the request
    void *queue                 # the Vring that it came from
    void *channel               # BlockChannel that serves it (borrowed)
    iovec *segments             # the chain in our memory: out_iovs to read, in_iovs to write
    uint32_t out_iovs
    uint32_t in_iovs
    iovec *iov                  # what the channel transfers: a part of segments, set by the device
    uint32_t niov
    uint16_t head               # split: head descriptor; packed: buffer id
    uint16_t slot               # index in Vring.requests
    uint16_t ndescs             # packed: ring entries that the chain occupies
    uint8_t in_flight           # popped and not pushed
    uint8_t op                  # the operation for the channel (block.backend.Op)
    uint64_t start_ns           # when it was popped
    uint64_t offset             # in the disk, bytes
    uint64_t length             # bytes
    uint8_t flags               # of the operation (block.backend.OpFlag)
    uint8_t kind                # stats.OpKind
    uint16_t step               # the device's, for operations in several steps
    uint8_t done                # IN_ORDER: completed, waits for earlier ones
    int32_t result              # 0 or a negative errno
    uint32_t written            # IN_ORDER: what push was told
    uint8_t *status             # the device's: where the status byte goes
    void *device_data           # the device's
    uint8_t phase               # the channel's: where in an operation of several steps it is
    uint64_t due_ns             # the channel's: when a timer is due
    void *private               # the channel's
    uint64_t progress           # the channel's: bytes already transferred
    uint32_t iov_room           # entries that segments can hold
    iovec inline_iov[INLINE_IOVECS]


cdef struct RingSetup:          # what the control plane may replace while the ring is served
    MemoryMap *memory
    vring_desc *desc
    uint16_t *avail
    uint16_t *used
    vring_used_elem *used_ring
    vring_packed_desc *ring
    vring_packed_desc_event *driver_event
    vring_packed_desc_event *device_event
    DirtyBitmap *log
    uint32_t *log_broken
    uint64_t used_log_addr
    uint64_t event_log_addr
    int call_fd
    uint8_t enabled


cdef struct Message:            # between the control plane and an IOThread, either way
    void *next
    uint64_t token
    void *queue                 # Vring
    void *handler               # QueueHandler
    void *channel               # Channel
    void *question              # Question
    RingSetup setup
    int64_t value
    int32_t kind
    int32_t status              # of the answer: 0 or a negative errno


cdef struct Vring:
    # ---- read for every request, written rarely
    MemoryMap *memory
    Request *requests           # [size]
    uint16_t size
    uint16_t mask               # size - 1; split rings only
    uint8_t packed
    uint8_t event_idx
    uint8_t indirect
    uint8_t in_order
    uint8_t enabled             # SET_VRING_ENABLE
    uint8_t draining            # nothing is popped; being detached
    uint8_t broken              # Broken
    uint8_t notify_off          # we told the driver not to kick (without EVENT_IDX)
    uint8_t signalled_valid     # signalled_used is what the driver knows
    uint8_t unwatching          # kick_fd's watch is being cancelled
    uint8_t watched
    int call_fd                 # -1: the driver polls
    int kick_fd                 # -1: we poll
    DirtyBitmap *log            # NULL: not migrating
    # ---- split
    vring_desc *desc
    uint16_t *avail             # flags, idx, ring[size], used_event
    uint16_t *used              # flags, idx, ring[size] of 8 bytes, avail_event
    vring_used_elem *used_ring
    # ---- packed
    vring_packed_desc *ring
    vring_packed_desc_event *driver_event
    vring_packed_desc_event *device_event
    # ---- positions
    uint16_t last_avail         # next entry to pop
    uint16_t avail_seen         # split: avail.idx as last loaded
    uint16_t used_idx           # next entry to publish
    uint16_t used_pending       # split: entries, packed: ring entries, written but not published
    uint16_t signalled_used     # used_idx at the last notification decision
    uint8_t avail_wrap
    uint8_t used_wrap
    uint8_t first_pending_wrap  # packed: flags of the first unpublished used entry
    uint16_t first_pending_flags
    uint16_t first_pending_idx
    uint16_t pending_heads      # chains in used_pending
    uint32_t in_flight          # popped and not pushed
    uint32_t table_hint         # last hits of address look-ups: indirect tables
    uint32_t header_hint        # buffers of at most 16 bytes: headers and status bytes
    uint32_t data_hint
    uint32_t faults_seen        # *faults when the mappings were last found sound
    uint32_t *faults            # SIGBUS faults of the process
    # ---- packed and in-order bookkeeping
    uint16_t *free_slots        # packed: stack of free request slots
    uint16_t free_count
    uint16_t claimed            # packed: ring entries of chains popped and not yet published
    uint32_t fresh_entries      # packed: ring entries published since the last decision to notify
    uint8_t resubmitted         # the last chain popped came from resubmit, not from the ring
    uint16_t *order             # IN_ORDER: slots in the order popped (a ring of size entries)
    uint16_t order_head
    uint16_t order_count
    uint16_t *batch             # packed with inflight: slots in used_pending
    # ---- inflight buffer
    void *inflight              # InflightSplit or InflightPacked, NULL: not negotiated
    uint64_t inflight_counter
    uint16_t *resubmit          # slots to pop again after a restart, oldest first
    uint32_t resubmit_count
    uint32_t resubmit_next
    # ---- migration log of the ring itself
    uint64_t used_log_addr      # guest address of the used ring (packed: of the ring)
    uint64_t event_log_addr     # packed: guest address of the device event area
    uint32_t *log_broken        # SIGBUS flags of the log's and the inflight buffer's mappings
    uint32_t *inflight_broken
    # ---- who serves it
    void *handler               # QueueHandler (borrowed)
    void *channel               # Channel of the owning IOThread (borrowed)
    void *owner                 # the Virtqueue object, for messages to the control plane
    uint64_t *clock             # the owning IOThread's time, ns
    uint64_t own_clock          # the time while no IOThread owns the ring
    void *detach_message        # Message to answer once drained
    SignalSlot *signals         # the owning IOThread's; NULL while there is none
    # ---- when to interrupt (core/coalescing.pxd)
    uint32_t unsignalled        # entries published since the last notification decision
    uint32_t run                # requests popped since the driver last paused
    uint32_t last_run           # and in the run before
    uint64_t last_pop_ns        # when something was last popped
    uint64_t unsignalled_since  # when unsignalled became more than 0
    uint16_t index
    # ---- accounting; requests done within the turn that popped them get their latency at its end
    uint32_t fresh[KIND_COUNT]
    RingStats *stats
    Message broken_message      # tells the control plane that the ring is broken
    uint8_t broken_told
    uint8_t served              # had requests in this turn


cdef void install_setup(Vring *q, RingSetup *setup) noexcept nogil
cdef void interrupt(Vring *q) noexcept nogil
cdef void break_ring(Vring *q, int reason) noexcept nogil
cdef bint grow_iovecs(Request *req) noexcept nogil
cdef bint look_for_fault(Vring *q) noexcept nogil
cdef void log_written(Vring *q, Request *req) noexcept nogil
cdef const char *broken_text(int reason) noexcept nogil


cdef inline bint add_segment(Vring *q, Request *req, uint64_t addr, uint32_t length,
                             bint writable) noexcept nogil:
    """Append a descriptor's buffer to the request; False (and a broken ring) if it is bad."""
    cdef uint32_t used = req.out_iovs + req.in_iovs
    cdef uint32_t *hint = &q.header_hint if length <= 16 else &q.data_hint
    cdef int n
    if length == 0:
        return True
    n = map_iovec(q.memory, addr, length, hint, req.segments + used, <int> (req.iov_room - used))
    while n < 0:
        if n == -1:
            break_ring(q, BROKEN_ADDRESS)
            return False
        if req.iov_room >= MAX_IOVECS:
            break_ring(q, BROKEN_TOO_MANY)
            return False
        if not grow_iovecs(req):
            break_ring(q, BROKEN_NO_MEMORY)
            return False
        n = map_iovec(q.memory, addr, length, hint, req.segments + used,
                      <int> (req.iov_room - used))
    if writable:
        req.in_iovs += <uint32_t> n
    elif req.in_iovs:           # virtio 1.3, 2.7.4.2: readable buffers come first
        break_ring(q, BROKEN_ORDER)
        return False
    else:
        req.out_iovs += <uint32_t> n
    return True


cdef inline bint faulted(Vring *q) noexcept nogil:
    """Whether a mapping that the ring uses met a SIGBUS; the ring is broken then."""
    return vr_load_relaxed_u32(q.faults) != q.faults_seen and look_for_fault(q)


cdef inline void begin_request(Vring *q, Request *req) noexcept nogil:
    req.out_iovs = 0
    req.in_iovs = 0
    req.in_flight = 1
    req.start_ns = q.clock[0]
    req.progress = 0


cdef inline void account(Vring *q, int kind, uint64_t start_ns, uint64_t nbytes,
                         bint failed) noexcept nogil:
    """Count a finished request. One that was popped in this very turn has its latency counted
    when the turn's end is known (settle_fresh)."""
    cdef uint64_t now = q.clock[0]
    vr_count_u64(&q.stats.kind[kind].ops, 1)
    vr_count_u64(&q.stats.kind[kind].bytes, nbytes)
    if failed:
        vr_count_u64(&q.stats.kind[kind].errors, 1)
    if start_ns == now:
        q.fresh[kind] += 1
    else:
        vr_count_u64(&q.stats.kind[kind].histogram[latency_bucket(now - start_ns)], 1)


cdef inline void settle_fresh(Vring *q, uint64_t took_ns) noexcept nogil:
    cdef int kind
    for kind in range(<int> KIND_COUNT):
        if q.fresh[kind]:
            vr_count_u64(&q.stats.kind[kind].histogram[latency_bucket(took_ns)], q.fresh[kind])
            q.fresh[kind] = 0
