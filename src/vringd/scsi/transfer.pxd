# READ, WRITE, PRE-FETCH and SYNCHRONIZE CACHE, and what all commands with a range of blocks share.

from libc.stdint cimport uint32_t, uint64_t

from vringd.scsi.state cimport ScsiTask


cdef struct BlockRange:
    uint64_t lba
    uint64_t blocks
    uint32_t length_byte        # where the length is in the CDB, for sense data


cdef void get_range(ScsiTask *task, BlockRange *range) noexcept nogil
cdef bint check_range(ScsiTask *task, BlockRange *range) noexcept nogil
cdef bint check_transfer(ScsiTask *task, BlockRange *range) noexcept nogil
cdef bint check_writable(ScsiTask *task) noexcept nogil

cdef void read_command(ScsiTask *task) noexcept nogil
cdef void write_command(ScsiTask *task) noexcept nogil
cdef void prefetch_command(ScsiTask *task) noexcept nogil
cdef void synchronize_command(ScsiTask *task) noexcept nogil
