"""Mode parameters (SPC-5 7.5, SBC-4 6.5, MMC-6 7).

Three bits can be changed: WCE of the caching page, D_SENSE and SWP of the control page. They are
words of the unit that commands load; nothing is saved.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memset

from vringd.block.ops cimport OP_FLUSH
from vringd.core.stats cimport KIND_FLUSH
from vringd.core.sys cimport (
    pthread_mutex_lock, pthread_mutex_unlock, vr_load_relaxed_u32, vr_load_relaxed_u64,
    vr_store_release_u32)
from vringd.scsi.attention cimport tell_mode_change
from vringd.scsi.bytes cimport get16, get32, get64, put16, put24, put32, put64
from vringd.scsi.sense cimport CODE_LIST_LENGTH, CODE_SAVING_UNSUPPORTED, KEY_ILLEGAL_REQUEST
from vringd.scsi.state cimport TYPE_DISK, ScsiTask, UnitState
from vringd.scsi.task cimport (
    fail, fail_field, fail_parameter, fail_result, finish_task, reply, submit, succeed,
    take_parameters, take_work)

cdef enum PageCode:
    PAGE_RECOVERY = 0x01        # read-write error recovery
    PAGE_CACHING = 0x08
    PAGE_CONTROL = 0x0a
    PAGE_EXCEPTIONS = 0x1c      # informational exceptions control
    PAGE_CAPABILITIES = 0x2a    # CD and DVD capabilities and mechanical status
    PAGE_ALL = 0x3f

cdef enum PageControl:
    CURRENT
    CHANGEABLE
    DEFAULT
    SAVED

cdef enum:
    PAGE_ROOM = 32
    WCE = 0x04                  # byte 2 of the caching page
    D_SENSE = 0x04              # byte 2 of the control page
    SWP = 0x08                  # byte 4 of the control page
    PAGES = 5
    DATA_ROOM = 8 + 16 + PAGES * PAGE_ROOM
    MOST_PARAMETERS = 4096      # bytes of a list; the longest that makes sense has about 100


cdef int page_at(int index) noexcept nogil:
    """The pages in ascending order."""
    if index == 0:
        return PAGE_RECOVERY
    if index == 1:
        return PAGE_CACHING
    if index == 2:
        return PAGE_CONTROL
    if index == 3:
        return PAGE_EXCEPTIONS
    return PAGE_CAPABILITIES


cdef uint32_t write_page(UnitState *unit, int page, int control, uint8_t *at) noexcept nogil:
    """Write a page of PAGE_ROOM bytes at most; its length, 0: there is no such page."""
    cdef bint current = control == CURRENT
    memset(at, 0, PAGE_ROOM)
    at[0] = <uint8_t> page
    if page == PAGE_RECOVERY:
        at[1] = 10
        if control != CHANGEABLE and unit.type == TYPE_DISK:
            at[2] = 0x80                # AWRE
        return 12
    if page == PAGE_CACHING and unit.type == TYPE_DISK:
        at[1] = 18
        if control == CHANGEABLE:
            at[2] = WCE
        elif vr_load_relaxed_u32(&unit.writeback) if current else unit.default_writeback:
            at[2] = WCE
        return 20
    if page == PAGE_CONTROL:
        at[1] = 10
        if control == CHANGEABLE:
            at[2], at[4] = D_SENSE, SWP if unit.type == TYPE_DISK else 0
            return 12
        at[3] = 0x10                    # QUEUE ALGORITHM MODIFIER: unrestricted reordering
        put16(at + 8, 0xffff)           # busy timeout period: unlimited
        if current and vr_load_relaxed_u32(&unit.descriptor_sense):
            at[2] = D_SENSE
        if current and vr_load_relaxed_u32(&unit.swp):
            at[4] = SWP
        return 12
    if page == PAGE_EXCEPTIONS:
        at[1] = 10
        if control != CHANGEABLE:
            at[2] = 0x08                # DEXCPT: none are reported
        return 12
    if page == PAGE_CAPABILITIES and unit.type != TYPE_DISK:
        at[1] = 20
        if control == CHANGEABLE:
            return 22
        at[2] = 0x3b                    # reads CD-R, CD-RW, DVD-ROM, DVD-R, DVD-RAM
        at[4] = 0x70                    # mode 2 forms 1 and 2, multi-session
        at[6] = 0x29                    # tray, eject, lock
        if vr_load_relaxed_u32(&unit.prevents):
            at[6] |= 0x02
        put16(at + 8, 8800)             # kB/s: 50x
        put16(at + 12, 2048)            # buffer, kB
        put16(at + 14, 8800)
        return 22
    return 0


cdef uint32_t write_block_descriptor(UnitState *unit, bint long_lba, uint8_t *at) noexcept nogil:
    cdef uint64_t blocks = vr_load_relaxed_u64(&unit.blocks)
    if long_lba:
        put64(at, blocks)
        put32(at + 8, 0)
        put32(at + 12, <uint32_t> 1 << unit.block_shift)
        return 16
    put32(at, <uint32_t> min(blocks, <uint64_t> 0xffffffff))
    at[4] = 0
    put24(at + 5, <uint32_t> 1 << unit.block_shift)
    return 8


cdef uint8_t device_parameter(UnitState *unit) noexcept nogil:
    """DEVICE-SPECIFIC PARAMETER: WP and DPOFUA; of a CD-ROM reserved."""
    if unit.type != TYPE_DISK:
        return 0
    return 0x90 if vr_load_relaxed_u32(&unit.write_protected) else 0x10


cdef void mode_sense_command(ScsiTask *task) noexcept nogil:
    """MODE SENSE (6) and (10)."""
    cdef UnitState *unit = task.unit
    cdef uint8_t data[DATA_ROOM]
    cdef bint six = task.cdb[0] == 0x1a
    cdef bint long_lba = not six and task.cdb[1] & 0x10
    cdef uint32_t header = 4 if six else 8
    cdef uint32_t at = header, descriptor = 0
    cdef int control = task.cdb[2] >> 6, wanted = task.cdb[2] & 0x3f, subpage = task.cdb[3]
    cdef int i
    if control == SAVED:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_SAVING_UNSUPPORTED)
        return
    if subpage != 0 and subpage != 0xff:
        fail_field(task, 3, -1)
        return
    if unit.type == TYPE_DISK and not task.cdb[1] & 0x08:
        descriptor = write_block_descriptor(unit, long_lba, data + at)
        at += descriptor
    if wanted == PAGE_ALL:
        for i in range(PAGES):
            at += write_page(unit, page_at(i), control, data + at)
    else:
        at += write_page(unit, wanted, control, data + at)
        if at == header + descriptor:
            fail_field(task, 2, 5)
            return
    memset(data, 0, header)
    if six:
        data[0] = <uint8_t> (at - 1)    # less than 256: DATA_ROOM
        data[2] = device_parameter(unit)
        data[3] = <uint8_t> descriptor
    else:
        put16(data, at - 2)
        data[3] = device_parameter(unit)
        data[4] = 1 if long_lba and descriptor else 0
        put16(data + 6, descriptor)
    reply(task, data, at, task.cdb[4] if six else get16(task.cdb + 7))


# ---- MODE SELECT --------------------------------------------------------------------------------

cdef bint check_block_descriptor(ScsiTask *task, uint32_t at, bint long_lba) noexcept nogil:
    """Nothing in it may be changed; a number of blocks of 0 or all ones means "as it is"."""
    cdef UnitState *unit = task.unit
    cdef uint64_t blocks, all_ones, size, capacity = vr_load_relaxed_u64(&unit.blocks)
    if long_lba:
        blocks, size, all_ones = get64(task.work + at), get32(task.work + at + 12), ~<uint64_t> 0
    else:
        blocks, size = get32(task.work + at), get32(task.work + at + 4) & 0xffffff
        all_ones = <uint64_t> 0xffffffff
        capacity = min(capacity, all_ones)
    if blocks and blocks != all_ones and blocks != capacity:
        fail_parameter(task, at, -1)
        return False
    if size and size != <uint64_t> 1 << unit.block_shift:
        fail_parameter(task, at + (12 if long_lba else 5), -1)
        return False
    return True


cdef bint check_page(ScsiTask *task, uint32_t at) noexcept nogil:
    """Whether nothing differs from the current page but what can be changed."""
    cdef uint8_t current[PAGE_ROOM]
    cdef uint8_t changeable[PAGE_ROOM]
    cdef uint8_t *page = task.work + at
    cdef uint32_t length = write_page(task.unit, page[0] & 0x3f, CURRENT, current)
    cdef uint8_t bits
    cdef uint32_t i
    cdef int bit = 7
    if length == 0 or page[0] & 0x40:
        fail_parameter(task, at, 5)
        return False
    write_page(task.unit, page[0] & 0x3f, CHANGEABLE, changeable)
    if page[1] != current[1]:
        fail_parameter(task, at + 1, -1)
        return False
    for i in range(2, length):
        bits = (page[i] ^ current[i]) & ~changeable[i]
        if bits:
            while not bits >> bit & 1:
                bit -= 1
            fail_parameter(task, at + i, bit)
            return False
    return True


cdef bint set_word(uint32_t *word, bint value) noexcept nogil:
    """Change a word of the unit; whether it was different."""
    if (vr_load_relaxed_u32(word) != 0) == value:
        return False
    vr_store_release_u32(word, value)
    return True


cdef void cache_flushed(ScsiTask *task) noexcept nogil:
    if task.req.result != 0:
        fail_result(task)
        return
    finish_task(task)


cdef void apply_pages(ScsiTask *task, uint32_t at, uint32_t end) noexcept nogil:
    """Take over the changeable bits of pages that have been checked."""
    cdef UnitState *unit = task.unit
    cdef bint changed = False, cache_off = False
    cdef uint8_t *page
    pthread_mutex_lock(&unit.lock)
    while at < end:
        page = task.work + at
        if page[0] & 0x3f == PAGE_CACHING:
            if set_word(&unit.writeback, page[2] & WCE != 0):
                changed = True
                cache_off = not page[2] & WCE
        elif page[0] & 0x3f == PAGE_CONTROL:
            changed |= set_word(&unit.descriptor_sense, page[2] & D_SENSE != 0)
            if unit.type == TYPE_DISK:
                changed |= set_word(&unit.swp, page[4] & SWP != 0)
                vr_store_release_u32(&unit.write_protected, unit.read_only or unit.swp)
        at += <uint32_t> page[1] + 2
    if changed:
        tell_mode_change(unit, task.nexus)
    pthread_mutex_unlock(&unit.lock)
    if cache_off:
        # What was written before is durable by the time this is answered (SBC-4 6.5.6).
        task.req.kind = KIND_FLUSH
        submit(task, OP_FLUSH, 0, 0, 0, cache_flushed)
    else:
        succeed(task)


cdef void mode_select_command(ScsiTask *task) noexcept nogil:
    """MODE SELECT (6) and (10)."""
    cdef bint six = task.cdb[0] == 0x15, long_lba
    cdef uint32_t header = 4 if six else 8
    cdef uint32_t size = task.cdb[4] if six else get16(task.cdb + 7)
    cdef uint32_t descriptor, at, first
    if not task.cdb[1] & 0x10:              # PF: pages of a vendor's own are not known here
        fail_field(task, 1, 4)
        return
    if size == 0:
        succeed(task)
        return
    if size < header or size > MOST_PARAMETERS:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_LIST_LENGTH)
        return
    if not take_work(task, size) or not take_parameters(task, task.work, size):
        return
    descriptor = task.work[3] if six else get16(task.work + 6)
    long_lba = not six and task.work[4] & 0x01
    if descriptor > size - header:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_LIST_LENGTH)
        return
    if descriptor:
        if descriptor != <uint32_t> (16 if long_lba else 8) or task.unit.type != TYPE_DISK:
            fail_parameter(task, 3 if six else 6, -1)
            return
        if not check_block_descriptor(task, header, long_lba):
            return
    first = at = header + descriptor
    while at < size:
        if size - at < 2 or size - at - 2 < task.work[at + 1]:
            fail(task, KEY_ILLEGAL_REQUEST, CODE_LIST_LENGTH)
            return
        if not check_page(task, at):
            return
        at += <uint32_t> task.work[at + 1] + 2
    apply_pages(task, first, size)
