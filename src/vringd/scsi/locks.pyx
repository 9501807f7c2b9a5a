"""Tasks that wait for tasks of other threads: atomic commands, and aborts.

COMPARE AND WRITE and ORWRITE read, decide and write: no other write to the blocks may come
between (SBC-4 4.27, 5.3). As long as there is none of them, a write only counts itself in its
lane. The first one (UnitState.exclusive becomes 1) sends all writes that begin from then on
through the list slow_writes, and waits for those that the lanes have counted. Ranges are given
out in the order in which they were asked for (tickets), so nobody waits for ever.

A task that waits is in UnitState.waiting and its thread goes on. Whoever ends what it waits for
wakes it through its IOThread's list of remote completions.
"""

from vringd.core.channel cimport Channel, finish_remotely
from vringd.core.sys cimport (
    pthread_mutex_lock, pthread_mutex_unlock, syscall, vr_fence_full, vr_load_acquire_u32,
    vr_load_relaxed_u32, vr_store_relaxed_u32, vr_store_release_u32)
from vringd.scsi.state cimport MAX_LANES, NexusState, ScsiTask, TaskStep, UnitState

cdef extern from "<linux/membarrier.h>" nogil:
    int MEMBARRIER_CMD_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED

cdef extern from "<sys/syscall.h>" nogil:
    long SYS_membarrier


cdef void pass_fence_everywhere() noexcept nogil:
    """Make every thread of this process pass a full fence (this one at least, where the kernel
    refuses; the others have fences of their own then)."""
    vr_fence_full()
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)


cdef bint register_fences() noexcept nogil:
    """Whether pass_fence_everywhere works here."""
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0


# ---- lists, under UnitState.lock ----------------------------------------------------------------

cdef inline bint overlap(ScsiTask *a, ScsiTask *b) noexcept nogil:
    """Whether the ranges have a block in common. Ends cannot wrap: both are within the disk."""
    return a.lba < b.lba + b.blocks and b.lba < a.lba + a.blocks


cdef void append(ScsiTask **list, ScsiTask *task) noexcept nogil:
    task.link = NULL
    while list[0] != NULL:
        list = &list[0].link
    list[0] = task


cdef void remove(ScsiTask **list, ScsiTask *task) noexcept nogil:
    while list[0] != task:
        list = &list[0].link
    list[0] = task.link


cdef void wait(ScsiTask *task, TaskStep step) noexcept nogil:
    cdef ScsiTask **list = &task.unit.waiting
    task.step = step
    task.waits = 1
    task.wait_link = NULL
    while list[0] != NULL:
        list = &list[0].wait_link
    list[0] = task


cdef void unwait(ScsiTask *task) noexcept nogil:
    cdef ScsiTask **list = &task.unit.waiting
    while list[0] != task:
        list = &list[0].wait_link
    list[0] = task.wait_link
    task.waits = 0


# ---- may it go on? under UnitState.lock ---------------------------------------------------------

cdef bint lanes_write(UnitState *unit) noexcept nogil:
    cdef NexusState *nexus = unit.nexuses
    cdef int i
    while nexus != NULL:
        for i in range(MAX_LANES):
            if nexus.lanes[i] != NULL and vr_load_acquire_u32(&nexus.lanes[i].writes):
                return True
        nexus = nexus.next
    return False


cdef bint write_may_go(ScsiTask *task) noexcept nogil:
    cdef ScsiTask *other = task.unit.atomic
    while other != NULL:
        if other.ticket < task.ticket and overlap(task, other):
            return False
        other = other.link
    return True


cdef bint atomic_may_go(ScsiTask *task) noexcept nogil:
    cdef ScsiTask *other
    if not write_may_go(task):
        return False
    other = task.unit.slow_writes
    while other != NULL:
        if overlap(task, other):
            return False
        other = other.link
    other = task.unit.waiting
    while other != NULL:
        if (other.counted == COUNTED_NOT and other.blocks and other.ticket < task.ticket
                and overlap(task, other)):
            return False
        other = other.wait_link
    return not lanes_write(task.unit)


cdef bint aborted_have_ended(ScsiTask *task) noexcept nogil:
    cdef NexusState *nexus = task.unit.nexuses
    cdef int i
    while nexus != NULL:
        if nexus.aborter == task:
            for i in range(MAX_LANES):
                if (nexus.lanes[i] != NULL
                        and vr_load_acquire_u32(&nexus.lanes[i].running[nexus.awaited])):
                    return False
        nexus = nexus.next
    return True


cdef void forget_aborted(ScsiTask *task) noexcept nogil:
    cdef NexusState *nexus = task.unit.nexuses
    while nexus != NULL:
        if nexus.aborter == task:
            nexus.aborter = NULL
        nexus = nexus.next


cdef bint may_go(ScsiTask *task) noexcept nogil:
    """Whether what a waiting task waits for is over; it has got what it wanted then."""
    if task.counted == COUNTED_ATOMIC:
        return atomic_may_go(task)
    if task.blocks:
        if not write_may_go(task):
            return False
        task.counted = COUNTED_IN_LIST
        append(&task.unit.slow_writes, task)
        return True
    if not aborted_have_ended(task):
        return False
    forget_aborted(task)
    vr_store_relaxed_u32(&task.unit.waiters, task.unit.waiters - 1)
    return True


cdef void wake(UnitState *unit) noexcept nogil:
    """Wake all tasks that may go on."""
    cdef ScsiTask *task = unit.waiting
    cdef ScsiTask *following
    while task != NULL:
        following = task.wait_link
        if may_go(task):
            unwait(task)
            # From here on the task is its IOThread's again.
            finish_remotely((<Channel> task.lane.channel).thread, task.req, 0)
        task = following


cdef void wake_waiters(UnitState *unit) noexcept nogil:
    pthread_mutex_lock(&unit.lock)
    wake(unit)
    pthread_mutex_unlock(&unit.lock)


# ---- ranges -------------------------------------------------------------------------------------

cdef bint enter_slowly(ScsiTask *task, TaskStep step) noexcept nogil:
    """enter_write, when there is an atomic task."""
    cdef UnitState *unit = task.unit
    cdef bint go
    vr_store_release_u32(&task.lane.writes, task.lane.writes - 1)
    pthread_mutex_lock(&unit.lock)
    unit.ticket += 1
    task.ticket = unit.ticket
    go = write_may_go(task)
    if go:
        task.counted = COUNTED_IN_LIST
        append(&unit.slow_writes, task)
    else:
        wait(task, step)
    # An atomic task may have seen the counter while it was up.
    wake(unit)
    pthread_mutex_unlock(&unit.lock)
    return go


cdef bint enter_atomic(ScsiTask *task, TaskStep step) noexcept nogil:
    """The task is about to read and change its blocks as one action. As enter_write."""
    cdef UnitState *unit = task.unit
    cdef bint go
    pthread_mutex_lock(&unit.lock)
    unit.ticket += 1
    task.ticket = unit.ticket
    task.counted = COUNTED_ATOMIC
    append(&unit.atomic, task)
    vr_store_relaxed_u32(&unit.exclusive, unit.exclusive + 1)
    pthread_mutex_unlock(&unit.lock)
    pass_fence_everywhere()
    pthread_mutex_lock(&unit.lock)
    go = atomic_may_go(task)
    if not go:
        wait(task, step)
    pthread_mutex_unlock(&unit.lock)
    return go


cdef void leave_range(ScsiTask *task) noexcept nogil:
    """The task has written what it had to write."""
    cdef UnitState *unit = task.unit
    if task.counted == COUNTED_IN_LANE:
        task.counted = COUNTED_NOT
        vr_store_release_u32(&task.lane.writes, task.lane.writes - 1)
        fence_of_runner(unit)
        if vr_load_relaxed_u32(&unit.exclusive):
            wake_waiters(unit)
        return
    pthread_mutex_lock(&unit.lock)
    if task.counted == COUNTED_IN_LIST:
        remove(&unit.slow_writes, task)
    else:
        remove(&unit.atomic, task)
        vr_store_relaxed_u32(&unit.exclusive, unit.exclusive - 1)
    task.counted = COUNTED_NOT
    wake(unit)
    pthread_mutex_unlock(&unit.lock)


cdef void release_waiting(ScsiTask *task) noexcept nogil:
    """Wake a task, whatever it waits for. Under the lock."""
    if not task.waits:
        return
    unwait(task)
    if task.counted == COUNTED_NOT and task.blocks == 0:
        forget_aborted(task)
        vr_store_relaxed_u32(&task.unit.waiters, task.unit.waiters - 1)
    finish_remotely((<Channel> task.lane.channel).thread, task.req, 0)


cdef void stop_waiting(ScsiTask *task) noexcept nogil:
    """A task that is being aborted waits no more. In its IOThread."""
    pthread_mutex_lock(&task.unit.lock)
    release_waiting(task)
    pthread_mutex_unlock(&task.unit.lock)


# ---- aborts -------------------------------------------------------------------------------------

cdef void begin_abort(NexusState *nexus) noexcept nogil:
    """All tasks of the nexus that are in execution now will end as aborted. Under the lock."""
    cdef ScsiTask *task = nexus.unit.waiting
    cdef ScsiTask *following
    vr_store_release_u32(&nexus.generation, nexus.generation + 1)
    while task != NULL:
        following = task.wait_link
        if task.nexus == nexus:
            release_waiting(task)
        task = following


cdef bint await_aborted(ScsiTask *task, TaskStep step) noexcept nogil:
    """Wait until the tasks of all nexuses whose aborter this task is have ended. True: they have
    already. task.blocks is 0 and the task holds no range."""
    cdef UnitState *unit = task.unit
    cdef bint go
    pthread_mutex_lock(&unit.lock)
    vr_store_relaxed_u32(&unit.waiters, unit.waiters + 1)
    pthread_mutex_unlock(&unit.lock)
    pass_fence_everywhere()
    pthread_mutex_lock(&unit.lock)
    go = may_go(task)
    if not go:
        wait(task, step)
    pthread_mutex_unlock(&unit.lock)
    return go
