"""The file of a unit's persistent reservations (APTPL).

A worker thread writes it, so that no IOThread waits for a disk that it does not serve. A command
is answered when the file that tells of its effect has been renamed into place and synced, or when
the file says the same already.
"""

from libc.stdlib cimport free
from libc.string cimport strcmp, strlen

from vringd.core.channel cimport Channel, finish_remotely
from vringd.core.sys cimport (
    EAGAIN, EIO, ENOMEM, PR_SET_NAME, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIG_SETMASK, close, errno,
    prctl, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_wait,
    pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, pthread_sigmask, sigdelset, sigfillset, sigset_t, ssize_t, write)
from vringd.scsi.reservations cimport Reservations, reservations_text

import os

cdef extern from "<fcntl.h>" nogil:
    int open(const char *path, int flags, ...)
    int O_CREAT, O_WRONLY, O_TRUNC, O_RDONLY, O_CLOEXEC, O_DIRECTORY

cdef extern from "<unistd.h>" nogil:
    int fsync(int fd)

cdef extern from "<stdio.h>" nogil:
    int rename(const char *old, const char *new)


cdef int write_all(int fd, const char *text) noexcept nogil:
    """Write and sync; 0 or a negative errno."""
    cdef size_t size = strlen(text)
    cdef ssize_t n
    while size:
        n = write(fd, text, size)
        if n < 0:
            return -errno
        if n == 0:
            return -EIO
        text += n
        size -= <size_t> n
    return -errno if fsync(fd) < 0 else 0


cdef int replace_file(ReservationStore store, const char *text) noexcept nogil:
    """Put text in the file's place; 0 or a negative errno."""
    cdef int fd = open(store.new_path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0o600)
    cdef int rc
    if fd < 0:
        return -errno
    rc = write_all(fd, text)
    close(fd)
    if rc == 0 and rename(store.new_path, store.file_path) < 0:
        rc = -errno
    if rc != 0:
        return rc
    fd = open(store.folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return -errno
    rc = -errno if fsync(fd) < 0 else 0
    close(fd)
    return rc


cdef void serve(ReservationStore store, ScsiTask *task) noexcept nogil:
    """Write what is the case now: at least what the task did, perhaps more."""
    cdef char *text
    cdef int rc = 0
    pthread_mutex_lock(&task.unit.lock)
    text = reservations_text(<Reservations *> task.unit.reservations)
    pthread_mutex_unlock(&task.unit.lock)
    if text == NULL:
        rc = -ENOMEM
    elif store.written != NULL and strcmp(store.written, text) == 0:
        free(text)
    else:
        free(store.written)
        store.written = NULL
        rc = replace_file(store, text)
        if rc == 0:
            store.written = text
        else:
            free(text)
    finish_remotely((<Channel> task.lane.channel).thread, task.req, rc)


cdef void *worker_main(void *argument) noexcept nogil:
    # The store's close waits for this thread's end, so the pointer holds without a reference.
    cdef ScsiTask *task
    cdef sigset_t blocked
    sigfillset(&blocked)
    sigdelset(&blocked, SIGBUS)
    sigdelset(&blocked, SIGSEGV)
    sigdelset(&blocked, SIGFPE)
    sigdelset(&blocked, SIGILL)
    pthread_sigmask(SIG_SETMASK, &blocked, NULL)
    prctl(PR_SET_NAME, <char *> b"vringd-pr")
    pthread_mutex_lock(&(<ReservationStore> argument).lock)
    while True:
        while ((<ReservationStore> argument).first == NULL
               and not (<ReservationStore> argument).stopping):
            pthread_cond_wait(&(<ReservationStore> argument).wakeup,
                              &(<ReservationStore> argument).lock)
        task = (<ReservationStore> argument).first
        if task == NULL:
            break
        (<ReservationStore> argument).first = task.link
        pthread_mutex_unlock(&(<ReservationStore> argument).lock)
        serve(<ReservationStore> argument, task)
        pthread_mutex_lock(&(<ReservationStore> argument).lock)
    pthread_mutex_unlock(&(<ReservationStore> argument).lock)
    return NULL


cdef void store_reservations(ReservationStore store, ScsiTask *task) noexcept nogil:
    """Have the file written; task.step follows. In the task's IOThread."""
    cdef bint alone = False
    task.link = NULL
    pthread_mutex_lock(&store.lock)
    if not store.running:
        store.running = pthread_create(&store.worker, NULL, worker_main, <void *> store) == 0
        alone = not store.running
    if not alone:
        if store.first == NULL:
            store.first = task
        else:
            store.last.link = task
        store.last = task
        pthread_cond_signal(&store.wakeup)
    pthread_mutex_unlock(&store.lock)
    if alone:                   # no thread can be had: the reservation is not known to be kept
        finish_remotely((<Channel> task.lane.channel).thread, task.req, -EAGAIN)


cdef class ReservationStore:
    """path: of the file. It is made when there is something to keep."""

    def __cinit__(self, path):
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.wakeup, NULL)
        self.path = path
        self.file_name = os.fsencode(path)
        self.new_name = self.file_name + b".new"
        self.folder = os.path.dirname(self.file_name) or b"."
        self.file_path, self.new_path = self.file_name, self.new_name
        self.folder_path = self.folder

    def close(self):
        """End the worker; no task waits for it."""
        if self.running:
            with nogil:
                pthread_mutex_lock(&self.lock)
                self.stopping = True
                pthread_cond_signal(&self.wakeup)
                pthread_mutex_unlock(&self.lock)
                pthread_join(self.worker, NULL)
            self.running = self.stopping = False

    def __dealloc__(self):
        if not self.running:    # dropped without close: the worker still uses it
            pthread_mutex_destroy(&self.lock)
            pthread_cond_destroy(&self.wakeup)
            free(self.written)
