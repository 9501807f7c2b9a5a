"""REPORT LUNS (SPC-5 6.33), and how a LUN is written (SAM-6 4.7)."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memset

from vringd.core.sys cimport vr_fetch_and_u32
from vringd.scsi.attention cimport ATTENTION_LUNS
from vringd.scsi.bytes cimport get32, put16, put32
from vringd.scsi.state cimport ScsiTask
from vringd.scsi.task cimport fail_field, reply, take_work

cdef enum SelectReport:
    ADDRESSABLE = 0             # but for well-known units
    WELL_KNOWN = 1
    ALL = 2


cdef class LunInventory:
    """What a target has. Both are called by IOThreads while units come and go: what they say was
    true of each unit at some time during the call."""

    cdef uint64_t count_luns(self) noexcept nogil:
        """How many units there are."""
        return 0

    cdef uint64_t write_luns(self, uint8_t *at, uint64_t room) noexcept nogil:
        """Write the first room LUNs, ascending, 8 bytes each; how many there were to write."""
        return 0


cdef void put_lun(uint8_t *at, uint32_t lun) noexcept nogil:
    """A LUN of one level: peripheral device addressing up to 255, flat space addressing above."""
    memset(at, 0, 8)
    put16(at, lun if lun < 256 else 0x4000 | lun)


cdef void report_luns_command(ScsiTask *task) noexcept nogil:
    cdef uint64_t allocation = get32(task.cdb + 6), count = 1
    cdef int select = task.cdb[2]
    if select > ALL:
        fail_field(task, 2, -1)
        return
    if allocation < 16:
        fail_field(task, 6, -1)
        return
    if select == WELL_KNOWN:
        count = 0
    elif task.target != NULL:
        count = (<LunInventory> task.target).count_luns()
    if not take_work(task, 8 + 8 * count):
        return
    memset(task.work, 0, 8 + 8 * count)
    if select != WELL_KNOWN and task.target != NULL:
        count = (<LunInventory> task.target).write_luns(task.work + 8, count)
    put32(task.work, <uint32_t> (8 * count))
    if task.nexus != NULL:
        vr_fetch_and_u32(&task.nexus.gate, ~<uint32_t> ATTENTION_LUNS)
    reply(task, task.work, 8 + 8 * count, allocation)
