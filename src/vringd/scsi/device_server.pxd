# The three ways into the SCSI target, each called in the IOThread of task.lane.

from vringd.scsi.state cimport ScsiTask


cdef void execute_task(ScsiTask *task) noexcept nogil
cdef void operation_done(ScsiTask *task) noexcept nogil
cdef void abort_task(ScsiTask *task) noexcept nogil
