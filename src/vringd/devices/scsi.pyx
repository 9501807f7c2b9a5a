"""virtio-scsi: command queues in front of a SCSI target (virtio 1.3, section 5.6).

A command is a header with LUN, tag and CDB and its Data-Out, which we read, then a response and
its Data-In, which we write. No layout of descriptors is assumed (2.7.4: VERSION_1). Control and
event queues are the control plane's (`scsi_control`).
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from vringd.core.channel cimport Channel
from vringd.core.memory cimport mark_dirty_host
from vringd.core.stats cimport KIND_OTHER
from vringd.core.sys cimport (
    iovec, vr_count_u64, vr_likely, vr_load_acquire_ptr, vr_load_acquire_u32, vr_load_relaxed_u32,
    vr_store_relaxed_u32, vr_store_release_ptr, vr_unlikely)
from vringd.core.virtqueue cimport vring_push
from vringd.core.vring cimport BROKEN_NO_MEMORY, BROKEN_REQUEST, account, break_ring
from vringd.devices.segments cimport take_front, total
from vringd.scsi.device_server cimport abort_task, operation_done
from vringd.scsi.state cimport CDB_ROOM, STATUS_GOOD, Lane, ScsiTask
from vringd.scsi.target cimport ScsiTarget
from vringd.scsi.unit cimport ScsiNexus

from vringd.devices import scsi_config

cdef extern from "<linux/virtio_scsi.h>" nogil:
    int VIRTIO_SCSI_S_OK, VIRTIO_SCSI_S_OVERRUN, VIRTIO_SCSI_S_ABORTED, VIRTIO_SCSI_S_BAD_TARGET
    int VIRTIO_SCSI_S_RESET, VIRTIO_SCSI_S_BUSY, VIRTIO_SCSI_S_FAILURE

cdef enum:
    # The header is 8 bytes of LUN, 8 of tag, attribute, priority, CRN, and the CDB.
    TAG_AT = 8
    ATTRIBUTE_AT = 16
    CDB_AT = 19
    MOST_CDB = 255              # scsi_config.MOST_CDB
    USUAL_HEADER = CDB_AT + 32
    # The response is the sense's length, the residual, a qualifier, status, response, and sense.
    SENSE_AT = 12
    MOST_SENSE = 252            # scsi_config.MOST_SENSE
    NO_LUN = 0xffff             # beyond all LUNs


cdef inline void put_head(uint8_t *at, uint32_t sense_length, uint32_t residual,
                          uint32_t last) noexcept nogil:
    """The first 12 bytes of a response; last: the qualifier (zero), status << 16, response << 24.
    Little-endian, as all processors are that this is built for."""
    cdef uint64_t first = sense_length | <uint64_t> residual << 32
    memcpy(at, &first, 8)
    memcpy(at + 8, &last, 4)


cdef inline uint32_t lun_of(const uint8_t *address) noexcept nogil:
    """The LUN of an address, in flat space or peripheral device form (SAM-6 4.7.7)."""
    if address[2] >> 6 == 1:
        return <uint32_t> (address[2] & 0x3f) << 8 | address[3]
    if address[2] == 0:
        return address[3]
    return NO_LUN


cdef inline bint split_response(Request *req, ScsiSlot *slot, uint32_t size) noexcept nogil:
    """Keep the first size writable bytes for the response; the rest is Data-In. False if there
    are not as many."""
    cdef iovec *iov = &req.segments[req.out_iovs]
    cdef uint32_t i = 0
    slot.response = iov
    slot.split.iov_len = 0
    while i < req.in_iovs and iov[i].iov_len <= size:
        size -= <uint32_t> iov[i].iov_len
        i += 1
        if size == 0:
            break
    slot.whole = i
    if size:
        if i == req.in_iovs:
            return False
        slot.split.iov_base, slot.split.iov_len = iov[i].iov_base, size
        iov[i].iov_base = <uint8_t *> iov[i].iov_base + size
        iov[i].iov_len -= size
    slot.task.in_iov = iov + i
    slot.task.in_niov = req.in_iovs - i
    return True


cdef class ScsiPath(Channel):
    """One IOThread's way into a device: what a command queue has in the place of a disk's channel.

    lane: the IOThread's number in the nexuses of all units, 0 to 63. channels: of the units there
    are. If one of them has use for guest memory that is registered with the ring, memory will be;
    channels of units that come later do not change that.
    """

    def __init__(self, lane, channels=()):
        cdef Channel channel
        self.lane = lane
        for channel in channels:
            self.wants_buffers = self.wants_buffers or channel.wants_buffers

    def __dealloc__(self):
        cdef ScsiSlot *slot
        # All slots are back: a queue is let go of when nothing of it is in flight.
        while self.spare != NULL:
            slot = self.spare
            self.spare = slot.next
            free(slot)


cdef class ScsiAnswers(TaskOwner):
    """Turns what became of a command into a response."""

    cdef void complete(self, ScsiTask *task) noexcept nogil:
        self.answer(<ScsiSlot *> task)

    cdef void answer(self, ScsiSlot *slot) noexcept nogil:
        cdef ScsiTask *task = &slot.task
        cdef Request *req = task.req
        cdef Vring *q = <Vring *> req.queue
        cdef uint32_t size = SENSE_AT + slot.sense_size, sense_length = 0, residual = 0, last = 0
        cdef uint64_t written
        cdef bint failed = True
        if vr_unlikely(slot.refused):
            last = <uint32_t> slot.refused << 24
        elif vr_unlikely(task.aborted):
            last = <uint32_t> VIRTIO_SCSI_S_ABORTED << 24
            if task.generation == vr_load_acquire_u32(&task.nexus.reset_generation):
                last = <uint32_t> VIRTIO_SCSI_S_RESET << 24
        elif vr_unlikely(task.overrun):
            last = <uint32_t> VIRTIO_SCSI_S_OVERRUN << 24
        else:
            residual = <uint32_t> min(task.residual, <uint64_t> 0xffffffff)
            sense_length = min(<uint32_t> task.sense_length, slot.sense_size)
            last = <uint32_t> task.status << 16
            failed = task.status != STATUS_GOOD
        # What is behind the sense data has no meaning (5.6.6.1). It stays as it is, which is as
        # good as written with that, and saves a cache line from the driver's core.
        if vr_likely(slot.whole == 1 and sense_length == 0 and slot.split.iov_len == 0):
            put_head(<uint8_t *> slot.response.iov_base, 0, residual, last)
        else:
            self.scatter(slot, sense_length, residual, last)
        if vr_unlikely(q.log != NULL):
            # What lies in whole segments, and Data-In, is marked when the chain is pushed.
            mark_dirty_host(q.log, q.memory, <uint8_t *> slot.split.iov_base, slot.split.iov_len)
        written = min(<uint64_t> size + task.given, <uint64_t> 0xffffffff)
        account(q, req.kind, req.start_ns, task.transferred, failed)
        slot.next = slot.spare[0]
        slot.spare[0] = slot
        vring_push(q, req, <uint32_t> written)

    cdef void scatter(self, ScsiSlot *slot, uint32_t sense_length, uint32_t residual,
                      uint32_t last) noexcept nogil:
        """Put a response where the driver wants it, in pieces of whatever sizes."""
        cdef uint8_t response[SENSE_AT + MOST_SENSE]
        cdef uint8_t *at = response
        cdef uint64_t left = SENSE_AT + sense_length, here
        cdef uint32_t i
        put_head(response, sense_length, residual, last)
        memcpy(response + SENSE_AT, slot.task.sense, sense_length)
        for i in range(slot.whole):
            here = min(left, <uint64_t> slot.response[i].iov_len)
            memcpy(slot.response[i].iov_base, at, here)
            at += here
            left -= here
        memcpy(slot.split.iov_base, at, min(left, <uint64_t> slot.split.iov_len))


cdef class ScsiDevice(QueueHandler):
    """The device of one export; its command queues may be served by any IOThreads at once, each
    with a `ScsiPath`.

    settings: a `scsi_config.ScsiSettings`.
    """

    def __init__(self, settings):
        self.settings = settings
        self.answers = ScsiAnswers()
        self.by_number = {}
        self.reset()

    # ---- control plane ------------------------------------------------------------------------

    @property
    def features(self):
        """Feature bits that the device offers."""
        return scsi_config.offered_features(self.settings)

    def reset(self):
        """Back to the state before any driver. The units know nothing of it."""
        self.driver_features = 0
        vr_store_relaxed_u32(&self.sense_size, scsi_config.SENSE_SIZE)
        vr_store_relaxed_u32(&self.cdb_size, scsi_config.CDB_SIZE)

    def set_driver_features(self, uint64_t features):
        """Take what the driver acknowledged."""
        self.driver_features = features

    def read_config(self, offset, size):
        """Bytes of the configuration space. Raises ValueError outside it."""
        if offset + size > scsi_config.CONFIG_SIZE:
            raise ValueError(
                f"configuration space has {scsi_config.CONFIG_SIZE} bytes, not {offset + size}")
        data = scsi_config.pack_config(self.settings, self.sense_size, self.cdb_size)
        return data[offset:offset + size]

    def write_config(self, offset, data):
        """Set sense_size or cdb_size, the writable fields (5.6.4): for commands that come later.
        Raises ValueError otherwise."""
        fields = {scsi_config.SENSE_SIZE_OFFSET: ("sense_size", 0, scsi_config.MOST_SENSE),
                  scsi_config.CDB_SIZE_OFFSET: ("cdb_size", 6, scsi_config.MOST_CDB)}
        if offset not in fields or len(data) != 4:
            raise ValueError(
                f"configuration bytes {offset}..{offset + len(data) - 1} are not writable")
        name, least, most = fields[offset]
        value = int.from_bytes(data, "little")
        if not least <= value <= most:
            raise ValueError(f"{name} {value} is not between {least} and {most}")
        if offset == scsi_config.SENSE_SIZE_OFFSET:
            vr_store_relaxed_u32(&self.sense_size, value)
        else:
            vr_store_relaxed_u32(&self.cdb_size, value)

    def add_unit(self, target, lun, ScsiNexus nexus not None):
        """Make a unit reachable. Raises ValueError if the address is in use or impossible."""
        cdef ScsiTarget found
        if not 0 <= target <= scsi_config.MAX_TARGET:
            raise ValueError(f"target {target} is not between 0 and {scsi_config.MAX_TARGET}")
        if target not in self.by_number:
            self.by_number[target] = ScsiTarget()
        found = self.by_number[target]
        found.add(lun, nexus)
        vr_store_release_ptr(&self.targets[<int> target], <void *> found)

    def remove_unit(self, target, lun):
        """Make a unit unreachable and return its `ScsiNexus`, which must be kept until every
        IOThread has answered a question asked after this. Raises KeyError."""
        cdef ScsiTarget found = self.by_number[target]
        nexus = found.remove(lun)
        if not found.luns:
            # by_number keeps the object: a command may have just found it.
            vr_store_release_ptr(&self.targets[<int> target], NULL)
        return nexus

    def nexus_at(self, target, lun):
        """The `ScsiNexus` of a unit, or None."""
        cdef ScsiTarget found = self.by_number.get(target)
        return None if found is None else found.units.get(lun)

    def nexuses_of(self, target):
        """All of a target."""
        cdef ScsiTarget found = self.by_number.get(target)
        return [] if found is None else list(found.units.values())

    # ---- data plane ---------------------------------------------------------------------------

    cdef void handle(self, Vring *q, Request *req) noexcept nogil:
        cdef uint8_t header[CDB_AT + MOST_CDB]
        cdef uint32_t cdb_size = vr_load_relaxed_u32(&self.cdb_size)
        cdef uint32_t sense_size = vr_load_relaxed_u32(&self.sense_size)
        cdef uint32_t first = 0
        cdef ScsiSlot **spare = &(<ScsiPath> q.channel).spare
        cdef ScsiSlot *slot = spare[0]
        cdef ScsiTask *task
        cdef void *target
        cdef bint whole
        if vr_likely(cdb_size == <uint32_t> (USUAL_HEADER - CDB_AT)):
            whole = take_front(req, &first, header, USUAL_HEADER)
        else:
            whole = take_front(req, &first, header, CDB_AT + cdb_size)
        if vr_unlikely(slot == NULL):
            slot = <ScsiSlot *> malloc(sizeof(ScsiSlot))
            if slot == NULL:
                # Not even a response can be given; the driver's time limit is what remains.
                break_ring(q, BROKEN_NO_MEMORY)
                vring_push(q, req, 0)
                return
            slot.next = NULL
        if vr_unlikely(not whole
                       or not split_response(req, slot, <uint32_t> SENSE_AT + sense_size)):
            spare[0] = slot
            break_ring(q, BROKEN_REQUEST)
            vring_push(q, req, 0)
            return
        spare[0] = slot.next
        slot.spare = spare
        slot.sense_size = sense_size
        slot.refused = 0
        task = &slot.task
        task.owner = <void *> self.answers
        task.req = req
        req.device_data = slot
        task.out_iov = &req.segments[first]
        task.out_niov = req.out_iovs - first
        task.out_length = total(task.out_iov, task.out_niov)
        task.in_length = total(task.in_iov, task.in_niov)
        memcpy(&task.tag, header + TAG_AT, 8)
        task.attribute = header[ATTRIBUTE_AT] & 7
        if vr_likely(cdb_size >= CDB_ROOM):
            task.cdb_length = CDB_ROOM
            memcpy(task.cdb, header + CDB_AT, CDB_ROOM)
        else:
            task.cdb_length = <uint8_t> cdb_size
            memset(task.cdb, 0, CDB_ROOM)
            memcpy(task.cdb, header + CDB_AT, cdb_size)
        target = NULL
        if vr_likely(header[0] == 1):
            target = vr_load_acquire_ptr(&self.targets[header[1]])
        if vr_unlikely(target == NULL):
            self.refuse(slot, VIRTIO_SCSI_S_BAD_TARGET)
            return
        if vr_unlikely(task.out_length and task.in_length):
            # Both directions at once would need VIRTIO_SCSI_F_INOUT.
            self.refuse(slot, VIRTIO_SCSI_S_FAILURE)
            return
        (<ScsiTarget> target).execute(task, lun_of(header), (<ScsiPath> q.channel).lane)

    cdef void refuse(self, ScsiSlot *slot, int response) noexcept nogil:
        """Answer a command that reaches no device server."""
        vr_count_u64(&(<Vring *> slot.task.req.queue).stats.invalid, 1)
        slot.refused = <uint8_t> response
        slot.task.given = slot.task.transferred = 0
        slot.task.req.kind = KIND_OTHER
        self.answers.answer(slot)

    cdef void complete(self, Request *req) noexcept nogil:
        operation_done(&(<ScsiSlot *> req.device_data).task)


cdef class TaskQuestion(Question):
    """Which tasks of a nexus are in execution in one IOThread?

    tag: None for all. aborts: end these tasks; the answer then comes when they have ended, and
    before it their responses. lane: the IOThread's.
    """

    def __init__(self, ScsiNexus nexus not None, lane, tag, *, bint aborts=False):
        self.nexus = nexus
        self.lane = lane
        self.any_tag = tag is None
        self.tag = 0 if tag is None else tag
        self.aborts = aborts

    @property
    def found(self):
        """Whether there was one: for when the answer is there."""
        return self.seen

    cdef bint answered(self) noexcept nogil:
        cdef Lane *lane = <Lane *> vr_load_acquire_ptr(
            <void **> &self.nexus.state.lanes[self.lane])
        cdef ScsiTask *task = NULL if lane == NULL else lane.first
        cdef bint begun = self.begun, all_ended = True
        self.begun = True
        while task != NULL:
            if self.any_tag or task.tag == self.tag:
                if not begun:
                    self.seen = True
                    if self.aborts:
                        abort_task(task)
                # A task that began since then with the same tag is none of those asked for.
                if task.aborted:
                    all_ended = False
            task = task.next
        return all_ended or not self.aborts
