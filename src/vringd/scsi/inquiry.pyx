"""INQUIRY with its vital product data pages (SPC-5 6.7, 7.7; SBC-4 6.6), and READ CAPACITY."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset

from vringd.core.sys cimport vr_load_relaxed_u64
from vringd.scsi.bytes cimport get16, get32, put16, put32, put64
from vringd.scsi.state cimport TYPE_DISK, Identity, ScsiTask, UnitState
from vringd.scsi.task cimport fail_field, reply

cdef enum:
    STANDARD_LENGTH = 96
    VERSION_SPC_4 = 6
    DESCRIPTOR_SAM_5 = 0x00a0
    DESCRIPTOR_SPC_4 = 0x0460
    DESCRIPTOR_SBC_3 = 0x04c0
    DESCRIPTOR_MMC_6 = 0x04e0
    CODE_SET_BINARY = 1
    CODE_SET_ASCII = 2
    DESIGNATOR_T10 = 1
    DESIGNATOR_NAA = 3
    DESIGNATOR_RELATIVE_PORT = 4
    ASSOCIATION_PORT = 0x10


cdef void standard_inquiry(ScsiTask *task) noexcept nogil:
    cdef UnitState *unit = task.unit
    cdef uint8_t data[STANDARD_LENGTH]
    memset(data, 0, STANDARD_LENGTH)
    data[0] = unit.type
    data[1] = 0x80 if unit.removable else 0
    data[2] = VERSION_SPC_4
    data[3] = 0x12                      # HISUP; response data format 2
    data[4] = STANDARD_LENGTH - 5
    data[7] = 0x02                      # CMDQUE
    memcpy(data + 8, unit.identity.vendor, 8)
    memcpy(data + 16, unit.identity.product, 16)
    memcpy(data + 32, unit.identity.revision, 4)
    put16(data + 58, DESCRIPTOR_SAM_5)
    put16(data + 60, DESCRIPTOR_SPC_4)
    put16(data + 62, DESCRIPTOR_SBC_3 if unit.type == TYPE_DISK else DESCRIPTOR_MMC_6)
    reply(task, data, STANDARD_LENGTH, get16(task.cdb + 3))


cdef void inquiry_without_unit(ScsiTask *task) noexcept nogil:
    """There is no such logical unit: peripheral qualifier 011b, device type 1Fh."""
    cdef uint8_t data[36]
    if task.cdb[1] & 0x01:
        fail_field(task, 1, 0)
        return
    if task.cdb[2]:
        fail_field(task, 2, -1)
        return
    memset(data, 0, 36)
    data[0], data[2], data[3], data[4] = 0x7f, VERSION_SPC_4, 0x12, 31
    memset(data + 8, 0x20, 28)
    reply(task, data, 36, get16(task.cdb + 3))


# ---- vital product data: each writes the page's body and returns its length ---------------------

cdef uint32_t supported_pages(UnitState *unit, uint8_t *at) noexcept nogil:
    at[0], at[1], at[2], at[3] = 0x00, 0x80, 0x83, 0x86
    if unit.type != TYPE_DISK:
        return 4
    at[4], at[5], at[6] = 0xb0, 0xb1, 0xb2
    return 7


cdef uint8_t *begin_designator(uint8_t *at, int code_set, int kind, uint32_t length) noexcept nogil:
    at[0] = <uint8_t> code_set
    at[1] = <uint8_t> kind
    at[2] = 0
    at[3] = <uint8_t> length
    return at + 4


cdef uint32_t identification(ScsiTask *task, uint8_t *at) noexcept nogil:
    cdef Identity *identity = &task.unit.identity
    cdef uint8_t *first = at
    if identity.wwn:
        at = begin_designator(at, CODE_SET_BINARY, DESIGNATOR_NAA, 8)
        put64(at, identity.wwn)
        at += 8
    if identity.device_id_length:
        at = begin_designator(at, CODE_SET_ASCII, DESIGNATOR_T10,
                              <uint32_t> 8 + identity.device_id_length)
        memcpy(at, identity.vendor, 8)
        memcpy(at + 8, identity.device_id, identity.device_id_length)
        at += 8 + identity.device_id_length
    at = begin_designator(at, CODE_SET_BINARY, ASSOCIATION_PORT | DESIGNATOR_RELATIVE_PORT, 4)
    put32(at, task.nexus.port)
    return <uint32_t> (at + 4 - first)


cdef uint32_t extended_inquiry(uint8_t *at) noexcept nogil:
    memset(at, 0, 60)
    at[1] = 0x01                        # SIMPSUP
    at[2] = 0x01                        # V_SUP: a volatile cache is possible
    return 60


cdef uint32_t block_limits(UnitState *unit, uint8_t *at) noexcept nogil:
    memset(at, 0, 60)
    at[0] = 0x01                        # WSNZ
    at[1] = unit.max_compare
    put16(at + 2, unit.transfer_granularity)
    put32(at + 4, unit.max_transfer)
    put32(at + 8, unit.optimal_transfer)
    if unit.thin:
        put32(at + 16, unit.max_unmap)
        put32(at + 20, unit.max_unmap_descriptors)
        put32(at + 24, unit.unmap_granularity)
        put32(at + 28, 0x80000000)      # UGAVALID, alignment 0
    put64(at + 32, unit.max_write_same)
    return 60


cdef uint32_t characteristics(UnitState *unit, uint8_t *at) noexcept nogil:
    memset(at, 0, 60)
    put16(at, unit.identity.rotation_rate)
    return 60


cdef uint32_t provisioning(UnitState *unit, uint8_t *at) noexcept nogil:
    memset(at, 0, 4)
    if unit.thin:
        at[1] = 0xe4                    # LBPU, LBPWS, LBPWS10, LBPRZ 001b
        at[2] = 2                       # thin provisioned
    return 4


cdef void inquiry_command(ScsiTask *task) noexcept nogil:
    """INQUIRY."""
    cdef UnitState *unit = task.unit
    cdef uint8_t page[256]              # the longest, 83h, has less than 4 + 12 + 76 + 8
    cdef uint32_t length
    cdef int code = task.cdb[2]
    if not task.cdb[1] & 0x01:
        if code:
            fail_field(task, 2, -1)
        else:
            standard_inquiry(task)
        return
    if code == 0x00:
        length = supported_pages(unit, page + 4)
    elif code == 0x80:
        length = unit.identity.serial_length
        memcpy(page + 4, unit.identity.serial, length)
    elif code == 0x83:
        length = identification(task, page + 4)
    elif code == 0x86:
        length = extended_inquiry(page + 4)
    elif code == 0xb0 and unit.type == TYPE_DISK:
        length = block_limits(unit, page + 4)
    elif code == 0xb1 and unit.type == TYPE_DISK:
        length = characteristics(unit, page + 4)
    elif code == 0xb2 and unit.type == TYPE_DISK:
        length = provisioning(unit, page + 4)
    else:
        fail_field(task, 2, -1)
        return
    page[0], page[1] = unit.type, <uint8_t> code
    put16(page + 2, length)
    reply(task, page, <uint64_t> length + 4, get16(task.cdb + 3))


# ---- READ CAPACITY ------------------------------------------------------------------------------

cdef void read_capacity_10_command(ScsiTask *task) noexcept nogil:
    """READ CAPACITY (10): FFFFFFFFh where the last block's number needs more than 32 bits."""
    cdef uint8_t data[8]
    cdef uint64_t last = vr_load_relaxed_u64(&task.unit.blocks) - 1
    put32(data, <uint32_t> min(last, <uint64_t> 0xffffffff))
    put32(data + 4, <uint32_t> 1 << task.unit.block_shift)
    reply(task, data, 8, 8)


cdef void read_capacity_16_command(ScsiTask *task) noexcept nogil:
    """READ CAPACITY (16)."""
    cdef uint8_t data[32]
    memset(data, 0, 32)
    put64(data, vr_load_relaxed_u64(&task.unit.blocks) - 1)
    put32(data + 8, <uint32_t> 1 << task.unit.block_shift)
    data[13] = task.unit.physical_exponent
    data[14] = 0xc0 if task.unit.thin else 0        # LBPME, LBPRZ
    reply(task, data, 32, get32(task.cdb + 10))
