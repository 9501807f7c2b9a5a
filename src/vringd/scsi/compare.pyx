"""Commands that compare or combine the initiator's data with the disk's.

Blocks come into memory of the task's own, CHUNK_BYTES at a time, whatever the length of the
command: an initiator must not decide how much memory we take.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcmp

from vringd.block.ops cimport FLAG_FUA, OP_READ, OP_WRITE
from vringd.core.stats cimport KIND_WRITE
from vringd.core.sys cimport vr_load_relaxed_u32
from vringd.scsi.locks cimport enter_atomic, enter_write
from vringd.scsi.sense cimport (
    CODE_INVALID_UNIT, CODE_MISCOMPARE, KEY_ILLEGAL_REQUEST, KEY_MISCOMPARE, check_condition,
    set_information)
from vringd.scsi.state cimport ScsiTask
from vringd.scsi.task cimport (
    copy_out, fail, fail_field, fail_overrun, fail_result, finish_task, operation_failed, submit,
    submit_in_loop, succeed, take_work, trim)
from vringd.scsi.transfer cimport (
    BlockRange, check_range, check_transfer, check_writable, get_range)

cdef enum:
    CHUNK_BYTES = 1 << 18


cdef enum ByteCheck:            # the BYTCHK field
    CHECK_MEDIUM = 0            # the blocks can be read
    CHECK_ALL = 1               # they are equal to as many in Data-Out
    CHECK_ONE = 3               # they are each equal to the one in Data-Out


cdef int64_t first_difference(const uint8_t *a, const uint8_t *b, uint64_t size) noexcept nogil:
    """Offset of the first byte that differs, -1: none."""
    cdef uint64_t i
    if memcmp(a, b, size) == 0:
        return -1
    for i in range(size):
        if a[i] != b[i]:
            return <int64_t> i
    return -1


cdef int64_t differs_from_out(ScsiTask *task, uint64_t skip, const uint8_t *data,
                              uint64_t size) noexcept nogil:
    """Where data differs from bytes [skip, skip + size) of Data-Out, counted from skip; or -1."""
    cdef uint64_t done = 0, here
    cdef int64_t at
    cdef uint32_t i = 0
    while done < size:
        if skip >= task.out_iov[i].iov_len:
            skip -= task.out_iov[i].iov_len
        else:
            here = min(size - done, <uint64_t> task.out_iov[i].iov_len - skip)
            at = first_difference(<uint8_t *> task.out_iov[i].iov_base + skip, data + done, here)
            if at >= 0:
                return at + <int64_t> done
            done += here
            skip = 0
        i += 1
    return -1


cdef inline uint64_t chunk_of(ScsiTask *task) noexcept nogil:
    """Bytes of the chunk at task.cursor (bytes from the range's start)."""
    return min((task.blocks << task.unit.block_shift) - task.cursor, <uint64_t> CHUNK_BYTES)


cdef inline void use_work(ScsiTask *task, uint64_t size) noexcept nogil:
    """The next operation transfers size bytes to or from the start of task.work."""
    task.work_iov.iov_base, task.work_iov.iov_len = task.work, size
    task.req.iov, task.req.niov = &task.work_iov, 1


cdef inline uint64_t disk_offset(ScsiTask *task) noexcept nogil:
    """Byte of the disk at task.cursor."""
    return (task.lba << task.unit.block_shift) + task.cursor


cdef inline int write_flags(ScsiTask *task) noexcept nogil:
    if task.cdb[1] & 0x08 or not vr_load_relaxed_u32(&task.unit.writeback):
        return FLAG_FUA
    return 0


# ---- VERIFY -------------------------------------------------------------------------------------

cdef void verify_chunks(ScsiTask *task) noexcept nogil:
    """Read and look at what is left of the range, or wait for a part of it."""
    cdef uint64_t size
    while task.cursor < task.blocks << task.unit.block_shift:
        size = chunk_of(task)
        use_work(task, size)
        if not submit_in_loop(task, OP_READ, disk_offset(task), size, 0, verify_chunk_done):
            return
        if not chunk_is_right(task):
            return
    finish_task(task)


cdef bint chunk_is_right(ScsiTask *task) noexcept nogil:
    """Look at the chunk that was read; False: the task has ended."""
    cdef uint64_t size = task.req.length, block = <uint64_t> 1 << task.unit.block_shift
    cdef uint64_t at = 0
    cdef int64_t difference = -1
    if operation_failed(task):
        return False
    if task.phase == CHECK_ALL:
        difference = differs_from_out(task, task.cursor, task.work, size)
    elif task.phase == CHECK_ONE:
        while at < size and difference < 0:
            difference = differs_from_out(task, 0, task.work + at, block)
            at += block
    if difference >= 0:
        task.transferred = 0
        fail(task, KEY_MISCOMPARE, CODE_MISCOMPARE)
        return False
    task.cursor += size
    return True


cdef void verify_chunk_done(ScsiTask *task) noexcept nogil:
    if chunk_is_right(task):
        verify_chunks(task)


cdef void begin_verify(ScsiTask *task) noexcept nogil:
    """Verify the task's range as task.phase (ByteCheck) says."""
    task.cursor = 0
    if take_work(task, chunk_of(task)):
        verify_chunks(task)


cdef void verify_command(ScsiTask *task) noexcept nogil:
    """VERIFY (10), (12) and (16) (SBC-4 5.36)."""
    cdef BlockRange range
    cdef uint64_t needed = 0
    cdef int check = task.cdb[1] >> 1 & 3
    get_range(task, &range)
    if check == 2:
        fail_field(task, 1, 2)
        return
    if not check_range(task, &range):
        return
    if check == CHECK_ALL:
        needed = range.blocks << task.unit.block_shift
    elif check == CHECK_ONE and range.blocks:
        needed = <uint64_t> 1 << task.unit.block_shift
    if needed > task.out_length:
        fail_overrun(task)
        return
    task.transferred = needed
    if range.blocks == 0:
        succeed(task)
        return
    task.lba, task.blocks = range.lba, range.blocks
    task.phase = <uint8_t> check
    begin_verify(task)


# ---- WRITE AND VERIFY ---------------------------------------------------------------------------

cdef void written(ScsiTask *task) noexcept nogil:
    if task.req.result != 0:
        fail_result(task)
        return
    begin_verify(task)


cdef void begin_written(ScsiTask *task) noexcept nogil:
    cdef uint64_t length = task.blocks << task.unit.block_shift
    cdef uint32_t count = trim(task.out_iov, task.out_niov, length)
    task.req.iov, task.req.niov = task.out_iov, count
    # What is verified is what is on the medium.
    submit(task, OP_WRITE, task.lba << task.unit.block_shift, length, FLAG_FUA, written)


cdef bint check_data_out(ScsiTask *task, BlockRange *range) noexcept nogil:
    """The checks of a command that writes as many blocks as it has in Data-Out; False: it has
    ended, be it because there are none."""
    if (not check_writable(task) or not check_range(task, range)
            or not check_transfer(task, range)):
        return False
    if range.blocks << task.unit.block_shift > task.out_length:
        fail_overrun(task)
        return False
    if range.blocks == 0:
        succeed(task)
        return False
    task.req.kind = KIND_WRITE
    task.transferred = range.blocks << task.unit.block_shift
    task.lba, task.blocks, task.cursor = range.lba, range.blocks, 0
    return True


cdef void write_and_verify_command(ScsiTask *task) noexcept nogil:
    """WRITE AND VERIFY (10), (12) and (16) (SBC-4 5.48)."""
    cdef BlockRange range
    cdef int check = task.cdb[1] >> 1 & 3
    get_range(task, &range)
    if check & 2:
        fail_field(task, 1, 2)
        return
    if not check_data_out(task, &range):
        return
    task.phase = <uint8_t> check
    if enter_write(task, begin_written):
        begin_written(task)


# ---- COMPARE AND WRITE --------------------------------------------------------------------------

cdef void atomic_written(ScsiTask *task) noexcept nogil:
    if task.req.result != 0:
        fail_result(task)
        return
    task.transferred = task.out_length
    finish_task(task)


cdef void compared(ScsiTask *task) noexcept nogil:
    cdef uint64_t size = task.blocks << task.unit.block_shift
    cdef int64_t difference
    if task.req.result != 0:
        fail_result(task)
        return
    difference = differs_from_out(task, 0, task.work, size)
    if difference >= 0:
        check_condition(task, KEY_MISCOMPARE, CODE_MISCOMPARE)
        set_information(task, <uint64_t> difference)
        finish_task(task)
        return
    copy_out(task, size, task.work, size)
    use_work(task, size)
    submit(task, OP_WRITE, disk_offset(task), size, write_flags(task), atomic_written)


cdef void begin_compare(ScsiTask *task) noexcept nogil:
    cdef uint64_t size = task.blocks << task.unit.block_shift
    use_work(task, size)
    submit(task, OP_READ, disk_offset(task), size, 0, compared)


cdef void compare_and_write_command(ScsiTask *task) noexcept nogil:
    """COMPARE AND WRITE (SBC-4 5.3)."""
    cdef BlockRange range
    get_range(task, &range)
    range.blocks = task.cdb[13]
    if range.blocks > task.unit.max_compare:
        fail_field(task, 13, -1)
        return
    if not check_writable(task) or not check_range(task, &range):
        return
    if range.blocks << task.unit.block_shift << 1 > task.out_length:
        fail_overrun(task)
        return
    if range.blocks << task.unit.block_shift << 1 != task.out_length:
        # Where the second half begins would be a matter of opinion.
        fail(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_UNIT)
        return
    if range.blocks == 0:
        succeed(task)
        return
    task.lba, task.blocks, task.cursor = range.lba, range.blocks, 0
    task.req.kind = KIND_WRITE
    if take_work(task, task.blocks << task.unit.block_shift):
        if enter_atomic(task, begin_compare):
            begin_compare(task)


# ---- ORWRITE ------------------------------------------------------------------------------------

cdef void or_chunks(ScsiTask *task) noexcept nogil:
    """Read, combine and write what is left of the range, or wait for a part of it."""
    cdef uint64_t size
    while task.cursor < task.blocks << task.unit.block_shift:
        size = chunk_of(task)
        use_work(task, size)
        if not submit_in_loop(task, OP_READ, disk_offset(task), size, 0, or_chunk_read):
            return
        if operation_failed(task) or not write_chunk(task) or operation_failed(task):
            return
        task.cursor += size
    finish_task(task)


cdef bint write_chunk(ScsiTask *task) noexcept nogil:
    """Combine the chunk that was read with Data-Out and write it; as submit_in_loop."""
    cdef uint64_t size = chunk_of(task), skip = task.cursor, done = 0, here, j
    cdef const uint8_t *data
    cdef uint32_t i = 0
    while done < size:
        if skip >= task.out_iov[i].iov_len:
            skip -= task.out_iov[i].iov_len
        else:
            here = min(size - done, <uint64_t> task.out_iov[i].iov_len - skip)
            data = <const uint8_t *> task.out_iov[i].iov_base + skip
            for j in range(here):
                task.work[done + j] |= data[j]
            done += here
            skip = 0
        i += 1
    return submit_in_loop(task, OP_WRITE, disk_offset(task), size, write_flags(task),
                          or_chunk_written)


cdef void or_chunk_read(ScsiTask *task) noexcept nogil:
    if not operation_failed(task) and write_chunk(task):
        or_chunk_written(task)


cdef void or_chunk_written(ScsiTask *task) noexcept nogil:
    if not operation_failed(task):
        task.cursor += task.req.length
        or_chunks(task)


cdef void orwrite_command(ScsiTask *task) noexcept nogil:
    """ORWRITE (16) (SBC-4 5.11)."""
    cdef BlockRange range
    get_range(task, &range)
    if check_data_out(task, &range) and take_work(task, chunk_of(task)):
        if enter_atomic(task, or_chunks):
            or_chunks(task)
