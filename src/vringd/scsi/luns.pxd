# REPORT LUNS, which asks the target rather than the unit.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.scsi.state cimport ScsiTask


cdef class LunInventory:
    cdef uint64_t count_luns(self) noexcept nogil
    cdef uint64_t write_luns(self, uint8_t *at, uint64_t room) noexcept nogil


cdef void report_luns_command(ScsiTask *task) noexcept nogil
cdef void put_lun(uint8_t *at, uint32_t lun) noexcept nogil
