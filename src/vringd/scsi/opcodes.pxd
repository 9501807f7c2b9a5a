# Which operations exist, and what must be known before one is run.

from vringd.scsi.state cimport OpEntry, ScsiTask


cdef enum OpFlags:
    OP_NEEDS_MEDIUM = 0x01
    OP_NO_ATTENTION = 0x02      # served although a unit attention is pending
    OP_ALWAYS = 0x04            # no persistent reservation stands in its way
    OP_READS = 0x08             # a reservation that excludes access does
    OP_WRITES = 0x10            # any reservation does
    OP_IGNORES_RESERVE = 0x20   # another initiator's RESERVE(6/10) does not stand in its way
    OP_DISK = 0x100
    OP_CDROM = 0x200
    OP_WHEN_THIN = 0x400        # only where logical block provisioning is supported


cdef OpEntry **operations_of(int type, bint thin) noexcept nogil
cdef void report_supported_opcodes(ScsiTask *task) noexcept nogil
cdef void report_supported_tmfs(ScsiTask *task) noexcept nogil
