# INQUIRY and READ CAPACITY: what an initiator learns about the unit.

from vringd.scsi.state cimport ScsiTask


cdef void inquiry_command(ScsiTask *task) noexcept nogil
cdef void inquiry_without_unit(ScsiTask *task) noexcept nogil
cdef void read_capacity_10_command(ScsiTask *task) noexcept nogil
cdef void read_capacity_16_command(ScsiTask *task) noexcept nogil
