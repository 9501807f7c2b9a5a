from vringd.scsi.state cimport ScsiTask


cdef void persistent_out_command(ScsiTask *task) noexcept nogil
