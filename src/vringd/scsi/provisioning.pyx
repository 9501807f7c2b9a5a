"""Logical block provisioning (SBC-4 4.7), and WRITE SAME.

LBPRZ is 1: deallocated blocks read as zeros. So UNMAP is an operation that zeroes and may
deallocate, not the channel's discard, whose outcome is undefined.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from vringd.block.ops cimport (
    FLAG_FUA, FLAG_HOLE, FLAG_UNMAP, OP_EXTENT, OP_WRITE, OP_WRITE_ZEROES)
from vringd.core.stats cimport KIND_DISCARD, KIND_WRITE
from vringd.core.sys cimport vr_load_relaxed_u32, vr_load_relaxed_u64
from vringd.scsi.bytes cimport get16, get32, get64, put32, put64
from vringd.scsi.locks cimport enter_write
from vringd.scsi.sense cimport (
    CODE_INVALID_UNIT, CODE_LIST_LENGTH, CODE_OUT_OF_RANGE, KEY_ILLEGAL_REQUEST, check_condition,
    set_information)
from vringd.scsi.state cimport ScsiTask
from vringd.scsi.task cimport (
    copy_out, fail, fail_field, fail_overrun, fail_parameter, fail_result, finish_task,
    operation_failed, reply, submit, submit_in_loop, succeed, take_parameters, take_work)
from vringd.scsi.transfer cimport BlockRange, check_range, check_writable, get_range

cdef enum:
    PATTERN_BYTES = 1 << 18     # of a repeated block, in one write
    DESCRIPTOR = 16             # bytes of a descriptor of UNMAP and of GET LBA STATUS
    HEADER = 8
    MOST_EXTENTS = 64           # that one GET LBA STATUS tells of


# ---- UNMAP --------------------------------------------------------------------------------------

cdef void unmap_next(ScsiTask *task) noexcept nogil:
    """Unmap what is left of the list, or wait for a range of it."""
    cdef int shift = task.unit.block_shift
    cdef uint8_t *at
    cdef uint64_t blocks
    while task.cursor < task.end:
        at = task.work + task.cursor
        task.cursor += DESCRIPTOR
        blocks = get32(at + 8)
        if blocks:
            if not submit_in_loop(task, OP_WRITE_ZEROES, get64(at) << shift, blocks << shift,
                                  FLAG_UNMAP, unmap_done):
                return
            if operation_failed(task):
                return
    finish_task(task)


cdef void unmap_done(ScsiTask *task) noexcept nogil:
    if not operation_failed(task):
        unmap_next(task)


cdef bint check_list(ScsiTask *task) noexcept nogil:
    """Check all descriptors before the first is acted on, and set the task's range to one that
    holds them all: what lies between is kept from atomic commands for a while. False: the task
    has ended."""
    cdef uint64_t capacity = vr_load_relaxed_u64(&task.unit.blocks)
    cdef uint64_t lowest = capacity, highest = 0, total = 0, at = task.cursor, lba, blocks
    while at < task.end:
        lba, blocks = get64(task.work + at), get32(task.work + at + 8)
        if lba > capacity or blocks > capacity - lba:
            check_condition(task, KEY_ILLEGAL_REQUEST, CODE_OUT_OF_RANGE)
            set_information(task, max(lba, capacity))
            finish_task(task)
            return False
        total += blocks
        if total > task.unit.max_unmap:
            fail_parameter(task, <uint32_t> at + 8, -1)
            return False
        if blocks:
            lowest, highest = min(lowest, lba), max(highest, lba + blocks)
        at += DESCRIPTOR
    if total == 0:
        succeed(task)
        return False
    task.lba, task.blocks = lowest, highest - lowest
    return True


cdef void unmap_command(ScsiTask *task) noexcept nogil:
    """UNMAP (SBC-4 5.35)."""
    cdef uint64_t size = get16(task.cdb + 7)
    cdef uint32_t listed
    if not check_writable(task):
        return
    task.req.kind = KIND_DISCARD
    if size == 0:
        succeed(task)
        return
    if size < HEADER:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_LIST_LENGTH)
        return
    if not take_work(task, size) or not take_parameters(task, task.work, size):
        return
    # Descriptors beyond the list are left out, and so is one that is cut.
    listed = min(get16(task.work + 2), <uint32_t> size - HEADER) // DESCRIPTOR
    if listed > task.unit.max_unmap_descriptors:
        fail_parameter(task, 2, -1)
        return
    task.cursor, task.end = HEADER, HEADER + <uint64_t> listed * DESCRIPTOR
    if check_list(task) and enter_write(task, unmap_next):
        unmap_next(task)


# ---- WRITE SAME ---------------------------------------------------------------------------------

cdef void write_same_next(ScsiTask *task) noexcept nogil:
    """Write what is left of the range from the repeated block, or wait for a part of it."""
    cdef uint64_t end = task.blocks << task.unit.block_shift
    cdef int flags = 0 if vr_load_relaxed_u32(&task.unit.writeback) else FLAG_FUA
    while task.cursor < end:
        task.work_iov.iov_base = task.work
        task.work_iov.iov_len = min(end - task.cursor, task.work_size)
        task.req.iov, task.req.niov = &task.work_iov, 1
        if not submit_in_loop(task, OP_WRITE,
                              (task.lba << task.unit.block_shift) + task.cursor,
                              task.work_iov.iov_len, flags, write_same_done):
            return
        if operation_failed(task):
            return
        task.cursor += task.req.length
    finish_task(task)


cdef void write_same_done(ScsiTask *task) noexcept nogil:
    if not operation_failed(task):
        task.cursor += task.req.length
        write_same_next(task)


cdef void zeroed(ScsiTask *task) noexcept nogil:
    if task.req.result != 0:
        fail_result(task)
        return
    finish_task(task)


cdef void zero_range(ScsiTask *task) noexcept nogil:
    cdef int shift = task.unit.block_shift
    cdef int flags = 0 if vr_load_relaxed_u32(&task.unit.writeback) else FLAG_FUA
    if task.cdb[1] & 0x08:
        flags |= FLAG_UNMAP
    submit(task, OP_WRITE_ZEROES, task.lba << shift, task.blocks << shift, flags, zeroed)


cdef bint is_zero(const uint8_t *data, uint64_t size) noexcept nogil:
    cdef uint64_t i
    for i in range(size):
        if data[i]:
            return False
    return True


cdef void write_same_command(ScsiTask *task) noexcept nogil:
    """WRITE SAME (10) and (16) (SBC-4 5.52). WSNZ is 1: a length of 0 is not "until the end"."""
    cdef BlockRange range
    cdef uint64_t block = <uint64_t> 1 << task.unit.block_shift
    cdef uint64_t room, at
    cdef bint no_data = task.cdb[0] == 0x93 and task.cdb[1] & 0x01
    get_range(task, &range)
    if not check_writable(task):
        return
    if range.blocks == 0 or range.blocks > task.unit.max_write_same:
        fail_field(task, range.length_byte, -1)
        return
    if not check_range(task, &range):
        return
    if not no_data and task.out_length < block:
        fail_overrun(task)
        return
    if not no_data and task.out_length > block:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_UNIT)
        return
    task.req.kind = KIND_WRITE
    task.lba, task.blocks, task.cursor = range.lba, range.blocks, 0
    room = block
    if not no_data:
        room = min(range.blocks << task.unit.block_shift, <uint64_t> PATTERN_BYTES)
        if not take_work(task, room):
            return
        copy_out(task, 0, task.work, block)
        task.transferred = block
        no_data = is_zero(task.work, block)
    if no_data:
        task.req.kind = KIND_DISCARD
        if enter_write(task, zero_range):
            zero_range(task)
        return
    at = block
    while at < room:
        memcpy(task.work + at, task.work, block)
        at += block
    if enter_write(task, write_same_next):
        write_same_next(task)


# ---- GET LBA STATUS -----------------------------------------------------------------------------

cdef void extent_known(ScsiTask *task) noexcept nogil:
    """Write the descriptor of the extent that the channel found; ask for the next one."""
    cdef uint8_t *at = task.work + task.cursor
    cdef uint64_t blocks = task.req.length >> task.unit.block_shift
    cdef bint hole = task.req.flags & FLAG_HOLE
    if task.req.result != 0:
        fail_result(task)
        return
    if blocks == 0:             # a hole that is part of a block does not make the block one
        blocks, hole = 1, False
    put64(at, task.lba)
    put32(at + 8, <uint32_t> blocks)
    put32(at + 12, 0x01000000 if hole else 0)
    task.cursor += DESCRIPTOR
    task.lba += blocks
    next_extent(task)


cdef void next_extent(ScsiTask *task) noexcept nogil:
    cdef uint64_t capacity = vr_load_relaxed_u64(&task.unit.blocks)
    cdef uint64_t most = <uint64_t> 1 << 31
    if task.cursor >= task.end or task.lba >= capacity:
        put32(task.work, <uint32_t> task.cursor - 4)
        reply(task, task.work, task.cursor, get32(task.cdb + 10))
        return
    submit(task, OP_EXTENT, task.lba << task.unit.block_shift,
           min(capacity - task.lba, most) << task.unit.block_shift, 0, extent_known)


cdef void get_lba_status_command(ScsiTask *task) noexcept nogil:
    """GET LBA STATUS (16) (SBC-4 5.7)."""
    cdef uint64_t lba = get64(task.cdb + 2), allocation = get32(task.cdb + 10)
    cdef uint64_t wanted
    if lba >= vr_load_relaxed_u64(&task.unit.blocks):
        check_condition(task, KEY_ILLEGAL_REQUEST, CODE_OUT_OF_RANGE)
        set_information(task, lba)
        finish_task(task)
        return
    allocation = min(allocation, task.in_length)
    wanted = (allocation - HEADER) // DESCRIPTOR if allocation > HEADER else 0
    wanted = min(max(wanted, <uint64_t> 1), <uint64_t> MOST_EXTENTS)
    task.lba, task.cursor, task.end = lba, HEADER, HEADER + wanted * DESCRIPTOR
    if take_work(task, task.end):
        put64(task.work, 0)
        next_extent(task)
