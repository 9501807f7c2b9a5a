from libc.stdint cimport uint32_t

from vringd.block.file_steps cimport FileTarget, Step
from vringd.core.channel cimport Channel
from vringd.core.sys cimport io_uring
from vringd.core.vring cimport Request


cdef class UringFileChannel(Channel):
    cdef FileTarget target
    cdef object owner           # keeps the file open
    cdef io_uring *ring
    cdef int sqe_fd             # index of the registered file, or the descriptor
    cdef int sqe_flags
    cdef uint32_t buffer_hint
    cdef Request *backlog       # requests for which there was no submission entry, in order
    cdef Request *backlog_last
    cdef bint issue(self, Request *req, Step *step) noexcept nogil
    cdef void postpone(self, Request *req) noexcept nogil
