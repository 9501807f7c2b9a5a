"""No front-end can hold up a thread of ours by a full eventfd.

Whether writing to an eventfd waits while its counter is full is a flag of the open file, which the
front-end shares: it can clear the flag and fill the counter between any two instructions of ours.
So every write to a front-end's eventfd is announced in a slot, and one thread looks at the slots
now and then. A write that is still under way at its next look is ended by reading the eventfd
(preadv2 with RWF_NOWAIT never waits). The announcement is two stores; the looks cost a few
microseconds of CPU time each second.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from vringd.core.sys cimport (
    EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, POLLIN, PR_SET_NAME, RWF_NOWAIT, SIG_SETMASK, close, errno,
    eventfd, iovec, poll, pollfd, prctl, preadv2, pthread_create, pthread_join,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
    pthread_sigmask, pthread_t, sigfillset, sigset_t, vr_load_relaxed_u32, vr_store_relaxed_u32,
    write)

import os

cdef enum:
    LOOK_MS = 500               # so a write is ended after one second at most

cdef pthread_mutex_t lock       # of slots
cdef SignalSlot *slots = NULL
cdef pthread_t watcher          # it runs while there are slots: started and joined under the GIL
cdef int end_fd = -1            # readable: the watcher has to end
pthread_mutex_init(&lock, NULL)


cdef void look(SignalSlot *slot) noexcept nogil:
    """End the slot's write if it was under way at the last look already."""
    cdef uint32_t writing = vr_load_relaxed_u32(&slot.writing)
    cdef uint32_t count = vr_load_relaxed_u32(&slot.count)
    cdef uint64_t value
    cdef iovec iov
    if writing and count == slot.seen:
        iov.iov_base, iov.iov_len = &value, 8
        vr_store_relaxed_u32(&slot.freed, 1)
        preadv2(<int> (writing - 1), &iov, 1, -1, RWF_NOWAIT)
    # A count seen while nothing was being written must not match a later write's.
    slot.seen = count if writing else count - 1


cdef void *watch(void *argument) noexcept nogil:
    cdef sigset_t blocked
    cdef pollfd ending
    cdef SignalSlot *slot
    sigfillset(&blocked)
    pthread_sigmask(SIG_SETMASK, &blocked, NULL)
    prctl(PR_SET_NAME, <char *> b"vringd-watchdog")
    ending.fd, ending.events = end_fd, POLLIN
    while poll(&ending, 1, LOOK_MS) == 0:
        pthread_mutex_lock(&lock)
        slot = slots
        while slot != NULL:
            look(slot)
            slot = slot.next
        pthread_mutex_unlock(&lock)
    return NULL


cdef int watch_signals(SignalSlot *slot) except -1:
    """Watch over a zeroed slot until `unwatch_signals`. Raises OSError."""
    global slots, end_fd
    cdef int rc
    if slots == NULL:
        end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if end_fd < 0:
            raise OSError(errno, os.strerror(errno))
        rc = pthread_create(&watcher, NULL, watch, NULL)
        if rc != 0:
            close(end_fd)
            raise OSError(rc, f"cannot start the watchdog: {os.strerror(rc)}")
    pthread_mutex_lock(&lock)
    slot.next = slots
    slots = slot
    pthread_mutex_unlock(&lock)
    return 0


cdef int unwatch_signals(SignalSlot *slot) except -1:
    """Nothing is signalled through the slot any more."""
    global slots, end_fd
    cdef SignalSlot **link = &slots
    cdef uint64_t one = 1
    pthread_mutex_lock(&lock)
    while link[0] != slot:
        link = &link[0].next
    link[0] = slot.next
    pthread_mutex_unlock(&lock)
    if slots == NULL:
        write(end_fd, &one, 8)
        pthread_join(watcher, NULL)
        close(end_fd)
    return 0


def signal_eventfd(int fd):
    """Add 1 to a front-end's eventfd: a second of waiting at most, whatever the front-end does.

    A counter at its limit is readable anyway, which is all that a signal achieves. Raises OSError.
    """
    cdef SignalSlot slot
    cdef uint64_t one = 1
    cdef int rc
    memset(&slot, 0, sizeof(slot))
    watch_signals(&slot)
    begin_signal(&slot, fd)
    with nogil:
        rc = -errno if write(fd, &one, 8) < 0 else 0
    end_signal(&slot)
    unwatch_signals(&slot)
    if rc not in (0, -EAGAIN):
        raise OSError(-rc, os.strerror(-rc))
