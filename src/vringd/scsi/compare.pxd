# VERIFY, WRITE AND VERIFY, COMPARE AND WRITE, ORWRITE: commands that look at what is on the disk.

from vringd.scsi.state cimport ScsiTask


cdef void verify_command(ScsiTask *task) noexcept nogil
cdef void write_and_verify_command(ScsiTask *task) noexcept nogil
cdef void compare_and_write_command(ScsiTask *task) noexcept nogil
cdef void orwrite_command(ScsiTask *task) noexcept nogil
