"""No front-end can hold up a thread of ours by a full eventfd.

Whether writing to an eventfd waits while its counter is full is a flag of the open file, which the
front-end shares: it can clear the flag and fill the counter between any two instructions of ours.
So every write to a front-end's eventfd is announced in a slot, and one thread looks at the slots
now and then. A write that is still under way at its next look is interrupted by SIGURG, whose
handler does nothing: it fails with EINTR, whatever the front-end does meanwhile. (Reading the
eventfd would make room, but other writers of the front-end's may be waiting for that.) The
announcement is two stores; the looks cost a few microseconds of CPU time each second.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from vringd.core.sys cimport (
    EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, EINTR, POLLIN, PR_SET_NAME, SA_SIGINFO, SIG_SETMASK,
    SIGURG, close, errno, eventfd, poll, pollfd, prctl, pthread_create, pthread_join,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
    pthread_sigmask, pthread_t, sigaction, sigaction_t, sigemptyset, sigfillset, siginfo_t,
    sigset_t, vr_gettid, vr_load_relaxed_u32, vr_store_relaxed_u32, vr_tgkill, write)

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
    if writing and count == slot.seen:
        # If the write ends by itself just now, the signal interrupts another system call: all of
        # ours are done again after EINTR.
        vr_store_relaxed_u32(&slot.freed, 1)
        vr_tgkill(<int> vr_load_relaxed_u32(&slot.tid), SIGURG)
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


cdef void on_sigurg(int signum, siginfo_t *info, void *context) noexcept nogil:
    pass


cdef int watch_signals(SignalSlot *slot) except -1:
    """Watch over a zeroed slot until `unwatch_signals`; its tid may be set later. Raises OSError.

    The thread must not block SIGURG.
    """
    global slots, end_fd
    cdef sigaction_t action
    cdef int rc
    if slots == NULL:
        memset(&action, 0, sizeof(action))
        action.sa_sigaction = on_sigurg     # without SA_RESTART: the write is to end
        action.sa_flags = SA_SIGINFO
        sigemptyset(&action.sa_mask)
        sigaction(SIGURG, &action, NULL)
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
    slot.tid = <uint32_t> vr_gettid()
    watch_signals(&slot)
    begin_signal(&slot, fd)
    with nogil:
        rc = -errno if write(fd, &one, 8) < 0 else 0
    end_signal(&slot)
    unwatch_signals(&slot)
    if rc not in (0, -EAGAIN, -EINTR):
        raise OSError(-rc, os.strerror(-rc))
