# Tasks that wait for tasks of other threads.

from vringd.core.sys cimport (
    vr_fence_compiler, vr_fence_full, vr_likely, vr_load_relaxed_u32, vr_store_relaxed_u32,
    vr_unlikely)
from vringd.scsi.state cimport NexusState, ScsiTask, TaskStep, UnitState


cdef enum Counted:              # ScsiTask.counted
    COUNTED_NOT
    COUNTED_IN_LANE             # in Lane.writes
    COUNTED_IN_LIST             # in UnitState.slow_writes
    COUNTED_ATOMIC              # in UnitState.atomic


cdef bint enter_slowly(ScsiTask *task, TaskStep step) noexcept nogil
cdef bint enter_atomic(ScsiTask *task, TaskStep step) noexcept nogil
cdef void leave_range(ScsiTask *task) noexcept nogil
cdef void wake_waiters(UnitState *unit) noexcept nogil
cdef void stop_waiting(ScsiTask *task) noexcept nogil
cdef void begin_abort(NexusState *nexus) noexcept nogil
cdef bint await_aborted(ScsiTask *task, TaskStep step) noexcept nogil
cdef void pass_fence_everywhere() noexcept nogil
cdef bint register_fences() noexcept nogil


cdef inline void fence_of_runner(UnitState *unit) noexcept nogil:
    """Between a store of this thread to its lane's counters and a load of a word by which others
    wait for them. The full fence that is due here is the waiting side's business, who makes all
    threads pass one (membarrier); unless the kernel refuses that."""
    if vr_unlikely(unit.runners_fence):
        vr_fence_full()
    vr_fence_compiler()


cdef inline bint enter_write(ScsiTask *task, TaskStep step) noexcept nogil:
    """The task is about to change blocks [task.lba, task.lba + task.blocks). True: go on. False:
    it waits, and step follows when it may go on.

    The counter goes up and then the word is loaded; an atomic task stores the word and then looks
    at the counters: one of the two sees the other.
    """
    vr_store_relaxed_u32(&task.lane.writes, task.lane.writes + 1)
    fence_of_runner(task.unit)
    if vr_likely(vr_load_relaxed_u32(&task.unit.exclusive) == 0):
        task.counted = COUNTED_IN_LANE
        return True
    return enter_slowly(task, step)
