# A file operation as a sequence of system calls, whoever makes them: io_uring, Linux AIO or a
# worker thread. Alignment for O_DIRECT, short transfers, ends of files and what a file system
# cannot do are settled here, once.

from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from vringd.core.sys cimport iovec
from vringd.core.vring cimport Request


cdef struct FileTarget:
    int fd
    uint64_t memory_alignment   # what O_DIRECT asks of buffer addresses and lengths; 1: nothing
    uint8_t ignore_flush
    uint8_t discard             # discards reach the file
    uint8_t detect_zeroes       # a DetectZeroes
    uint8_t no_punch            # learnt: no holes can be punched here
    uint8_t no_zero_range       # learnt: no range can be zeroed here


cdef enum DetectZeroes:
    DETECT_OFF
    DETECT_ON                   # a write of zeros becomes a write-zeroes operation
    DETECT_UNMAP                # which may deallocate


cdef enum StepKind:
    STEP_DONE                   # result holds
    STEP_READ                   # iov[0:count] at offset
    STEP_WRITE                  # the same; durable if dsync
    STEP_SYNC                   # fdatasync
    STEP_ALLOCATE               # fallocate(mode, offset, length)


cdef struct Step:
    int kind
    int mode
    int dsync
    int result                  # 0 or a negative errno
    uint32_t count
    iovec *iov
    uint64_t offset
    uint64_t length


cdef void first_step(FileTarget *target, Request *req, Step *step) noexcept nogil
cdef void next_step(FileTarget *target, Request *req, int64_t result, Step *step) noexcept nogil
cdef int64_t perform_step(FileTarget *target, Step *step) noexcept nogil
