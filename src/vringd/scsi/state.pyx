"""The structs of the SCSI target (in state.pxd), and whom a finished command is given back to."""


cdef class TaskOwner:
    """The transport: it makes tasks, has them executed, and gets every one back once."""

    cdef void complete(self, ScsiTask *task) noexcept nogil:
        """The task is finished: status, sense data and counts are in it. Called in the IOThread
        of its lane, from within execute_task, operation_done or abort_task, or later. The device
        server does not touch the task after this, so it may be executed anew from here."""
