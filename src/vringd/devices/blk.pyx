"""virtio-blk: what the guest sees of a disk (virtio 1.3, section 5.2).

A request is a header of 16 bytes that we read, data, and a status byte that we write last. No
layout of descriptors is assumed (2.7.4: VERSION_1), so header and status may be anywhere in the
first readable and the last writable segments.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from vringd.block.ops cimport (
    FLAG_FUA, FLAG_UNMAP, OP_DISCARD, OP_FLUSH, OP_READ, OP_SECURE_ERASE, OP_WRITE,
    OP_WRITE_ZEROES)
from vringd.core.channel cimport Channel
from vringd.core.memory cimport mark_dirty_host
from vringd.core.stats cimport KIND_DISCARD, KIND_FLUSH, KIND_OTHER, KIND_READ, KIND_WRITE
from vringd.core.sys cimport (
    ENOTSUP, EOPNOTSUPP, iovec, vr_count_u64, vr_load_relaxed_u32, vr_load_relaxed_u64,
    vr_store_relaxed_u32, vr_store_relaxed_u64, vr_unlikely)
from vringd.core.virtqueue cimport vring_push
from vringd.core.vring cimport BROKEN_REQUEST, account, break_ring
from vringd.devices.segments cimport take_front, total

from vringd.devices import blk_config


cdef extern from "<linux/virtio_blk.h>" nogil:
    int VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID
    int VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_T_SECURE_ERASE
    int VIRTIO_BLK_S_OK, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_UNSUPP
    struct virtio_blk_outhdr:
        uint32_t type
        uint32_t ioprio
        uint64_t sector
    struct virtio_blk_discard_write_zeroes:
        uint64_t sector
        uint32_t num_sectors
        uint32_t flags

cdef enum:
    SECTOR_SHIFT = 9
    MAX_RANGES = 32             # blk_config.MAX_RANGE_SEGMENTS
    MAX_RANGE_SECTORS = 1 << 22
    RANGE_DISCARD = 1
    RANGE_WRITE_ZEROES = 2
    RANGE_SECURE_ERASE = 4
    RANGE_F_UNMAP = 1           # VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP


cdef struct RangeList:          # Request.device_data of an operation on several ranges
    uint32_t count
    uint32_t next
    virtio_blk_discard_write_zeroes ranges[MAX_RANGES]


cdef class BlkDevice(QueueHandler):
    """The device of one export; its queues may be served by any IOThreads at once.

    settings: a `blk_config.BlkSettings`; capacity in bytes.
    """

    def __init__(self, settings, capacity):
        cdef bytes serial = settings.serial[:20]
        self.settings = settings
        self.block_mask = settings.limits.block_size - 1
        self.read_only = not settings.writable
        self.default_writeback = not settings.writethrough
        memset(self.serial, 0, 20)
        memcpy(self.serial, <char *> serial, len(serial))
        self.capacity_bytes = capacity - capacity % settings.limits.block_size
        self.reset()

    # ---- control plane ------------------------------------------------------------------------

    @property
    def features(self):
        """Feature bits that the device offers."""
        return blk_config.offered_features(self.settings)

    @property
    def capacity(self):
        """Bytes that the guest may address."""
        return self.capacity_bytes

    def set_capacity(self, size):
        """Change the capacity (bytes): requests that begin from now on are checked against it."""
        vr_store_relaxed_u64(&self.capacity_bytes,
                             size - size % self.settings.limits.block_size)

    def reset(self):
        """Back to the state before any driver."""
        self.set_driver_features(0)

    def set_driver_features(self, uint64_t features):
        """Take what the driver acknowledged (5.2.5: it decides the mode of the write cache)."""
        cdef uint32_t ranges = 0
        # Front-ends say it again when a machine resumes or a migration begins, with queues
        # running: the mode that the driver has chosen meanwhile must stay.
        if features and features == self.driver_features:
            return
        self.driver_features = features
        if features >> blk_config.F_DISCARD & 1:
            ranges |= RANGE_DISCARD
        if features >> blk_config.F_WRITE_ZEROES & 1:
            ranges |= RANGE_WRITE_ZEROES
        if features >> blk_config.F_SECURE_ERASE & 1:
            ranges |= RANGE_SECURE_ERASE
        vr_store_relaxed_u32(&self.ranges, ranges)
        # A driver that can neither flush nor choose relies on each write being durable.
        vr_store_relaxed_u32(&self.writeback_now, self.default_writeback and bool(
            features >> blk_config.F_FLUSH & 1 or features >> blk_config.F_CONFIG_WCE & 1))

    @property
    def writeback(self):
        """Whether writes may sit in a volatile cache until a flush."""
        return bool(vr_load_relaxed_u32(&self.writeback_now))

    def read_config(self, offset, size):
        """Bytes of the configuration space. Raises ValueError outside it."""
        if offset + size > blk_config.CONFIG_SIZE:
            raise ValueError(
                f"configuration space has {blk_config.CONFIG_SIZE} bytes, not {offset + size}")
        writeback = self.writeback if self.driver_features else self.default_writeback
        data = blk_config.pack_config(self.settings, self.capacity_bytes, writeback)
        return data[offset:offset + size]

    def write_config(self, offset, data):
        """Set the write cache's mode, the only writable field. Raises ValueError otherwise."""
        if offset != blk_config.WCE_OFFSET or len(data) != 1:
            raise ValueError(
                f"configuration bytes {offset}..{offset + len(data) - 1} are not writable")
        if not self.driver_features >> blk_config.F_CONFIG_WCE & 1:
            raise ValueError("the write cache mode was not negotiated (CONFIG_WCE)")
        if data[0] > 1:
            raise ValueError(f"write cache mode {data[0]} is neither 0 nor 1")
        vr_store_relaxed_u32(&self.writeback_now, data[0])

    # ---- data plane ---------------------------------------------------------------------------

    cdef void handle(self, Vring *q, Request *req) noexcept nogil:
        cdef virtio_blk_outhdr header
        cdef iovec *last
        cdef uint64_t size, capacity
        cdef uint32_t first = 0, n_in
        cdef bint writes
        if vr_unlikely(req.in_iovs == 0
                       or not take_front(req, &first, &header, sizeof(header))):
            break_ring(q, BROKEN_REQUEST)
            vring_push(q, req, 0)
            return
        # Segments are never empty, so the last byte of the last one is the status.
        last = &req.segments[req.out_iovs + req.in_iovs - 1]
        last.iov_len -= 1
        req.status = <uint8_t *> last.iov_base + last.iov_len
        n_in = req.in_iovs - (1 if last.iov_len == 0 else 0)
        req.flags = 0
        req.device_data = NULL
        req.length = 0
        req.kind = KIND_OTHER
        if header.type == VIRTIO_BLK_T_IN or header.type == VIRTIO_BLK_T_OUT:
            writes = header.type == VIRTIO_BLK_T_OUT
            if writes:
                req.iov, req.niov = &req.segments[first], req.out_iovs - first
                req.op, req.kind = OP_WRITE, KIND_WRITE
                if not vr_load_relaxed_u32(&self.writeback_now):
                    req.flags = FLAG_FUA
            else:
                req.iov, req.niov = &req.segments[req.out_iovs], n_in
                req.op, req.kind = OP_READ, KIND_READ
            size = total(req.iov, req.niov)
            capacity = vr_load_relaxed_u64(&self.capacity_bytes)
            # The sector is compared before it is shifted, so offset cannot overflow.
            if vr_unlikely(size & self.block_mask or header.sector > capacity >> SECTOR_SHIFT
                           or size > capacity - (header.sector << SECTOR_SHIFT)
                           or (header.sector << SECTOR_SHIFT) & self.block_mask
                           or (writes and self.read_only)):
                self.refuse(q, req, VIRTIO_BLK_S_IOERR)
                return
            req.offset, req.length = header.sector << SECTOR_SHIFT, size
            if vr_unlikely(size == 0):
                self.answer(q, req, VIRTIO_BLK_S_OK, 1)
                return
            (<Channel> q.channel).submit(req)
        elif header.type == VIRTIO_BLK_T_FLUSH:
            req.op, req.kind = OP_FLUSH, KIND_FLUSH
            req.offset = 0
            (<Channel> q.channel).submit(req)
        elif header.type == VIRTIO_BLK_T_GET_ID:
            req.iov, req.niov = &req.segments[req.out_iovs], n_in
            self.answer(q, req, VIRTIO_BLK_S_OK, self.store_id(req) + 1)
        elif header.type in (VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES,
                             VIRTIO_BLK_T_SECURE_ERASE):
            req.kind = KIND_DISCARD
            req.iov, req.niov = &req.segments[first], req.out_iovs - first
            self.begin_ranges(q, req, header.type, total(req.iov, req.niov))
        else:
            self.refuse(q, req, VIRTIO_BLK_S_UNSUPP)

    cdef uint32_t store_id(self, Request *req) noexcept nogil:
        """Copy the serial into the writable data (5.2.6: 20 bytes, padded with zeros)."""
        cdef uint32_t done = 0, here, i
        for i in range(req.niov):
            here = <uint32_t> min(<uint64_t> (20 - done), <uint64_t> req.iov[i].iov_len)
            memcpy(req.iov[i].iov_base, self.serial + done, here)
            done += here
        return done

    cdef void begin_ranges(self, Vring *q, Request *req, uint32_t kind,
                           uint64_t size) noexcept nogil:
        """Check all ranges of a discard, write-zeroes or secure-erase request, then begin."""
        cdef RangeList *ranges
        cdef virtio_blk_discard_write_zeroes *one
        cdef uint64_t capacity = vr_load_relaxed_u64(&self.capacity_bytes)
        cdef uint32_t count, first, i
        cdef uint32_t needed = RANGE_DISCARD
        req.op = OP_DISCARD
        if kind == VIRTIO_BLK_T_WRITE_ZEROES:
            req.op, needed = OP_WRITE_ZEROES, RANGE_WRITE_ZEROES
        elif kind == VIRTIO_BLK_T_SECURE_ERASE:
            req.op, needed = OP_SECURE_ERASE, RANGE_SECURE_ERASE
        if not vr_load_relaxed_u32(&self.ranges) & needed:
            self.refuse(q, req, VIRTIO_BLK_S_UNSUPP)
            return
        count = <uint32_t> (size // sizeof(virtio_blk_discard_write_zeroes))
        if (self.read_only or count == 0 or count > MAX_RANGES
                or size % sizeof(virtio_blk_discard_write_zeroes)):
            self.refuse(q, req, VIRTIO_BLK_S_IOERR)
            return
        ranges = <RangeList *> malloc(sizeof(RangeList))
        if ranges == NULL:
            self.refuse(q, req, VIRTIO_BLK_S_IOERR)
            return
        # Where the data begin in the segments: take_front has trimmed them.
        first = <uint32_t> (req.iov - req.segments)
        take_front(req, &first, ranges.ranges,
                   count * <uint32_t> sizeof(virtio_blk_discard_write_zeroes))
        ranges.count, ranges.next = count, 0
        for i in range(count):
            one = &ranges.ranges[i]
            # 5.2.6.2: flags that do not belong to the operation are unsupported.
            if one.flags & ~<uint32_t> (RANGE_F_UNMAP if req.op == OP_WRITE_ZEROES else 0):
                free(ranges)
                self.refuse(q, req, VIRTIO_BLK_S_UNSUPP)
                return
            if (one.num_sectors > MAX_RANGE_SECTORS
                    or one.sector > capacity >> SECTOR_SHIFT
                    or one.num_sectors > (capacity >> SECTOR_SHIFT) - one.sector
                    or (one.sector << SECTOR_SHIFT
                        | <uint64_t> one.num_sectors << SECTOR_SHIFT) & self.block_mask):
                free(ranges)
                self.refuse(q, req, VIRTIO_BLK_S_IOERR)
                return
        req.device_data = ranges
        self.next_range(q, req)

    cdef void next_range(self, Vring *q, Request *req) noexcept nogil:
        """Submit the next range that is not empty, or answer."""
        cdef RangeList *ranges = <RangeList *> req.device_data
        cdef virtio_blk_discard_write_zeroes *one
        while ranges.next < ranges.count:
            one = &ranges.ranges[ranges.next]
            ranges.next += 1
            if one.num_sectors == 0:
                continue
            req.offset = one.sector << SECTOR_SHIFT
            req.length = <uint64_t> one.num_sectors << SECTOR_SHIFT
            req.flags = FLAG_UNMAP if one.flags & RANGE_F_UNMAP else 0
            if req.op == OP_WRITE_ZEROES and not vr_load_relaxed_u32(&self.writeback_now):
                req.flags |= FLAG_FUA
            (<Channel> q.channel).submit(req)
            return
        self.complete_ranges(q, req, VIRTIO_BLK_S_OK)

    cdef void complete_ranges(self, Vring *q, Request *req, int status) noexcept nogil:
        cdef RangeList *ranges = <RangeList *> req.device_data
        cdef uint32_t i
        req.length = 0
        for i in range(ranges.count):
            req.length += <uint64_t> ranges.ranges[i].num_sectors << SECTOR_SHIFT
        free(ranges)
        req.device_data = NULL
        self.answer(q, req, status, 1)

    cdef void complete(self, Request *req) noexcept nogil:
        cdef Vring *q = <Vring *> req.queue
        cdef int status = VIRTIO_BLK_S_OK
        cdef uint64_t written = 1
        if vr_unlikely(req.result != 0):
            status = (VIRTIO_BLK_S_UNSUPP if req.result in (-EOPNOTSUPP, -ENOTSUP)
                      else VIRTIO_BLK_S_IOERR)
        if vr_unlikely(req.device_data != NULL):
            if status == VIRTIO_BLK_S_OK:
                self.next_range(q, req)
            else:
                self.complete_ranges(q, req, status)
            return
        # The status byte follows the data, so it is length + 1 bytes even if the read failed.
        if req.kind == KIND_READ:
            written = min(req.length + 1, <uint64_t> 0xffffffff)
        self.answer(q, req, status, <uint32_t> written)

    cdef void refuse(self, Vring *q, Request *req, int status) noexcept nogil:
        """Answer a request that makes no sense."""
        vr_count_u64(&q.stats.invalid, 1)
        req.length = 0
        self.answer(q, req, status, 1)

    cdef void answer(self, Vring *q, Request *req, int status,
                     uint32_t written) noexcept nogil:
        req.status[0] = <uint8_t> status
        if vr_unlikely(q.log != NULL):
            mark_dirty_host(q.log, q.memory, req.status, 1)
        account(q, req.kind, req.start_ns, req.length, status != VIRTIO_BLK_S_OK)
        vring_push(q, req, written)
