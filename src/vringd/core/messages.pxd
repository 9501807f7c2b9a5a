# Messages between the control plane and an IOThread: two lists, each pushed to by one side.

from vringd.core.channel cimport ThreadState
from vringd.core.vring cimport Message


cdef enum MessageKind:
    READY                       # the thread runs (or failed to start: status)
    ATTACH
    DETACH
    UPDATE
    ADD_CHANNEL
    REMOVE_CHANNEL
    ASK
    STOP
    BROKEN                      # unasked: a ring broke
    FAILED                      # unasked: the thread ended by itself


cdef void tell(ThreadState *t, Message *message) noexcept nogil
cdef void answer(ThreadState *t, Message *message, int status) noexcept nogil
cdef Message *take_messages(void **list) noexcept nogil
cdef void handle_messages(ThreadState *t) noexcept nogil
cdef bint finish_detaches(ThreadState *t) noexcept nogil
cdef bint answer_questions(ThreadState *t) noexcept nogil
