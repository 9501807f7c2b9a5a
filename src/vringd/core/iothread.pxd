# One thread of the data plane: its state is for it alone, the rest is the control plane's.

from vringd.core.channel cimport Channel, QueueHandler, ThreadState
from vringd.core.poller cimport Poller
from vringd.core.sys cimport pthread_t
from vringd.core.virtqueue cimport Virtqueue
from vringd.core.vring cimport Message, RingSetup


cdef class IOThread:
    cdef ThreadState *state
    cdef Poller poller
    cdef pthread_t thread
    cdef bint running
    cdef readonly str name
    cdef readonly object cpu_affinity
    cdef readonly str engine
    cdef dict pending           # token: what must live until the answer
    cdef dict queues            # id of the Virtqueue: (Virtqueue, handler, channel)
    cdef dict channels          # id of the Channel: Channel
    cdef set detaching          # ids of queues whose detach has not been answered
    cdef object next_token
    cdef object send(self, int kind, Virtqueue queue, QueueHandler handler, Channel channel,
                     RingSetup *setup, object keep)
    cdef object post(self, Message *message, tuple keep)
