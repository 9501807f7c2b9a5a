# What all commands do with their task: take parameters, give data, end.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.core.channel cimport Channel
from vringd.core.sys cimport iovec, vr_load_acquire_u32
from vringd.core.vring cimport Request
from vringd.scsi.state cimport ScsiTask, TaskStep


cdef void finish_task(ScsiTask *task) noexcept nogil
cdef bint operation_failed(ScsiTask *task) noexcept nogil
cdef void end_aborted(ScsiTask *task) noexcept nogil
cdef void fail(ScsiTask *task, int key, int code) noexcept nogil
cdef void fail_field(ScsiTask *task, uint32_t byte, int bit) noexcept nogil
cdef void fail_parameter(ScsiTask *task, uint32_t byte, int bit) noexcept nogil
cdef void fail_overrun(ScsiTask *task) noexcept nogil
cdef void fail_result(ScsiTask *task) noexcept nogil
cdef void reply(ScsiTask *task, const uint8_t *data, uint64_t size,
                uint64_t allocation) noexcept nogil
cdef bint take_parameters(ScsiTask *task, uint8_t *target, uint64_t size) noexcept nogil
cdef bint take_work(ScsiTask *task, uint64_t size) noexcept nogil
cdef void copy_out(ScsiTask *task, uint64_t skip, uint8_t *target, uint64_t size) noexcept nogil
cdef uint32_t trim(iovec *iov, uint32_t count, uint64_t size) noexcept nogil


cdef inline bint is_aborted(ScsiTask *task) noexcept nogil:
    return task.aborted or task.generation != vr_load_acquire_u32(&task.nexus.generation)


cdef inline void succeed(ScsiTask *task) noexcept nogil:
    """End with GOOD, the status that every task begins with."""
    finish_task(task)


cdef inline void submit(ScsiTask *task, int op, uint64_t offset, uint64_t length, int flags,
                        TaskStep step) noexcept nogil:
    """Begin an operation of the channel that transfers nothing, or to req.iov; step follows."""
    cdef Request *req = task.req
    req.op, req.flags = <uint8_t> op, <uint8_t> flags
    req.offset, req.length = offset, length
    task.step = step
    (<Channel> task.lane.channel).submit(req)


cdef inline bint submit_in_loop(ScsiTask *task, int op, uint64_t offset, uint64_t length, int flags,
                                TaskStep step) noexcept nogil:
    """As submit, for commands of many operations, which must not make the stack deeper with each.
    True: it is done already, and step will not be called. False: step follows."""
    task.looping, task.looped = 1, 0
    submit(task, op, offset, length, flags, step)
    task.looping = 0
    return task.looped
