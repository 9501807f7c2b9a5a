# The logical units that one initiator port reaches through one target port.

from libc.stdint cimport uint32_t

from vringd.core.sys cimport vr_load_acquire_ptr
from vringd.scsi.luns cimport LunInventory
from vringd.scsi.state cimport NexusState, ScsiTask


cdef enum:
    PAGE_LUNS = 256
    LUN_PAGES = 64
    MAX_LUN = 16383             # flat space addressing


cdef struct LunPage:
    NexusState *nexus[PAGE_LUNS]        # word: NULL: no such logical unit


cdef class ScsiTarget(LunInventory):
    cdef LunPage *pages[LUN_PAGES]      # word; made when first needed, freed with the target
    cdef dict units                     # LUN: ScsiNexus
    cdef void execute(self, ScsiTask *task, uint32_t lun, uint32_t lane) noexcept nogil


cdef inline NexusState *find_nexus(ScsiTarget target, uint32_t lun) noexcept nogil:
    """The nexus for a LUN, or NULL. It stays valid until the caller's IOThread has answered the
    message by which its owner asks it to forget the unit."""
    cdef LunPage *page
    if lun > MAX_LUN:
        return NULL
    page = <LunPage *> vr_load_acquire_ptr(<void **> &target.pages[lun // PAGE_LUNS])
    if page == NULL:
        return NULL
    return <NexusState *> vr_load_acquire_ptr(<void **> &page.nexus[lun % PAGE_LUNS])


cdef void execute_absent(ScsiTask *task) noexcept nogil
