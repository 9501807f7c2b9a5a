"""Ends of a command, and its data.

Every function of a command ends in exactly one of these: it submits an operation, waits
(locks.pyx), or ends the task by one of the functions below. The task must not be touched after
any of them.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from vringd.block.ops cimport OP_FLUSH, OP_READ
from vringd.core.sys cimport (
    ENOMEM, ENOSPC, vr_likely, vr_load_relaxed_u32, vr_store_release_u32, vr_unlikely)
from vringd.scsi.locks cimport fence_of_runner, leave_range, wake_waiters
from vringd.scsi.sense cimport (
    CODE_INTERNAL_FAILURE, CODE_INVALID_FIELD, CODE_INVALID_PARAMETER, CODE_INVALID_UNIT,
    CODE_OUT_OF_MEMORY, CODE_READ_ERROR, CODE_SPACE_EXHAUSTED, CODE_WRITE_ERROR,
    KEY_ABORTED_COMMAND, KEY_DATA_PROTECT, KEY_HARDWARE_ERROR, KEY_ILLEGAL_REQUEST,
    KEY_MEDIUM_ERROR, check_condition, set_field_pointer)
from vringd.scsi.state cimport STATUS_TASK_ABORTED, Lane, ScsiTask, TaskOwner


cdef void finish_task(ScsiTask *task) noexcept nogil:
    """Give the task back to its owner; everything that it held is released first."""
    cdef Lane *lane = task.lane
    cdef uint64_t size = task.in_length if task.in_length else task.out_length
    if vr_unlikely(task.work != NULL):
        free(task.work)
        task.work = NULL
    if vr_likely(lane != NULL):
        if task.counted:
            leave_range(task)
        if vr_unlikely(is_aborted(task)):
            task.aborted = 1
        if task.previous == NULL:
            lane.first = task.next
        else:
            task.previous.next = task.next
        if task.next != NULL:
            task.next.previous = task.previous
        # The counter goes down and then the word is loaded; who waits stores the word, makes
        # every thread pass a fence and then looks at the counters (locks.pyx).
        vr_store_release_u32(&lane.running[task.parity], lane.running[task.parity] - 1)
        fence_of_runner(task.unit)
        if vr_unlikely(vr_load_relaxed_u32(&task.unit.waiters) != 0):
            wake_waiters(task.unit)
    task.residual = size - task.transferred if size > task.transferred else 0
    (<TaskOwner> task.owner).complete(task)


cdef void end_aborted(ScsiTask *task) noexcept nogil:
    """End a task that was aborted."""
    task.status = STATUS_TASK_ABORTED
    task.sense_length = 0
    task.transferred = 0
    finish_task(task)


cdef bint operation_failed(ScsiTask *task) noexcept nogil:
    """Look at how an operation of a loop ended; True: the task has ended with it."""
    if is_aborted(task):
        end_aborted(task)
        return True
    if task.req.result != 0:
        fail_result(task)
        return True
    return False


cdef void fail(ScsiTask *task, int key, int code) noexcept nogil:
    """End with CHECK CONDITION."""
    check_condition(task, key, code)
    finish_task(task)


cdef void fail_field(ScsiTask *task, uint32_t byte, int bit) noexcept nogil:
    """A field of the CDB is not acceptable; bit: its leftmost bit, -1 for whole bytes."""
    check_condition(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_FIELD)
    set_field_pointer(task, True, byte, bit)
    finish_task(task)


cdef void fail_parameter(ScsiTask *task, uint32_t byte, int bit) noexcept nogil:
    """A field of the parameter list is not acceptable."""
    check_condition(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_PARAMETER)
    set_field_pointer(task, False, byte, bit)
    finish_task(task)


cdef void fail_overrun(ScsiTask *task) noexcept nogil:
    """The CDB asks for more than the initiator's buffers hold."""
    task.overrun = 1
    task.transferred = 0
    fail(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_UNIT)


cdef void fail_result(ScsiTask *task) noexcept nogil:
    """The channel's operation failed: say what its errno says."""
    cdef int error = -task.req.result
    task.transferred = 0
    if error == ENOSPC:
        fail(task, KEY_DATA_PROTECT, CODE_SPACE_EXHAUSTED)
    elif error == ENOMEM:
        fail(task, KEY_ABORTED_COMMAND, CODE_OUT_OF_MEMORY)
    elif task.req.op == OP_READ:
        fail(task, KEY_MEDIUM_ERROR, CODE_READ_ERROR)
    elif task.req.op == OP_FLUSH:
        fail(task, KEY_HARDWARE_ERROR, CODE_INTERNAL_FAILURE)
    else:
        fail(task, KEY_MEDIUM_ERROR, CODE_WRITE_ERROR)


# ---- data ---------------------------------------------------------------------------------------

cdef void reply(ScsiTask *task, const uint8_t *data, uint64_t size,
                uint64_t allocation) noexcept nogil:
    """Put as much of data as the CDB's allocation length permits into Data-In; end with GOOD."""
    cdef uint64_t done = 0, here
    cdef uint32_t i = 0
    size = min(size, allocation)
    if size > task.in_length:
        fail_overrun(task)
        return
    while done < size:
        here = min(size - done, <uint64_t> task.in_iov[i].iov_len)
        memcpy(task.in_iov[i].iov_base, data + done, here)
        done += here
        i += 1
    task.transferred = task.given = size
    finish_task(task)


cdef void copy_out(ScsiTask *task, uint64_t skip, uint8_t *target, uint64_t size) noexcept nogil:
    """Copy bytes [skip, skip + size) of Data-Out, which has that many."""
    cdef uint64_t here
    cdef uint32_t i = 0
    while size:
        if skip >= task.out_iov[i].iov_len:
            skip -= task.out_iov[i].iov_len
        else:
            here = min(size, <uint64_t> task.out_iov[i].iov_len - skip)
            memcpy(target, <uint8_t *> task.out_iov[i].iov_base + skip, here)
            target += here
            size -= here
            skip = 0
        i += 1


cdef bint take_parameters(ScsiTask *task, uint8_t *target, uint64_t size) noexcept nogil:
    """Copy a parameter list of size bytes; False (and the task has ended) if there is less."""
    if size > task.out_length:
        fail_overrun(task)
        return False
    copy_out(task, 0, target, size)
    task.transferred = size
    return True


cdef bint take_work(ScsiTask *task, uint64_t size) noexcept nogil:
    """Give the task memory of its own (instead of what it had); False: it has ended."""
    free(task.work)
    task.work = <uint8_t *> malloc(size if size else 1)
    if task.work == NULL:
        fail(task, KEY_ABORTED_COMMAND, CODE_OUT_OF_MEMORY)
        return False
    task.work_size = size
    return True


cdef uint32_t trim(iovec *iov, uint32_t count, uint64_t size) noexcept nogil:
    """Cut the list to its first size bytes; how many entries are left. The list has that many."""
    cdef uint32_t i
    for i in range(count):
        if iov[i].iov_len >= size:
            iov[i].iov_len = size
            return i + 1 if size else i
        size -= iov[i].iov_len
    return count
