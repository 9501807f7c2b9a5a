"""IOThread: one pinned thread, one poller, many queues of any devices.

A turn: take messages, pop everything that is available, submit once, take completions, publish
everything, notify once per queue. The thread never holds the GIL; the control plane talks to it
through two lists of messages and learns of answers by `event_fd`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

from vringd.core.buffers cimport drop_buffers, use_buffers
from vringd.core.channel cimport Channel, Question, QueueHandler, ThreadState
from vringd.core.coalescing cimport may_wait, note_popped
from vringd.core.memory cimport MemoryMap
from vringd.core.poller cimport (
    TAG_CHANNEL, TAG_KICK, TAG_MASK, TAG_REQUEST, TAG_WAKE, EpollPoller, Event, Poller,
    UringPoller)
from vringd.core.polling cimport adjust_spin, note_requests, spin_time
from vringd.core.sys cimport (
    ECANCELED, EFD_CLOEXEC, EFD_NONBLOCK, PR_SET_NAME, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGURG,
    SIG_SETMASK, alloc_lines, close, errno, eventfd, prctl, pthread_create, pthread_join,
    pthread_sigmask, read, sigdelset, sigfillset, sigset_t, vr_count_u64, vr_exchange_ptr,
    vr_gettid, vr_load_relaxed_ptr, vr_load_relaxed_u64, vr_now_ns, vr_push_ptr, vr_relax,
    vr_store_relaxed_u32, vr_store_relaxed_u64, write)
from vringd.core.virtqueue cimport (
    Virtqueue, vring_disable_notification, vring_enable_notification, vring_has_work, vring_pop,
    vring_publish, vring_should_notify)
from vringd.core.vring cimport (
    Message, Request, RingSetup, Vring, faulted, install_setup, interrupt, settle_fresh)
from vringd.core.watchdog cimport unwatch_signals, watch_signals

import os
import select

from vringd.core.poller import io_uring_available

cdef enum:
    PUBLISH_AFTER = 4           # completions that a driver which is looking sees before the rest
    POP_BUDGET = 256            # requests of one queue in one turn, so that no queue starves others
    EVENT_ROOM = 128
    POLL_MODE_SLEEP_NS = 50000  # longest sleep while some queue has no kick eventfd
    # Turns before a question is looked at. In each of them a queue has been seen empty or has
    # given POP_BUDGET requests; it cannot hold more than these turns take (virtio 1.3, 2.7.4: a
    # chain has a descriptor at least).
    ASK_TURNS = 4               # vring.MAX_QUEUE_SIZE / POP_BUDGET


cdef enum MessageKind:
    READY                       # the thread runs (or failed to start: status)
    ATTACH
    DETACH
    UPDATE
    ADD_CHANNEL
    REMOVE_CHANNEL
    ASK
    STOP
    BROKEN                      # unasked: a ring broke
    FAILED                      # unasked: the thread ended by itself


# ---- messages -----------------------------------------------------------------------------------

cdef void tell(ThreadState *t, Message *message) noexcept nogil:
    """Hand a message to the control plane, which frees it (or not: BROKEN belongs to its ring)."""
    cdef uint64_t one = 1
    vr_push_ptr(&t.outbox, message, &message.next)
    write(t.ack_fd, &one, 8)


cdef void answer(ThreadState *t, Message *message, int status) noexcept nogil:
    message.status = status
    tell(t, message)


cdef Message *take_messages(void **list) noexcept nogil:
    """The whole list, oldest first."""
    cdef Message *message = <Message *> vr_exchange_ptr(list, NULL)
    cdef Message *ordered = NULL
    cdef Message *following
    while message != NULL:
        following = <Message *> message.next
        message.next = ordered
        ordered = message
        message = following
    return ordered


cdef int append(void ***array, uint32_t *count, void *item) noexcept nogil:
    cdef void **grown = <void **> realloc(array[0], (count[0] + 1) * sizeof(void *))
    if grown == NULL:
        return -12
    grown[count[0]] = item
    array[0] = grown
    count[0] += 1
    return 0


cdef void remove(void **array, uint32_t *count, void *item) noexcept nogil:
    cdef uint32_t i
    for i in range(count[0]):
        if array[i] == item:
            count[0] -= 1
            array[i] = array[count[0]]
            return


cdef void note_poll_mode(ThreadState *t) noexcept nogil:
    cdef uint32_t i
    t.polls_rings = 0
    for i in range(t.queue_count):
        if t.queues[i].kick_fd < 0:
            t.polls_rings = 1


cdef inline bint wants_buffers(Vring *q) noexcept nogil:
    return q.channel != NULL and (<Channel> q.channel).wants_buffers


cdef int attach(ThreadState *t, Message *message) noexcept nogil:
    cdef Vring *q = <Vring *> message.queue
    cdef int rc = append(<void ***> &t.queues, &t.queue_count, q)
    if rc != 0:
        return rc
    q.handler, q.channel = message.handler, message.channel
    q.clock = &t.now
    q.signals = &t.signals
    q.draining = 0
    q.unwatching = 0
    q.notify_off = 1            # whatever the ring says from before, the first sleep asks for kicks
    q.signalled_valid = 0       # the first notification after a start or a move is unconditional
    q.watched = 0
    if q.kick_fd >= 0:
        rc = (<Poller> t.poller).watch(q.kick_fd, <uint64_t> <uintptr_t> q | TAG_KICK)
        if rc != 0:
            remove(<void **> t.queues, &t.queue_count, q)
            return rc
        q.watched = 1
    if wants_buffers(q):
        use_buffers(&t.buffers, (<Poller> t.poller).ring, q.memory)
    note_poll_mode(t)
    return 0


cdef void begin_detach(ThreadState *t, Message *message) noexcept nogil:
    cdef Vring *q = <Vring *> message.queue
    q.draining = 1
    t.draining += 1
    # The answer waits with the ring until nothing of it is in flight.
    q.detach_message = message


cdef bint finish_detaches(ThreadState *t) noexcept nogil:
    """Let go of the queues that are drained; False if this must be tried again at once."""
    cdef Vring *q
    cdef uint32_t i = 0
    cdef bint waiting = True
    cdef int rc
    while i < t.queue_count:
        q = t.queues[i]
        i += 1
        if not q.draining:
            continue
        if q.watched and not q.unwatching:
            rc = (<Poller> t.poller).unwatch(q.kick_fd, <uint64_t> <uintptr_t> q | TAG_KICK)
            if rc > 0:
                q.watched = 0
            elif rc == 0:
                q.unwatching = 1    # its last event comes
            else:
                waiting = False
        if q.in_flight == 0 and not q.watched:
            # All is published: the turn does that before it calls this.
            remove(<void **> t.queues, &t.queue_count, q)
            i -= 1
            t.draining -= 1
            q.draining = 0
            if wants_buffers(q):
                drop_buffers(&t.buffers, (<Poller> t.poller).ring, q.memory)
            q.own_clock = t.now
            q.clock = &q.own_clock
            q.signals = NULL
            note_poll_mode(t)
            answer(t, <Message *> q.detach_message, 0)
    return waiting


cdef void update(ThreadState *t, Message *message) noexcept nogil:
    cdef Vring *q = <Vring *> message.queue
    cdef MemoryMap *before = q.memory
    cdef bint called = message.setup.call_fd != q.call_fd
    install_setup(q, &message.setup)
    if q.memory != before and wants_buffers(q):
        # First use, then drop: regions that stay are not registered anew.
        use_buffers(&t.buffers, (<Poller> t.poller).ring, q.memory)
        drop_buffers(&t.buffers, (<Poller> t.poller).ring, before)
    if called:
        # Whatever was to be told through the old eventfd, the driver looks again now.
        interrupt(q)


cdef void handle_messages(ThreadState *t) noexcept nogil:
    cdef Message *message = take_messages(&t.inbox)
    cdef Message *following
    cdef int rc
    while message != NULL:
        following = <Message *> message.next
        if message.kind == ATTACH:
            answer(t, message, attach(t, message))
        elif message.kind == DETACH:
            begin_detach(t, message)
        elif message.kind == UPDATE:
            update(t, message)
            answer(t, message, 0)
        elif message.kind == ADD_CHANNEL:
            rc = append(&t.channels, &t.channel_count, message.channel)
            if rc == 0:
                (<Channel> message.channel).thread = t
                rc = (<Channel> message.channel).start()
                if rc != 0:
                    remove(t.channels, &t.channel_count, message.channel)
            answer(t, message, rc)
        elif message.kind == REMOVE_CHANNEL:
            if (<Channel> message.channel).stop():
                remove(t.channels, &t.channel_count, message.channel)
                answer(t, message, 0)
            else:
                vr_push_ptr(&t.inbox, message, &message.next)   # again in the next turn
        elif message.kind == ASK:
            message.value = 0
            message.next = t.asked
            t.asked = message
        elif message.kind == STOP:
            t.stopping = 1
            answer(t, message, 0)
        message = following


cdef bint answer_questions(ThreadState *t) noexcept nogil:
    """Look at the questions, when a turn's completions are published; whether another turn has to
    follow at once."""
    cdef Message **link = &t.asked
    cdef Message *message
    cdef bint hurry = False
    while link[0] != NULL:
        message = link[0]
        if message.value < ASK_TURNS:
            message.value += 1
            hurry = True
        elif (<Question> message.question).answered():
            link[0] = <Message *> message.next
            answer(t, message, 0)
            continue
        link = <Message **> &message.next
    return hurry


# ---- a turn -------------------------------------------------------------------------------------

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


# ---- the control plane's side -------------------------------------------------------------------

_KIND_NAMES = {
    READY: "ready", ATTACH: "attach", DETACH: "detach", UPDATE: "update",
    ADD_CHANNEL: "add-channel", REMOVE_CHANNEL: "remove-channel", ASK: "ask", STOP: "stop",
    BROKEN: "broken", FAILED: "failed",
}


cdef class IOThread:
    """One thread of the data plane. Methods belong to the control plane's thread.

    name: shown by ps (15 bytes). cpu_affinity: CPU numbers, None: as inherited.
    poll_max_ns, poll_grow, poll_shrink: as QEMU's iothread object.
    aio_max_batch: most requests in one submission, 0: as many as a turn brings. use_io_uring:
    False for the epoll poller, None to use io_uring if this process may.

    Requests to the thread return a token; `events` tells when it has been done.
    """

    def __cinit__(self, *args, **kwargs):
        self.state = <ThreadState *> alloc_lines(sizeof(ThreadState))
        if self.state == NULL:
            raise MemoryError
        self.state.wake_fd = self.state.ack_fd = -1

    def __init__(self, name, *, cpu_affinity=None, uint64_t poll_max_ns=32768,
                 uint64_t poll_grow=0, uint64_t poll_shrink=0, uint32_t aio_max_batch=0,
                 use_io_uring=None):
        cdef bytes short
        cdef int i
        self.name = name
        self.cpu_affinity = None if cpu_affinity is None else tuple(cpu_affinity)
        self.pending, self.queues, self.channels = {}, {}, {}
        self.detaching = set()
        self.next_token = 1
        if use_io_uring is None:
            use_io_uring = io_uring_available()
        self.poller = UringPoller() if use_io_uring else EpollPoller()
        self.engine = "io_uring" if use_io_uring else "epoll"
        self.state.poller = <void *> self.poller
        self.state.polling.max_ns = poll_max_ns
        self.state.polling.grow, self.state.polling.shrink = poll_grow, poll_shrink
        self.state.aio_max_batch = aio_max_batch
        short = name.encode()[:15]
        for i in range(len(short)):
            self.state.thread_name[i] = short[i]
        self.state.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        self.state.ack_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.state.wake_fd < 0 or self.state.ack_fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.state != NULL:
            if self.running:        # dropped without stop: the thread still uses the state
                return
            for fd in (self.state.wake_fd, self.state.ack_fd):
                if fd >= 0:
                    close(fd)
            free(self.state.buffers.buffers)
            free(self.state.queues)
            free(self.state.channels)
            free(self.state)

    # ---- life ---------------------------------------------------------------------------------

    def start(self):
        """Start the thread and wait until it runs. Raises OSError."""
        cdef int rc
        if self.running:
            raise RuntimeError(f"IOThread {self.name} runs already")
        watch_signals(&self.state.signals)
        with nogil:
            rc = pthread_create(&self.thread, NULL, thread_main, self.state)
        if rc != 0:
            unwatch_signals(&self.state.signals)
            raise OSError(rc, f"cannot start IOThread {self.name}: {os.strerror(rc)}")
        self.running = True
        ready = select.poll()       # not select(), which knows descriptors below 1024 only
        ready.register(self.state.ack_fd, select.POLLIN)
        ready.poll(10_000)
        status = -110
        for kind, _token, answer_status, _queue in self.events():
            if kind == "ready":
                status = answer_status
        if status != 0:
            self.join()
            raise OSError(-status, f"IOThread {self.name}: no {self.engine}: "
                                   f"{os.strerror(-status)}")
        if self.cpu_affinity:
            try:
                os.sched_setaffinity(self.state.tid, self.cpu_affinity)
            except OSError as error:
                self.stop()
                self.join()
                raise OSError(
                    error.errno,
                    f"IOThread {self.name}: cannot run on CPUs "
                    f"{','.join(map(str, self.cpu_affinity))}: {error.strerror}") from None

    def stop(self):
        """Ask the thread to end once it has neither queues nor channels; a token."""
        return self.send(STOP, None, None, None, NULL, None)

    def join(self):
        """Wait for the thread's end (blocks; after stop was answered it is near)."""
        if self.running:
            with nogil:
                pthread_join(self.thread, NULL)
            unwatch_signals(&self.state.signals)
            self.running = False

    # ---- requests -----------------------------------------------------------------------------

    cdef object send(self, int kind, Virtqueue queue, QueueHandler handler, Channel channel,
                     RingSetup *setup, object keep):
        cdef Message *message = <Message *> calloc(1, sizeof(Message))
        if message == NULL:
            raise MemoryError
        message.kind = kind
        message.queue = NULL if queue is None else queue.ring
        message.handler = NULL if handler is None else <void *> handler
        message.channel = NULL if channel is None else <void *> channel
        if setup != NULL:
            message.setup = setup[0]
        return self.post(message, (queue, handler, channel, keep))

    cdef object post(self, Message *message, tuple keep):
        """Hand a message to the thread; keep: references that must outlive its use of pointers,
        the queue first."""
        cdef uint64_t one = 1
        token = self.next_token
        self.next_token += 1
        message.token = token
        self.pending[token] = keep
        vr_push_ptr(&self.state.inbox, message, &message.next)
        write(self.state.wake_fd, &one, 8)
        return token

    def add_channel(self, Channel channel not None):
        """Start a channel in this thread; a token."""
        self.channels[id(channel)] = channel
        return self.send(ADD_CHANNEL, None, None, channel, NULL, None)

    def remove_channel(self, Channel channel not None):
        """Stop a channel that no queue uses any more; a token."""
        return self.send(REMOVE_CHANNEL, None, None, channel, NULL, None)

    def attach(self, Virtqueue queue not None, QueueHandler handler not None,
               Channel channel):
        """Serve queue with handler and channel (of this thread); a token."""
        if id(queue) in self.queues:
            raise ValueError(f"queue {queue.index} is attached to {self.name} already")
        self.queues[id(queue)] = (queue, handler, channel)
        return self.send(ATTACH, queue, handler, channel, NULL, None)

    def detach(self, Virtqueue queue not None):
        """Pop no more from queue, finish what is in flight, let go of it; a token."""
        if id(queue) not in self.queues or id(queue) in self.detaching:
            raise ValueError(f"queue {queue.index} is not attached to {self.name}")
        self.detaching.add(id(queue))
        return self.send(DETACH, queue, None, None, NULL, None)

    def update(self, Virtqueue queue not None, *, memory=None, log=..., log_addr=..., call_fd=None,
               enabled=None):
        """Replace parts of queue's set-up while it is served; a token.

        call_fd is duplicated. New memory must hold all regions that requests in flight use: it
        may add regions at any time and lose some only while nothing is in flight. Raises
        ValueError if the ring is not in the new memory.
        """
        if id(queue) not in self.queues:
            raise ValueError(f"queue {queue.index} is not attached to {self.name}")
        keep = queue.prepare(memory, log, log_addr, call_fd, enabled)
        return self.send(UPDATE, queue, None, None, &queue.current, keep)

    def ask(self, Question question not None):
        """Have the thread answer a question; a token."""
        cdef Message *message = <Message *> calloc(1, sizeof(Message))
        if message == NULL:
            raise MemoryError
        message.kind, message.question = ASK, <void *> question
        return self.post(message, (None, None, None, question))

    def set_polling(self, uint64_t max_ns):
        """Change poll-max-ns of a running thread."""
        # A word of its own; the thread looks at it after its next sleep.
        vr_store_relaxed_u64(&self.state.polling.max_ns, max_ns)

    # ---- answers ------------------------------------------------------------------------------

    @property
    def event_fd(self):
        """Readable when `events` has something."""
        return self.state.ack_fd

    def events(self):
        """A list of (kind, token, status, queue): answers, and with token 0 "broken" (a queue's
        ring) and "failed" (the thread ended by itself).

        status is 0 or a negative errno.
        """
        cdef Message *message
        cdef Message *following
        cdef uint64_t count
        read(self.state.ack_fd, &count, 8)
        result = []
        message = take_messages(&self.state.outbox)
        while message != NULL:
            following = <Message *> message.next
            kind = _KIND_NAMES[message.kind]
            queue = None
            if message.kind == FAILED:
                result.append((kind, 0, message.status, None))
            elif message.kind == BROKEN:
                queue = <object> (<Vring *> message.queue).owner
                result.append((kind, 0, 0, queue))
            else:
                held = self.pending.pop(message.token, (None, None, None, None))
                queue = held[0]
                if message.kind == DETACH:
                    self.queues.pop(id(queue), None)
                    self.detaching.discard(id(queue))
                elif message.kind == ATTACH and message.status != 0:
                    self.queues.pop(id(queue), None)
                elif message.kind == REMOVE_CHANNEL or (
                        message.kind == ADD_CHANNEL and message.status != 0):
                    self.channels.pop(id(held[2]), None)
                result.append((kind, message.token, message.status, queue))
                free(message)
            message = following
        return result

    # ---- figures ------------------------------------------------------------------------------

    @property
    def tid(self):
        """The kernel's thread id."""
        return self.state.tid

    @property
    def buffer_error(self):
        """Why some guest memory could not be registered with the ring: an errno, or 0."""
        return -self.state.buffers.error

    @property
    def error(self):
        """Why the thread ended by itself: an errno, or 0."""
        return -self.state.error

    def counters(self):
        """A dict: turns, sleeps, spins_won (idle spins that found work), poll_ns (how long the
        thread spins by QEMU's rule) and poll_way ("rule", or measured to be better under load:
        "spin" or "sleep")."""
        return {
            "turns": vr_load_relaxed_u64(&self.state.turns),
            "sleeps": vr_load_relaxed_u64(&self.state.sleeps),
            "spins_won": vr_load_relaxed_u64(&self.state.spins_won),
            "poll_ns": vr_load_relaxed_u64(&self.state.polling.spin_ns),
            "poll_way": ("rule", "spin", "sleep")[vr_load_relaxed_u64(&self.state.polling.way)],
        }
