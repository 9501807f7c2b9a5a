from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.core.channel cimport Channel, Question, QueueHandler
from vringd.core.sys cimport iovec
from vringd.core.vring cimport Request, Vring
from vringd.scsi.state cimport ScsiTask, TaskOwner
from vringd.scsi.unit cimport ScsiNexus


cdef struct ScsiSlot:           # a command, beside the Request that it came with
    ScsiTask task               # first: a task's address is that of its slot
    ScsiSlot *next              # in ScsiPath.spare
    ScsiSlot **spare            # the list to which it goes back
    iovec *response             # the segments that the response lies in: whole of them entirely,
    uint32_t whole
    iovec split                 # and these first bytes of the next one
    uint32_t sense_size         # when the command began: the driver may change it
    uint8_t refused             # a response code; 0: the task tells


cdef class ScsiPath(Channel):
    cdef readonly uint32_t lane     # the IOThread's number in every nexus of the device
    cdef ScsiSlot *spare            # for that IOThread only


cdef class ScsiAnswers(TaskOwner):
    cdef void answer(self, ScsiSlot *slot) noexcept nogil
    cdef void scatter(self, ScsiSlot *slot, uint32_t sense_length, uint32_t residual,
                      uint32_t last) noexcept nogil


cdef class ScsiDevice(QueueHandler):
    # Set by the control plane, read by every IOThread: whole words, so no lock.
    cdef void *targets[256]     # ScsiTarget; NULL: nothing is there
    cdef uint32_t sense_size
    cdef uint32_t cdb_size
    # The control plane's own.
    cdef ScsiAnswers answers
    cdef object settings
    cdef dict by_number         # number: ScsiTarget, also of those that were removed
    cdef readonly uint64_t driver_features
    cdef void refuse(self, ScsiSlot *slot, int response) noexcept nogil


cdef class TaskQuestion(Question):
    cdef ScsiNexus nexus
    cdef uint32_t lane
    cdef uint64_t tag
    cdef bint any_tag
    cdef bint aborts
    cdef bint begun
    cdef bint seen
