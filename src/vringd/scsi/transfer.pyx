"""Commands that move blocks between the medium and the initiator's buffers (SBC-4 5)."""

from libc.stdint cimport uint64_t, uint8_t

from vringd.block.ops cimport FLAG_FUA, OP_FLUSH, OP_READ, OP_WRITE
from vringd.core.stats cimport KIND_FLUSH, KIND_READ, KIND_WRITE
from vringd.core.sys cimport vr_likely, vr_load_relaxed_u32, vr_load_relaxed_u64, vr_unlikely
from vringd.scsi.bytes cimport get16, get24, get32, get64
from vringd.scsi.locks cimport enter_write
from vringd.scsi.sense cimport (
    CODE_OUT_OF_RANGE, CODE_SOFTWARE_PROTECTED, CODE_WRITE_PROTECTED, KEY_DATA_PROTECT,
    KEY_ILLEGAL_REQUEST, check_condition, set_information)
from vringd.scsi.state cimport ScsiTask
from vringd.scsi.task cimport (
    fail, fail_field, fail_overrun, fail_result, finish_task, submit, succeed, trim)


# ---- fields -------------------------------------------------------------------------------------

cdef void get_range(ScsiTask *task, BlockRange *range) noexcept nogil:
    """LBA and length where the CDB's format has them (SPC-5 4.2.2): the opcode's three highest
    bits tell which."""
    cdef uint8_t *cdb = task.cdb
    cdef int group = cdb[0] >> 5
    if vr_likely(group == 1 or group == 2):
        range.lba, range.blocks, range.length_byte = get32(cdb + 2), get16(cdb + 7), 7
    elif group == 4:
        range.lba, range.blocks, range.length_byte = get64(cdb + 2), get32(cdb + 10), 10
    elif group == 5:
        range.lba, range.blocks, range.length_byte = get32(cdb + 2), get32(cdb + 6), 6
    else:
        range.lba, range.length_byte = get24(cdb + 1) & 0x1fffff, 4
        range.blocks = cdb[4] if cdb[4] else 256


cdef bint check_range(ScsiTask *task, BlockRange *range) noexcept nogil:
    """Whether the range is within the disk; otherwise the task has ended. An empty range may begin
    just after the last block."""
    cdef uint64_t blocks = vr_load_relaxed_u64(&task.unit.blocks)
    if vr_likely(range.lba <= blocks and range.blocks <= blocks - range.lba):
        return True
    check_condition(task, KEY_ILLEGAL_REQUEST, CODE_OUT_OF_RANGE)
    # The first block that cannot be accessed (SBC-4 4.18.1).
    set_information(task, max(range.lba, blocks))
    finish_task(task)
    return False


cdef bint check_transfer(ScsiTask *task, BlockRange *range) noexcept nogil:
    """MAXIMUM TRANSFER LENGTH of Block Limits VPD."""
    if vr_unlikely(task.unit.max_transfer != 0 and range.blocks > task.unit.max_transfer):
        fail_field(task, range.length_byte, -1)
        return False
    return True


cdef bint check_writable(ScsiTask *task) noexcept nogil:
    if vr_unlikely(vr_load_relaxed_u32(&task.unit.write_protected) != 0):
        fail(task, KEY_DATA_PROTECT,
             CODE_WRITE_PROTECTED if task.unit.read_only else CODE_SOFTWARE_PROTECTED)
        return False
    return True


# ---- READ and WRITE -----------------------------------------------------------------------------

cdef void read_done(ScsiTask *task) noexcept nogil:
    if vr_unlikely(task.req.result != 0):
        fail_result(task)
        return
    task.transferred = task.given = task.req.length
    finish_task(task)


cdef void write_done(ScsiTask *task) noexcept nogil:
    if vr_unlikely(task.req.result != 0):
        fail_result(task)
        return
    task.transferred = task.req.length
    finish_task(task)


cdef void begin_read(ScsiTask *task) noexcept nogil:
    cdef uint64_t length = task.blocks << task.unit.block_shift
    if vr_unlikely(task.req.result != 0):
        fail_result(task)
        return
    task.req.iov = task.in_iov
    task.req.niov = task.in_niov
    if vr_unlikely(length != task.in_length):
        task.req.niov = trim(task.in_iov, task.in_niov, length)
    submit(task, OP_READ, task.lba << task.unit.block_shift, length, 0, read_done)


cdef void read_command(ScsiTask *task) noexcept nogil:
    """READ (6), (10), (12) and (16)."""
    cdef BlockRange range
    get_range(task, &range)
    if not check_range(task, &range) or not check_transfer(task, &range):
        return
    # The shift cannot overflow: the disk's size in bytes fits.
    if vr_unlikely(range.blocks << task.unit.block_shift > task.in_length):
        fail_overrun(task)
        return
    task.lba, task.blocks = range.lba, range.blocks
    task.req.kind = KIND_READ
    task.req.result = 0
    if vr_unlikely(range.blocks == 0):
        succeed(task)
    elif vr_unlikely(task.cdb[0] >> 5 and task.cdb[1] & 0x08
                     and vr_load_relaxed_u32(&task.unit.writeback)):
        # FUA: from the medium, so what is in the cache must be there first (SBC-4 4.16).
        submit(task, OP_FLUSH, 0, 0, 0, begin_read)
    else:
        begin_read(task)


cdef void begin_write(ScsiTask *task) noexcept nogil:
    cdef uint64_t length = task.blocks << task.unit.block_shift
    cdef int flags = 0
    task.req.iov = task.out_iov
    task.req.niov = task.out_niov
    if vr_unlikely(length != task.out_length):
        task.req.niov = trim(task.out_iov, task.out_niov, length)
    if task.cdb[0] >> 5 and task.cdb[1] & 0x08 or not vr_load_relaxed_u32(&task.unit.writeback):
        flags = FLAG_FUA
    submit(task, OP_WRITE, task.lba << task.unit.block_shift, length, flags, write_done)


cdef void write_command(ScsiTask *task) noexcept nogil:
    """WRITE (6), (10), (12) and (16)."""
    cdef BlockRange range
    get_range(task, &range)
    if (not check_writable(task) or not check_range(task, &range)
            or not check_transfer(task, &range)):
        return
    if vr_unlikely(range.blocks << task.unit.block_shift > task.out_length):
        fail_overrun(task)
        return
    task.req.kind = KIND_WRITE
    if vr_unlikely(range.blocks == 0):
        succeed(task)
        return
    task.lba, task.blocks = range.lba, range.blocks
    if enter_write(task, begin_write):
        begin_write(task)


# ---- caches -------------------------------------------------------------------------------------

cdef void prefetch_command(ScsiTask *task) noexcept nogil:
    """PRE-FETCH (10) and (16): the cache is not ours to fill. GOOD: not all blocks are known to be
    in it (SBC-4 5.12)."""
    cdef BlockRange range
    get_range(task, &range)
    if check_range(task, &range):
        succeed(task)


cdef void synchronize_done(ScsiTask *task) noexcept nogil:
    if vr_unlikely(task.req.result != 0):
        fail_result(task)
        return
    finish_task(task)


cdef void synchronize_command(ScsiTask *task) noexcept nogil:
    """SYNCHRONIZE CACHE (10) and (16): of the whole disk, and answered when it is done, which IMMED
    permits (SBC-4 5.29)."""
    cdef BlockRange range
    get_range(task, &range)
    if check_range(task, &range):
        task.req.kind = KIND_FLUSH
        submit(task, OP_FLUSH, 0, 0, 0, synchronize_done)
