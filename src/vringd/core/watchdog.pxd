# Signals that a front-end could make wait for ever, and who sees to it that they do not.

from libc.stdint cimport uint32_t

from vringd.core.sys cimport vr_store_relaxed_u32


cdef struct SignalSlot:         # of one thread that signals eventfds
    SignalSlot *next            # in the watchdog's list
    uint32_t writing            # descriptor + 1 while it is being written; 0: none
    uint32_t count              # of signals begun, modulo 2^32
    uint32_t tid                # of the thread
    uint32_t freed              # the watchdog had to end a write since this was reset
    uint32_t seen               # the watchdog's: count when it last looked


cdef int watch_signals(SignalSlot *slot) except -1
cdef int unwatch_signals(SignalSlot *slot) except -1


cdef inline void begin_signal(SignalSlot *slot, int fd) noexcept nogil:
    vr_store_relaxed_u32(&slot.count, slot.count + 1)
    vr_store_relaxed_u32(&slot.writing, <uint32_t> fd + 1)


cdef inline void end_signal(SignalSlot *slot) noexcept nogil:
    vr_store_relaxed_u32(&slot.writing, 0)
