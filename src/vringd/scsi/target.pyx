"""A SCSI target as one initiator sees it: logical units by number."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free

from vringd.core.stats cimport KIND_OTHER
from vringd.core.sys cimport alloc_lines, vr_load_acquire_ptr, vr_store_release_ptr
from vringd.scsi.attention cimport ATTENTION_LUNS, raise_attention
from vringd.scsi.device_server cimport execute_task
from vringd.scsi.inquiry cimport inquiry_without_unit
from vringd.scsi.locks cimport COUNTED_NOT
from vringd.scsi.luns cimport LunInventory, put_lun, report_luns_command
from vringd.scsi.readiness cimport reply_sense
from vringd.scsi.sense cimport CODE_NO_UNIT, KEY_ILLEGAL_REQUEST
from vringd.scsi.state cimport STATUS_GOOD, Lane, NexusState, ScsiTask
from vringd.scsi.task cimport fail
from vringd.scsi.unit cimport ScsiNexus


cdef void execute_absent(ScsiTask *task) noexcept nogil:
    """Execute a command for a LUN at which there is nothing (SPC-5 6.7, SAM-6 4.7.1)."""
    cdef int opcode = task.cdb[0]
    task.unit = NULL
    task.nexus = NULL
    task.lane = NULL
    task.command = NULL
    task.status = STATUS_GOOD
    task.sense_length = task.overrun = task.aborted = 0
    task.transferred = task.given = 0
    task.counted = COUNTED_NOT
    task.looping = task.waits = 0
    task.work = NULL
    task.req.kind = KIND_OTHER
    if opcode == 0x12:
        inquiry_without_unit(task)
    elif opcode == 0x03:
        reply_sense(task, KEY_ILLEGAL_REQUEST, CODE_NO_UNIT)
    elif opcode == 0xa0:
        report_luns_command(task)
    else:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_NO_UNIT)


cdef object tell_of_change(dict units):
    """The initiator is told through every unit that it can reach."""
    cdef ScsiNexus nexus
    for nexus in units.values():
        raise_attention(nexus.state, ATTENTION_LUNS)


cdef class ScsiTarget(LunInventory):
    """Holds a `ScsiNexus` for each LUN in use. Only the control plane adds and removes."""

    def __cinit__(self):
        self.units = {}

    def __dealloc__(self):
        cdef int i
        for i in range(<int> LUN_PAGES):
            free(self.pages[i])

    @property
    def luns(self):
        """LUNs in use, ascending."""
        return sorted(self.units)

    def add(self, lun, ScsiNexus nexus not None):
        """Make a unit reachable; the other units tell the initiator. Raises ValueError if there is
        no such LUN or it is in use."""
        cdef LunPage *page
        cdef uint32_t number
        if not 0 <= lun <= MAX_LUN:
            raise ValueError(f"LUN {lun} is not between 0 and {MAX_LUN}")
        if lun in self.units:
            raise ValueError(f"LUN {lun} is in use")
        number = lun
        page = self.pages[number // PAGE_LUNS]
        if page == NULL:
            page = <LunPage *> alloc_lines(sizeof(LunPage))
            if page == NULL:
                raise MemoryError
            vr_store_release_ptr(<void **> &self.pages[number // PAGE_LUNS], page)
        tell_of_change(self.units)
        self.units[lun] = nexus
        vr_store_release_ptr(<void **> &page.nexus[number % PAGE_LUNS], nexus.state)

    def remove(self, lun):
        """Make a unit unreachable and return its `ScsiNexus`, which must be kept until every
        IOThread has said that it does not use it. Raises KeyError."""
        cdef ScsiNexus nexus = self.units.pop(lun)
        cdef uint32_t number = lun
        vr_store_release_ptr(
            <void **> &self.pages[number // PAGE_LUNS].nexus[number % PAGE_LUNS], NULL)
        tell_of_change(self.units)
        return nexus

    # ---- data plane ---------------------------------------------------------------------------

    cdef void execute(self, ScsiTask *task, uint32_t lun, uint32_t lane) noexcept nogil:
        """Execute a command for the unit at lun, through the nexus' lane of that number, which the
        owner has opened for the calling IOThread."""
        cdef NexusState *nexus = find_nexus(self, lun)
        task.target = <void *> self
        if nexus == NULL:
            execute_absent(task)
            return
        task.nexus = nexus
        task.unit = nexus.unit
        task.lane = <Lane *> vr_load_acquire_ptr(<void **> &nexus.lanes[lane])
        execute_task(task)

    cdef uint64_t count_luns(self) noexcept nogil:
        cdef uint64_t count = 0
        cdef LunPage *page
        cdef int i, j
        for i in range(<int> LUN_PAGES):
            page = <LunPage *> vr_load_acquire_ptr(<void **> &self.pages[i])
            if page != NULL:
                for j in range(<int> PAGE_LUNS):
                    if vr_load_acquire_ptr(<void **> &page.nexus[j]) != NULL:
                        count += 1
        return count

    cdef uint64_t write_luns(self, uint8_t *at, uint64_t room) noexcept nogil:
        cdef uint64_t count = 0
        cdef LunPage *page
        cdef int i, j
        for i in range(<int> LUN_PAGES):
            page = <LunPage *> vr_load_acquire_ptr(<void **> &self.pages[i])
            if page == NULL:
                continue
            for j in range(<int> PAGE_LUNS):
                if vr_load_acquire_ptr(<void **> &page.nexus[j]) != NULL and count < room:
                    put_lun(at + 8 * count, <uint32_t> (i * PAGE_LUNS + j))
                    count += 1
        return count
