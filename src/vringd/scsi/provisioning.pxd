# UNMAP, WRITE SAME, GET LBA STATUS: blocks that need not be stored.

from vringd.scsi.state cimport ScsiTask


cdef void unmap_command(ScsiTask *task) noexcept nogil
cdef void write_same_command(ScsiTask *task) noexcept nogil
cdef void get_lba_status_command(ScsiTask *task) noexcept nogil
