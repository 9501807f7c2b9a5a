"""IOThread: one pinned thread, one poller, many queues of any devices.

This is the control plane's side; `turn.pyx` is what the thread does. The two talk through lists of
messages (`messages.pxd`), and answers are announced by `event_fd`.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from vringd.core.channel cimport Channel, Question, QueueHandler, ThreadState
from vringd.core.messages cimport (
    ADD_CHANNEL, ASK, ATTACH, BROKEN, DETACH, FAILED, READY, REMOVE_CHANNEL, STOP, UPDATE,
    take_messages)
from vringd.core.poller cimport EpollPoller, UringPoller
from vringd.core.sys cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, alloc_lines, close, errno, eventfd, pthread_create, pthread_join,
    read, vr_load_relaxed_u64, vr_push_ptr, vr_store_relaxed_u64, write)
from vringd.core.turn cimport thread_main
from vringd.core.virtqueue cimport Virtqueue
from vringd.core.vring cimport Message, RingSetup, Vring
from vringd.core.watchdog cimport unwatch_signals, watch_signals

import os
import select

from vringd.core.poller import io_uring_available

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
