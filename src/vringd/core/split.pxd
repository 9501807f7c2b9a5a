# The split virtqueue (virtio 1.3, 2.7).

from libc.stdint cimport uint32_t

from vringd.core.vring cimport Request, Vring


cdef Request *split_pop(Vring *q) noexcept nogil
cdef void split_undo_pop(Vring *q, Request *req) noexcept nogil
cdef void split_push(Vring *q, Request *req, uint32_t written) noexcept nogil
cdef void split_publish(Vring *q) noexcept nogil
cdef bint split_should_notify(Vring *q) noexcept nogil
cdef bint split_enable_notification(Vring *q) noexcept nogil
cdef void split_disable_notification(Vring *q) noexcept nogil
cdef bint split_has_work(Vring *q) noexcept nogil
