# A logical unit, its nexuses and their lanes, as the control plane makes and changes them.

from libc.stdint cimport uint64_t

from vringd.scsi.state cimport NexusState, UnitState


cdef class ScsiUnit:
    cdef UnitState *state
    cdef readonly object settings
    cdef object store               # ReservationStore or None
    cdef object set_geometry(self, object limits)
    cdef object set_identity(self)
    cdef object restore_reservations(self, object path)


cdef class ScsiNexus:
    cdef NexusState *state
    cdef readonly ScsiUnit unit
    cdef list channels              # by lane: Channel or None; keeps them alive
    cdef bint opened
    cdef uint64_t count_running(self)
    cdef object unlink(self)
