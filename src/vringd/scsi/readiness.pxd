# Whether the unit is ready, and what makes it so: TEST UNIT READY, REQUEST SENSE, START STOP UNIT,
# PREVENT ALLOW MEDIUM REMOVAL, SEND DIAGNOSTIC, READ DEFECT DATA.

from vringd.scsi.state cimport NexusState, ScsiTask


cdef enum MediaEvent:           # UnitState.media_events, bits
    MEDIA_EJECT_REQUEST = 1
    MEDIA_NEW = 2
    MEDIA_REMOVED = 4


cdef void test_unit_ready_command(ScsiTask *task) noexcept nogil
cdef void request_sense_command(ScsiTask *task) noexcept nogil
cdef void start_stop_command(ScsiTask *task) noexcept nogil
cdef void prevent_allow_command(ScsiTask *task) noexcept nogil
cdef void send_diagnostic_command(ScsiTask *task) noexcept nogil
cdef void read_defect_data_command(ScsiTask *task) noexcept nogil
cdef void reply_sense(ScsiTask *task, int key, int code) noexcept nogil
cdef void allow_removal(NexusState *nexus) noexcept nogil
