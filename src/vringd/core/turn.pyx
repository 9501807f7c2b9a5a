"""The life of an IOThread.

A turn: take messages, pop everything that is available, submit once, take completions, publish
everything, notify once per queue. The thread never holds the GIL.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc

from vringd.core.channel cimport Channel, QueueHandler, ThreadState
from vringd.core.coalescing cimport may_wait, note_popped
from vringd.core.messages cimport (
    BROKEN, FAILED, READY, answer, answer_questions, finish_detaches, handle_messages, tell)
from vringd.core.poller cimport (
    TAG_CHANNEL, TAG_KICK, TAG_MASK, TAG_REQUEST, TAG_WAKE, Event, Poller)
from vringd.core.polling cimport adjust_spin, note_requests, spin_time
from vringd.core.sys cimport (
    ECANCELED, PR_SET_NAME, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGURG, SIG_SETMASK, prctl,
    pthread_sigmask, sigdelset, sigfillset, sigset_t, vr_count_u64, vr_exchange_ptr,
    vr_gettid, vr_load_relaxed_ptr, vr_now_ns, vr_relax, vr_store_relaxed_u32)
from vringd.core.virtqueue cimport (
    vring_disable_notification, vring_enable_notification, vring_has_work, vring_pop, vring_publish,
    vring_should_notify)
from vringd.core.vring cimport Message, Request, Vring, faulted, interrupt, settle_fresh

cdef enum:
    PUBLISH_AFTER = 4           # completions that a driver which is looking sees before the rest
    POP_BUDGET = 256            # requests of one queue in one turn, so that no queue starves others
    EVENT_ROOM = 128
    POLL_MODE_SLEEP_NS = 50000  # longest sleep while some queue has no kick eventfd


cdef inline uint32_t serve(Vring *q) noexcept nogil:
    """Pop and hand over what is available, up to a budget; how many requests."""
    cdef Request *req
    cdef uint32_t count = 0
    if q.draining or q.broken or not q.enabled:
        return 0
    if not vring_has_work(q):
        return 0
    vring_disable_notification(q)
    while count < POP_BUDGET:
        req = vring_pop(q)
        if req == NULL:
            break
        (<QueueHandler> q.handler).handle(q, req)
        count += 1
        if q.used_pending >= PUBLISH_AFTER:
            vring_publish(q)
    if count:
        if q.used_pending:      # a driver that looks need not wait for the rest of the turn
            vring_publish(q)
        vr_count_u64(&q.stats.batches, 1)
        note_popped(q, q.clock[0], count)
    return count


cdef void finish_remote(ThreadState *t) noexcept nogil:
    """Complete what other threads finished, oldest first."""
    cdef Request *req = <Request *> vr_exchange_ptr(&t.remote, NULL)
    cdef Request *ordered = NULL
    cdef Request *following
    while req != NULL:
        following = req.next
        req.next = ordered
        ordered = req
        req = following
    while ordered != NULL:
        following = ordered.next
        (<QueueHandler> (<Vring *> ordered.queue).handler).complete(ordered)
        ordered = following


cdef void dispatch(ThreadState *t, Event *events, int count) noexcept nogil:
    cdef Event *event
    cdef Request *req
    cdef Vring *q
    cdef uint64_t pointer
    cdef uint32_t tag
    cdef int i
    for i in range(count):
        event = &events[i]
        tag = event.tag & TAG_MASK
        pointer = event.tag & ~<uint64_t> TAG_MASK
        if tag == TAG_REQUEST:
            req = <Request *> <uintptr_t> pointer
            q = <Vring *> req.queue
            (<Channel> req.channel).operation_done(req, event.result)
            if q.used_pending >= PUBLISH_AFTER:
                vring_publish(q)
        elif tag == TAG_KICK:
            q = <Vring *> <uintptr_t> pointer
            if not event.more:
                q.watched = 0
                if not q.unwatching:    # the kernel dropped it (out of memory, say): set it anew
                    if (<Poller> t.poller).watch(q.kick_fd, event.tag) == 0:
                        q.watched = 1
            if event.result != -ECANCELED:
                vr_count_u64(&q.stats.kicks, 1)
        elif tag == TAG_CHANNEL:
            (<Channel> <void *> <uintptr_t> pointer).readable()
            if not event.more:
                (<Channel> <void *> <uintptr_t> pointer).watch_ended()
        elif tag == TAG_WAKE and not event.more:
            (<Poller> t.poller).watch(t.wake_fd, TAG_WAKE)


cdef inline void notify(Vring *q) noexcept nogil:
    q.unsignalled = 0
    q.unsignalled_since = 0
    if vring_should_notify(q) and q.call_fd >= 0:
        vr_count_u64(&q.stats.notifications, 1)
        interrupt(q)


cdef inline void end_turn(ThreadState *t, bint sleeping) noexcept nogil:
    """Publish, and notify once per queue: at the latest before the thread sleeps."""
    cdef Vring *q
    cdef uint32_t i
    for i in range(t.queue_count):
        q = t.queues[i]
        if q.used_pending:
            vring_publish(q)
        if q.unsignalled:
            if q.unsignalled_since == 0:
                q.unsignalled_since = t.now
            if sleeping or not may_wait(q, t.now):
                notify(q)
        # A ring that is idle, or reads as empty since its memory was lost, is not popped from.
        if (q.broken or faulted(q)) and not q.broken_told:
            q.broken_told = 1
            q.broken_message.kind = BROKEN
            q.broken_message.queue = q
            tell(t, &q.broken_message)


cdef void run(ThreadState *t) noexcept nogil:
    """The thread's life: turns until it is told to stop."""
    cdef Event events[EVENT_ROOM]
    cdef uint64_t idle_since = 0, deadline, due, after, spin_ns
    cdef int64_t timeout
    cdef uint32_t i, worked, served, popped
    cdef bint again
    cdef int count
    t.now = vr_now_ns()
    while True:
        vr_count_u64(&t.turns, 1)
        worked = served = 0
        if vr_load_relaxed_ptr(&t.inbox) != NULL:
            handle_messages(t)
            worked = 1
        if vr_load_relaxed_ptr(&t.remote) != NULL:
            finish_remote(t)
            worked = 1
        for i in range(t.queue_count):
            popped = serve(t.queues[i])
            t.queues[i].served = popped != 0
            served += popped
        worked += served
        deadline = 0
        for i in range(t.channel_count):
            if not (<Channel> t.channels[i]).needs_turns:
                continue
            (<Channel> t.channels[i]).flush()
            due = (<Channel> t.channels[i]).run_timers(t.now)
            if due and (deadline == 0 or due < deadline):
                deadline = due
        after = vr_now_ns()
        if worked:
            for i in range(t.queue_count):
                if t.queues[i].served:
                    settle_fresh(t.queues[i], after - t.now)
        t.now = after
        if served:
            note_requests(&t.polling, after, served)
        spin_ns = spin_time(&t.polling)
        count = 0
        if (<Poller> t.poller).pending():
            count = (<Poller> t.poller).wait(0, events, EVENT_ROOM)
            if count < 0:
                t.error = count
                return
            dispatch(t, events, count)
        end_turn(t, spin_ns == 0 or t.draining != 0)
        if t.draining and not finish_detaches(t):
            worked = 1
        if t.asked != NULL and answer_questions(t):
            worked = 1
        if worked or count:
            if idle_since and spin_ns:
                vr_count_u64(&t.spins_won, 1)
            idle_since = 0
            continue
        if t.stopping and t.queue_count == 0 and t.channel_count == 0:
            return
        if deadline and deadline <= t.now:
            continue
        # ---- nothing to do: spin for a while, then sleep
        if idle_since == 0:
            idle_since = t.now
        if t.now - idle_since < spin_ns:
            vr_relax()
            continue
        end_turn(t, True)
        again = False
        for i in range(t.queue_count):
            if not (t.queues[i].draining or t.queues[i].broken or not t.queues[i].enabled):
                if vring_enable_notification(t.queues[i]):
                    again = True
        if (again or vr_load_relaxed_ptr(&t.inbox) != NULL
                or vr_load_relaxed_ptr(&t.remote) != NULL):
            continue
        timeout = -1 if deadline == 0 else <int64_t> (deadline - t.now)
        if t.polls_rings and (timeout < 0 or timeout > POLL_MODE_SLEEP_NS):
            timeout = POLL_MODE_SLEEP_NS
        vr_count_u64(&t.sleeps, 1)
        count = (<Poller> t.poller).wait(timeout, events, EVENT_ROOM)
        t.now = vr_now_ns()
        if count < 0:
            t.error = count
            return
        if count:
            adjust_spin(&t.polling, t.now - idle_since)
        idle_since = 0
        dispatch(t, events, count)
        end_turn(t, False)


cdef void *thread_main(void *argument) noexcept nogil:
    cdef ThreadState *t = <ThreadState *> argument
    cdef Message *ready = <Message *> calloc(1, sizeof(Message))
    cdef sigset_t blocked
    cdef int rc
    # Signals are the main thread's, but for those that an access of ours raises.
    sigfillset(&blocked)
    sigdelset(&blocked, SIGBUS)
    sigdelset(&blocked, SIGSEGV)
    sigdelset(&blocked, SIGFPE)
    sigdelset(&blocked, SIGILL)
    sigdelset(&blocked, SIGURG)     # ends a write of ours that a front-end made wait
    pthread_sigmask(SIG_SETMASK, &blocked, NULL)
    prctl(PR_SET_NAME, t.thread_name)
    t.tid = vr_gettid()
    vr_store_relaxed_u32(&t.signals.tid, <uint32_t> t.tid)
    rc = (<Poller> t.poller).open()
    if rc == 0:
        rc = (<Poller> t.poller).watch(t.wake_fd, TAG_WAKE)
    ready.kind = READY
    answer(t, ready, rc)
    if rc == 0:
        run(t)
        if t.error != 0:
            t.last_words.kind = FAILED
            answer(t, &t.last_words, t.error)
    (<Poller> t.poller).close()
    return NULL
