# Jobs that share a virtqueue, as CPUs of a guest share a hardware queue of blk-mq. All of it is
# under the queue's lock, which a job that has a queue to itself never takes.
#
# - One sleeping job listens for the device's signals. Whoever takes completions back gives those
#   of other jobs to their inboxes, and wakes a job when it has as many as it waits for.
# - A job that finds the ring full of other jobs' requests, with none of its own in flight, queues
#   up for room. Room is given to the first; until nobody waits, others may not add requests, so
#   that each gets its turn.

from libc.stdint cimport uint32_t

from vringd.bench.worker cimport Job, Queue, Slot
from vringd.core.sys cimport (
    pthread_mutex_lock, pthread_mutex_unlock, vr_load_relaxed_u32, vr_store_relaxed_u32)
from vringd.testing.driver cimport dq_signal


cdef inline bint shared(Job *job) noexcept nogil:
    return job.queue.sharers > 1


cdef inline void lock(Job *job) noexcept nogil:
    if shared(job):
        pthread_mutex_lock(&job.queue.lock)


cdef inline void unlock(Job *job) noexcept nogil:
    if shared(job):
        pthread_mutex_unlock(&job.queue.lock)


cdef inline void hand_over(Slot *slot) noexcept nogil:
    """Put a slot into the inbox of the job that it belongs to."""
    cdef Job *owner = slot.job
    slot.next = owner.inbox
    owner.inbox = slot
    owner.inbox_count += 1
    if owner.asleep and owner.inbox_count >= owner.asleep:
        owner.asleep = 0
        dq_signal(owner.wake_fd)


cdef inline void listen_again(Queue *queue) noexcept nogil:
    """Have a sleeping job listen, if none does."""
    cdef Job *job = queue.jobs
    if queue.listener != NULL:
        return
    while job != NULL:
        if job.asleep:
            job.asleep = 0
            dq_signal(job.wake_fd)
            return
        job = job.next_sharer


cdef inline bint may_add(Job *job) noexcept nogil:
    return job.queue.starving == NULL or vr_load_relaxed_u32(&job.granted)


cdef inline bint has_room(Job *job) noexcept nogil:
    """Whether the job may add a request, and one would fit."""
    return may_add(job) and job.queue.ring.num_free >= (1 if job.plan.indirect else 3)


cdef inline void give_room(Queue *queue) noexcept nogil:
    """If there is room, the first job that queues up may add requests."""
    cdef Job *first = queue.starving
    if first == NULL or queue.granting:
        return
    if queue.ring.num_free < (1 if first.plan.indirect else 3):
        return
    queue.starving = first.next_starving
    first.is_starving = 0
    queue.granting = 1
    vr_store_relaxed_u32(&first.granted, 1)
    if first.asleep:
        first.asleep = 0
        dq_signal(first.wake_fd)


cdef inline void queue_up(Job *job) noexcept nogil:
    """Get in line for room."""
    cdef Job **at = &job.queue.starving
    if job.is_starving:
        return
    while at[0] != NULL:
        at = &at[0].next_starving
    job.next_starving = NULL
    job.is_starving = 1
    at[0] = job


cdef inline void give_way(Job *job) noexcept nogil:
    """The job has used the room that it was given: the next one."""
    if vr_load_relaxed_u32(&job.granted):
        pthread_mutex_lock(&job.queue.lock)
        vr_store_relaxed_u32(&job.granted, 0)
        job.queue.granting = 0
        give_room(job.queue)
        pthread_mutex_unlock(&job.queue.lock)


cdef inline void leave(Job *job) noexcept nogil:
    """The job does not look at its queue for a while, or never again; it does not sleep."""
    cdef Job **at = &job.queue.starving
    if not shared(job):
        return
    give_way(job)
    pthread_mutex_lock(&job.queue.lock)
    while at[0] != NULL and at[0] != job:
        at = &at[0].next_starving
    if at[0] == job:
        at[0] = job.next_starving
        job.is_starving = 0
    give_room(job.queue)
    listen_again(job.queue)
    pthread_mutex_unlock(&job.queue.lock)
