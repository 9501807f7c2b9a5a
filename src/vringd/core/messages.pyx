"""What the control plane asks of an IOThread, and how it is answered: in the thread itself."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport realloc

from vringd.core.buffers cimport drop_buffers, use_buffers
from vringd.core.channel cimport Channel, Question, ThreadState
from vringd.core.memory cimport MemoryMap
from vringd.core.poller cimport TAG_KICK, Poller
from vringd.core.sys cimport vr_exchange_ptr, vr_push_ptr, write
from vringd.core.vring cimport Message, Vring, install_setup, interrupt

cdef enum:
    # Turns before a question is looked at. In each of them a queue has been seen empty or has
    # given POP_BUDGET requests; it cannot hold more than these turns take (virtio 1.3, 2.7.4: a
    # chain has a descriptor at least).
    ASK_TURNS = 4               # vring.MAX_QUEUE_SIZE / turn.POP_BUDGET


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
