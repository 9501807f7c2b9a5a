from vringd.scsi.state cimport ScsiTask


cdef void persistent_in_command(ScsiTask *task) noexcept nogil
