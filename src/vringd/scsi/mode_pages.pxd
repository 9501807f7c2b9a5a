# MODE SENSE and MODE SELECT.

from vringd.scsi.state cimport ScsiTask


cdef void mode_sense_command(ScsiTask *task) noexcept nogil
cdef void mode_select_command(ScsiTask *task) noexcept nogil
