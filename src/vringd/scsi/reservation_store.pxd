# Keeps the reservations of a unit in a file.

from vringd.core.sys cimport pthread_cond_t, pthread_mutex_t, pthread_t
from vringd.scsi.state cimport ScsiTask


cdef class ReservationStore:
    cdef readonly str path
    cdef bytes file_name, new_name, folder
    cdef char *file_path
    cdef char *new_path
    cdef char *folder_path
    cdef pthread_mutex_t lock
    cdef pthread_cond_t wakeup
    cdef pthread_t worker
    cdef ScsiTask *first        # that wait for the file, oldest first
    cdef ScsiTask *last
    cdef char *written          # what the file holds; NULL: not known
    cdef bint running           # the worker has been started
    cdef bint stopping


cdef void store_reservations(ReservationStore store, ScsiTask *task) noexcept nogil
