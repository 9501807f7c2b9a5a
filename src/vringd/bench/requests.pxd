# What a job's requests look like to each kind of device. Every request is three segments: what the
# device reads first, data, and what it writes last; n_out tells how many of them it reads.

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset

from vringd.bench.worker cimport READ, TRIM, WRITE, Job, Slot
from vringd.scsi.bytes cimport put16, put32, put64

cdef extern from "<linux/virtio_blk.h>" nogil:
    enum:
        VIRTIO_BLK_T_IN
        VIRTIO_BLK_T_OUT
        VIRTIO_BLK_T_DISCARD
    struct virtio_blk_outhdr:
        uint32_t type
        uint32_t ioprio
        uint64_t sector
    struct virtio_blk_discard_write_zeroes:
        uint64_t sector
        uint32_t num_sectors
        uint32_t flags

cdef extern from "<linux/virtio_scsi.h>" nogil:
    struct virtio_scsi_cmd_req:
        uint8_t lun[8]
        uint64_t tag
        uint8_t task_attr
        uint8_t cdb[32]
    struct virtio_scsi_cmd_resp:
        uint32_t sense_len
        uint32_t resid
        uint8_t status
        uint8_t response
        uint8_t sense[96]


cdef enum:                      # in a slot's header
    BLK_STATUS_AT = 40          # after the request and a discard's range
    SCSI_RESPONSE_AT = 64
    BLK_HEADER_ROOM = 64        # cache lines of its own
    SCSI_HEADER_ROOM = 192      # not 256: only each fourth set of a cache would hold requests
    NONE_AT_ALL = 0xFF          # a status that no device writes


cdef inline uint32_t write_blk(Job *job, Slot *slot) noexcept nogil:
    """virtio-blk (virtio 1.3, 5.2.6): header, data, status."""
    cdef virtio_blk_outhdr *header = <virtio_blk_outhdr *> slot.header
    cdef virtio_blk_discard_write_zeroes *range_
    header.sector = slot.offset >> 9
    slot.header[<int> BLK_STATUS_AT] = NONE_AT_ALL
    slot.segments[1].addr, slot.segments[1].length = slot.data_addr, slot.size
    if slot.direction == READ:
        header.type = VIRTIO_BLK_T_IN
        return 1
    if slot.direction == WRITE:
        header.type = VIRTIO_BLK_T_OUT
        return 2
    header.type = VIRTIO_BLK_T_DISCARD
    range_ = <virtio_blk_discard_write_zeroes *> (slot.header + sizeof(virtio_blk_outhdr))
    range_.sector, range_.num_sectors, range_.flags = header.sector, slot.size >> 9, 0
    slot.segments[1].addr = slot.segments[0].addr + sizeof(virtio_blk_outhdr)
    slot.segments[1].length = sizeof(virtio_blk_discard_write_zeroes)
    return 2


cdef inline void write_cdb(uint8_t *cdb, int opcode, uint64_t lba, uint32_t blocks) noexcept nogil:
    """READ or WRITE: the 10-byte form where it is enough, as Linux chooses, else the 16-byte one;
    opcode: of the former. The other bytes are zero and stay so."""
    if lba + blocks <= <uint64_t> 0xffffffff and blocks <= <uint32_t> 0xffff:
        cdb[0] = <uint8_t> opcode
        put32(cdb + 2, <uint32_t> lba)
        cdb[6] = 0
        put16(cdb + 7, blocks)
        cdb[9] = cdb[10] = cdb[11] = cdb[12] = cdb[13] = 0
    else:
        cdb[0] = <uint8_t> (opcode + 0x60)
        put64(cdb + 2, lba)
        put32(cdb + 10, blocks)


cdef inline uint32_t write_scsi(Job *job, Slot *slot) noexcept nogil:
    """virtio-scsi (virtio 1.3, 5.6.6.1): request and Data-Out, then response and Data-In."""
    cdef virtio_scsi_cmd_req *request = <virtio_scsi_cmd_req *> slot.header
    cdef virtio_scsi_cmd_resp *response = <virtio_scsi_cmd_resp *> (
        slot.header + SCSI_RESPONSE_AT)
    cdef uint8_t *cdb = request.cdb
    cdef uint8_t *list_ = slot.data     # of UNMAP, which has no other data
    cdef uint64_t response_addr = slot.segments[0].addr + <uint64_t> SCSI_RESPONSE_AT
    cdef uint64_t lba = slot.offset >> job.plan.block_shift
    cdef uint32_t blocks = slot.size >> job.plan.block_shift
    cdef int data = 2 if slot.direction == READ else 1
    memcpy(request.lun, job.plan.lun, 8)
    request.tag = <uint64_t> slot           # unique among all requests in flight
    response.response = response.status = NONE_AT_ALL
    slot.segments[data].addr, slot.segments[data].length = slot.data_addr, slot.size
    slot.segments[3 - data].addr = response_addr
    slot.segments[3 - data].length = sizeof(virtio_scsi_cmd_resp)
    if slot.direction == READ:
        write_cdb(cdb, 0x28, lba, blocks)
        return 1
    if slot.direction == WRITE:
        write_cdb(cdb, 0x2a, lba, blocks)
        return 2
    memset(cdb, 0, 16)                      # UNMAP (SBC-4 5.35), one block descriptor
    cdb[0] = 0x42
    put16(cdb + 7, 24)
    memset(list_, 0, 24)
    put16(list_, 22)
    put16(list_ + 2, 16)
    put64(list_ + 8, lba)
    put32(list_ + 16, blocks)
    slot.segments[1].length = 24
    return 2


cdef inline uint32_t write_request(Job *job, Slot *slot) noexcept nogil:
    """Write the request that the slot describes; how many of its segments the device reads."""
    return write_scsi(job, slot) if job.plan.scsi else write_blk(job, slot)


cdef inline uint64_t status_of(Job *job, Slot *slot) noexcept nogil:
    """0 if the device says that the request was done. virtio-blk: its status. virtio-scsi: from
    the lowest byte response, status, sense key, additional sense code and its qualifier (fixed
    format; SPC-5 4.4.3)."""
    cdef virtio_scsi_cmd_resp *response
    cdef uint64_t found
    if not job.plan.scsi:
        return slot.header[<int> BLK_STATUS_AT]
    response = <virtio_scsi_cmd_resp *> (slot.header + SCSI_RESPONSE_AT)
    found = <uint64_t> response.response | <uint64_t> response.status << 8
    if found and response.sense_len >= 14 and response.sense[0] & 0x7f == 0x70:
        found |= (<uint64_t> (response.sense[2] & 15) << 16
                  | <uint64_t> response.sense[12] << 24 | <uint64_t> response.sense[13] << 32)
    return found
