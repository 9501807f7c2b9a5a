"""The table of operations, and the commands that tell of it.

An entry says which bits of the CDB may be set; any other is INVALID FIELD IN CDB before the
command is run, and REPORT SUPPORTED OPERATION CODES gives the same bits as CDB usage data. So
RDPROTECT, ANCHOR and the like, which nothing here supports, are refused by the table alone.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset

from vringd.scsi.bytes cimport get16, get32, put16, put32
from vringd.scsi.compare cimport (
    compare_and_write_command, orwrite_command, verify_command, write_and_verify_command)
from vringd.scsi.inquiry cimport (
    inquiry_command, read_capacity_10_command, read_capacity_16_command)
from vringd.scsi.luns cimport report_luns_command
from vringd.scsi.mmc cimport (
    get_configuration_command, get_event_status_command, mechanism_status_command,
    read_disc_information_command, read_toc_command)
from vringd.scsi.mode_pages cimport mode_select_command, mode_sense_command
from vringd.scsi.persistent_in cimport persistent_in_command
from vringd.scsi.persistent_out cimport persistent_out_command
from vringd.scsi.provisioning cimport (
    get_lba_status_command, unmap_command, write_same_command)
from vringd.scsi.readiness cimport (
    prevent_allow_command, read_defect_data_command, request_sense_command,
    send_diagnostic_command, start_stop_command, test_unit_ready_command)
from vringd.scsi.reservations cimport release_command, reserve_command
from vringd.scsi.state cimport TYPE_DISK, OpEntry, ScsiTask, TaskStep
from vringd.scsi.task cimport fail_field, reply, take_work
from vringd.scsi.transfer cimport (
    prefetch_command, read_command, synchronize_command, write_command)

cdef enum:
    TABLES = 3                  # disk, disk with thin provisioning, CD-ROM
    TABLE_ROOM = 96             # entries of one
    NO_ACTION = -1
    READS = OP_NEEDS_MEDIUM | OP_READS
    WRITES = OP_NEEDS_MEDIUM | OP_WRITES
    TELLS = OP_NO_ATTENTION | OP_ALWAYS | OP_IGNORES_RESERVE
    DISK = OP_DISK
    CDROM = OP_CDROM
    BOTH = OP_DISK | OP_CDROM

cdef OpEntry entries[TABLES][TABLE_ROOM]
cdef OpEntry *tables[TABLES][256]
cdef int counts[TABLES]


cdef OpEntry **operations_of(int type, bint thin) noexcept nogil:
    """The table of a kind of unit: [256], by opcode."""
    if type != TYPE_DISK:
        return &tables[2][0]
    return &tables[1 if thin else 0][0]


# ---- the table ----------------------------------------------------------------------------------

cdef int length_of(int opcode) noexcept nogil:
    """Bytes of a CDB, by the opcode's group (SPC-5 4.2.5.1)."""
    cdef int group = opcode >> 5
    return 6 if group == 0 else 16 if group == 4 else 12 if group == 5 else 10


cdef void add(int table, int opcode, int action, int flags, const uint8_t *usage,
              TaskStep run) noexcept nogil:
    cdef OpEntry *entry = &entries[table][counts[table]]
    cdef OpEntry **at = &tables[table][opcode]
    cdef uint8_t refused[16]
    cdef int i
    counts[table] += 1
    memset(refused, 0, 16)
    entry.opcode, entry.flags, entry.run = <uint8_t> opcode, <unsigned short> flags, run
    entry.length = <uint8_t> length_of(opcode)
    memcpy(entry.usage + 1, usage, <size_t> entry.length - 1)
    entry.usage[0] = <uint8_t> opcode
    if table == 0 and (opcode == 0x41 or opcode == 0x93):
        entry.usage[1] &= ~<uint8_t> 0x08       # WRITE SAME's UNMAP is for thin disks
    for i in range(1, entry.length):
        refused[i] = ~entry.usage[i]
    if action != NO_ACTION:
        entry.has_action, entry.action = 1, <unsigned short> action
        entry.usage[1] |= <uint8_t> action
        refused[1] &= 0xe0
    if opcode == 0x12:
        # An initiator that does not know yet whom it asks puts the LUN there, as SCSI-2 said:
        # Linux does, for other LUNs than 0.
        refused[1] &= 0x1f
    memcpy(entry.refused, refused, 16)
    while at[0] != NULL:
        at = &at[0].next
    at[0] = entry


cdef object define(int opcode, int action, int flags, str usage, TaskStep run):
    """usage: bytes 1 to the last of the CDB, in hexadecimal."""
    cdef bytes bits = bytes.fromhex(usage)
    if len(bits) != length_of(opcode) - 1:
        raise AssertionError(f"usage of {opcode:02x}h has {len(bits)} bytes")
    if flags & OP_DISK:
        if not flags & OP_WHEN_THIN:
            add(0, opcode, action, flags, bits, run)
        add(1, opcode, action, flags, bits, run)
    if flags & OP_CDROM:
        add(2, opcode, action, flags, bits, run)


cdef object define_all():
    none = "00 00 00 00 00"
    define(0x00, NO_ACTION, BOTH | OP_NEEDS_MEDIUM | OP_ALWAYS, none, test_unit_ready_command)
    define(0x03, NO_ACTION, BOTH | TELLS, "01 00 00 ff 00", request_sense_command)
    define(0x08, NO_ACTION, DISK | READS, "1f ff ff ff 00", read_command)
    define(0x0a, NO_ACTION, DISK | WRITES, "1f ff ff ff 00", write_command)
    define(0x12, NO_ACTION, BOTH | TELLS, "01 ff ff ff 00", inquiry_command)
    define(0x15, NO_ACTION, BOTH | OP_WRITES, "10 00 00 ff 00", mode_select_command)
    define(0x16, NO_ACTION, BOTH | OP_ALWAYS, none, reserve_command)
    define(0x17, NO_ACTION, BOTH | OP_ALWAYS | OP_IGNORES_RESERVE, none, release_command)
    define(0x1a, NO_ACTION, BOTH | OP_READS, "08 ff ff ff 00", mode_sense_command)
    define(0x1b, NO_ACTION, BOTH | OP_WRITES, "01 00 0f f7 00", start_stop_command)
    define(0x1d, NO_ACTION, BOTH | OP_WRITES, "14 00 00 00 00", send_diagnostic_command)
    define(0x1e, NO_ACTION, BOTH | OP_WRITES, "00 00 00 03 00", prevent_allow_command)

    ten = "ff ff ff ff 3f ff ff 00"             # LBA, group, length, control
    define(0x25, NO_ACTION, BOTH | OP_NEEDS_MEDIUM | OP_ALWAYS, "00 00 00 00 00 00 00 00 00",
           read_capacity_10_command)
    define(0x28, NO_ACTION, BOTH | READS, "1a" + ten, read_command)
    define(0x2a, NO_ACTION, DISK | WRITES, "1a" + ten, write_command)
    define(0x2e, NO_ACTION, DISK | WRITES, "16" + ten, write_and_verify_command)
    define(0x2f, NO_ACTION, DISK | READS, "16" + ten, verify_command)
    define(0x34, NO_ACTION, DISK | READS, "02" + ten, prefetch_command)
    define(0x35, NO_ACTION, DISK | WRITES, "06" + ten, synchronize_command)
    define(0x37, NO_ACTION, DISK | READS, "00 1f 00 00 00 00 ff ff 00", read_defect_data_command)
    define(0x41, NO_ACTION, DISK | WRITES, "08" + ten, write_same_command)
    define(0x42, NO_ACTION, DISK | WRITES | OP_WHEN_THIN, "00 00 00 00 00 3f ff ff 00",
           unmap_command)
    define(0x43, NO_ACTION, CDROM | READS, "02 0f 00 00 00 ff ff ff c0", read_toc_command)
    define(0x46, NO_ACTION, CDROM | TELLS, "03 ff ff 00 00 00 ff ff 00",
           get_configuration_command)
    define(0x4a, NO_ACTION, CDROM | TELLS, "01 00 00 ff 00 00 ff ff 00",
           get_event_status_command)
    define(0x51, NO_ACTION, CDROM | READS, "07 00 00 00 00 00 ff ff 00",
           read_disc_information_command)
    define(0x55, NO_ACTION, BOTH | OP_WRITES, "10 00 00 00 00 00 ff ff 00", mode_select_command)
    define(0x56, NO_ACTION, BOTH | OP_ALWAYS, "00 00 00 00 00 00 00 00 00", reserve_command)
    define(0x57, NO_ACTION, BOTH | OP_ALWAYS | OP_IGNORES_RESERVE, "00 00 00 00 00 00 00 00 00",
           release_command)
    define(0x5a, NO_ACTION, BOTH | OP_READS, "18 ff ff 00 00 00 ff ff 00", mode_sense_command)
    for action in range(4):
        define(0x5e, action, BOTH | OP_ALWAYS, "00 00 00 00 00 00 ff ff 00",
               persistent_in_command)
    for action in range(8):
        define(0x5f, action, BOTH | OP_ALWAYS, "00 ff 00 00 ff ff ff ff 00",
               persistent_out_command)

    sixteen = "ff ff ff ff ff ff ff ff ff ff ff ff 3f 00"
    define(0x88, NO_ACTION, DISK | READS, "1a" + sixteen, read_command)
    define(0x89, NO_ACTION, DISK | WRITES, "1a ff ff ff ff ff ff ff ff 00 00 00 ff 3f 00",
           compare_and_write_command)
    define(0x8a, NO_ACTION, DISK | WRITES, "1a" + sixteen, write_command)
    define(0x8b, NO_ACTION, DISK | WRITES, "1a" + sixteen, orwrite_command)
    define(0x8e, NO_ACTION, DISK | WRITES, "16" + sixteen, write_and_verify_command)
    define(0x8f, NO_ACTION, DISK | READS, "16" + sixteen, verify_command)
    define(0x90, NO_ACTION, DISK | READS, "02" + sixteen, prefetch_command)
    define(0x91, NO_ACTION, DISK | WRITES, "06" + sixteen, synchronize_command)
    define(0x93, NO_ACTION, DISK | WRITES, "09" + sixteen, write_same_command)
    define(0x9e, 0x10, DISK | OP_NEEDS_MEDIUM | OP_ALWAYS,
           "00 00 00 00 00 00 00 00 00 ff ff ff ff 00 00", read_capacity_16_command)
    define(0x9e, 0x12, DISK | READS, "00 ff ff ff ff ff ff ff ff ff ff ff ff 00 00",
           get_lba_status_command)

    twelve = "ff ff ff ff ff ff ff ff 3f 00"
    define(0xa0, NO_ACTION, BOTH | TELLS, "00 ff 00 00 00 ff ff ff ff 00 00",
           report_luns_command)
    define(0xa3, 0x0c, BOTH | OP_READS, "00 87 ff ff ff ff ff ff ff 00 00",
           report_supported_opcodes)
    define(0xa3, 0x0d, BOTH | OP_READS, "00 80 00 00 00 ff ff ff ff 00 00",
           report_supported_tmfs)
    define(0xa8, NO_ACTION, BOTH | READS, "1a" + twelve, read_command)
    define(0xaa, NO_ACTION, DISK | WRITES, "1a" + twelve, write_command)
    define(0xae, NO_ACTION, DISK | WRITES, "16" + twelve, write_and_verify_command)
    define(0xaf, NO_ACTION, DISK | READS, "16" + twelve, verify_command)
    define(0xb7, NO_ACTION, DISK | READS, "1f ff ff ff ff ff ff ff ff 00 00",
           read_defect_data_command)
    define(0xbd, NO_ACTION, CDROM | OP_ALWAYS, "00 00 00 00 00 00 00 ff ff 00 00",
           mechanism_status_command)


define_all()


# ---- REPORT SUPPORTED OPERATION CODES -----------------------------------------------------------

cdef uint8_t *put_timeouts(uint8_t *at) noexcept nogil:
    """A command timeouts descriptor that says nothing: 0 is "not specified"."""
    memset(at, 0, 12)
    put16(at, 10)
    return at + 12


cdef void report_all(ScsiTask *task, bint timeouts) noexcept nogil:
    cdef OpEntry *entry
    cdef uint8_t *at
    cdef int i
    if not take_work(task, 4 + TABLE_ROOM * 20):
        return
    at = task.work + 4
    for i in range(256):
        entry = task.unit.operations[i]
        while entry != NULL:
            memset(at, 0, 8)
            at[0] = entry.opcode
            put16(at + 2, entry.action)
            at[5] = (1 if entry.has_action else 0) | (2 if timeouts else 0)
            put16(at + 6, entry.length)
            at += 8
            if timeouts:
                at = put_timeouts(at)
            entry = entry.next
    put32(task.work, <uint32_t> (at - task.work) - 4)
    reply(task, task.work, <uint64_t> (at - task.work), get32(task.cdb + 6))


cdef void report_one(ScsiTask *task, int kind, bint timeouts) noexcept nogil:
    cdef OpEntry *entry = task.unit.operations[task.cdb[3]]
    cdef uint32_t action = get16(task.cdb + 4)
    cdef uint8_t data[4 + 16 + 12]
    cdef uint8_t *at = data + 4
    if entry != NULL and kind != 3 and (kind == 2) != (entry.has_action != 0):
        fail_field(task, 2, 2)
        return
    if kind == 3 and entry != NULL and not entry.has_action and action:
        entry = NULL
    while entry != NULL and entry.has_action and entry.action != action:
        entry = entry.next
    memset(data, 0, 4)
    data[1] = 1                         # not supported
    if entry != NULL:
        data[1] = 3
        put16(data + 2, entry.length)
        memcpy(at, entry.usage, entry.length)
        at += entry.length
        if timeouts:
            data[1] |= 0x80
            at = put_timeouts(at)
    reply(task, data, <uint64_t> (at - data), get32(task.cdb + 6))


cdef void report_supported_opcodes(ScsiTask *task) noexcept nogil:
    """REPORT SUPPORTED OPERATION CODES (SPC-5 6.34)."""
    cdef int kind = task.cdb[2] & 7
    cdef bint timeouts = task.cdb[2] & 0x80
    if kind == 0:
        report_all(task, timeouts)
    elif kind <= 3:
        report_one(task, kind, timeouts)
    else:
        fail_field(task, 2, 2)


cdef void report_supported_tmfs(ScsiTask *task) noexcept nogil:
    """REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: abort task (set), clear task set, logical unit
    reset, query task (set), I_T nexus reset."""
    cdef uint8_t data[16]
    cdef bint extended = task.cdb[2] & 0x80
    memset(data, 0, 16)
    data[0], data[1] = 0xdc, 0x03
    data[3] = 12 if extended else 0
    reply(task, data, 16 if extended else 4, get32(task.cdb + 6))
