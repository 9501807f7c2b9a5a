# An initiator made of bytes, and a disk made of memory, to test the SCSI target with.

from libc.stdint cimport int32_t, uint32_t, uint64_t, uint8_t

from vringd.core.channel cimport Channel, QueueHandler, ThreadState
from vringd.core.vring cimport Request, Vring
from vringd.core.sys cimport iovec
from vringd.scsi.state cimport ScsiTask, TaskOwner
from vringd.scsi.target cimport ScsiTarget
from vringd.scsi.unit cimport ScsiNexus


cdef enum:
    OPS = 8


cdef struct MemoryState:        # shared by the channels of a disk
    uint8_t *data
    uint8_t *stored             # of each 512 bytes: whether they are (not a hole)
    uint64_t size
    uint64_t counts[OPS]        # operations so far
    uint64_t durable            # writes with FUA
    uint64_t violations         # requests beyond the disk
    uint32_t errors[OPS]        # errno that the operation ends with; 0: none
    uint64_t pause_ns           # that every operation takes before it begins
    uint32_t holds              # bits: operations that wait for release


cdef class MemoryDisk:
    cdef MemoryState *state


cdef class MemoryChannel(Channel):
    cdef MemoryDisk disk
    cdef MemoryState *state
    cdef Request *held
    cdef uint32_t held_count
    cdef int32_t perform(self, Request *req) noexcept nogil
    cdef void release(self) noexcept nogil


cdef struct Flight:             # a command in flight
    ScsiTask task
    Request req
    uint32_t done


cdef class Command:
    cdef Flight *flight
    cdef iovec *segments
    cdef uint8_t *buffers       # Data-Out, guard, Data-In, guard
    cdef uint64_t out_size
    cdef uint64_t in_size
    cdef bint intact(self)


cdef class Completions(QueueHandler):
    pass


cdef class Initiator(TaskOwner):
    cdef readonly ScsiNexus nexus
    cdef readonly ScsiTarget target
    cdef Channel channel
    cdef Completions completions
    cdef ThreadState *thread
    cdef Vring *queue
    cdef int lane
    cdef set running
    cdef bint wait_for(self, Flight *flight, uint64_t timeout_ns) noexcept nogil
    cdef void take_remote(self) noexcept nogil
    cdef void prepare(self, Flight *flight) noexcept nogil
    cdef Command make(self, bytes cdb, bytes data_out, uint64_t data_in, object split)
    cdef int run(self, Flight *flight, uint8_t *block, uint64_t out_size,
                 uint64_t in_size) noexcept nogil
