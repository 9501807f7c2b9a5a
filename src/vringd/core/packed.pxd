# The packed virtqueue (virtio 1.3, 2.8).

from libc.stdint cimport uint32_t

from vringd.core.vring cimport Request, Vring


cdef Request *packed_pop(Vring *q) noexcept nogil
cdef void packed_undo_pop(Vring *q, Request *req) noexcept nogil
cdef void packed_push(Vring *q, Request *req, uint32_t written) noexcept nogil
cdef void packed_publish(Vring *q) noexcept nogil
cdef void packed_forget_unpublished(Vring *q) noexcept nogil
cdef bint packed_should_notify(Vring *q) noexcept nogil
cdef bint packed_enable_notification(Vring *q) noexcept nogil
cdef void packed_disable_notification(Vring *q) noexcept nogil
cdef bint packed_has_work(Vring *q) noexcept nogil
