# How long an IOThread that has nothing to do looks at its rings before it sleeps.

from libc.stdint cimport uint32_t, uint64_t, uint8_t


cdef struct PollPolicy:
    # ---- how long to spin: QEMU's rule
    uint64_t max_ns             # poll-max-ns; 0: never (the control plane may change it)
    uint64_t grow               # poll-grow; 0: 2
    uint64_t shrink             # poll-shrink; 0: at once to 0
    uint64_t spin_ns            # its present answer (read by the control plane)
    # ---- whether to spin under load: measured
    uint64_t way                # a PollWay (read by the control plane)
    uint8_t trying              # the other way is being tried
    uint8_t epochs              # finished epochs of the present measurement
    uint64_t epoch_start        # ns
    uint32_t requests           # in this epoch
    uint64_t rate               # requests per second the present way
    uint64_t trial_rate         # and in the trial
    uint64_t next_trial         # ns
    uint64_t trial_gap_ns       # doubles while trials change nothing


cdef enum PollWay:
    BY_RULE                     # little load: QEMU's rule
    SPIN                        # load, and spinning for max_ns serves more of it
    SLEEP                       # load, and sleeping at once serves as much


cdef void end_epoch(PollPolicy *p, uint64_t now) noexcept nogil
cdef void adjust_spin(PollPolicy *p, uint64_t idle_ns) noexcept nogil

cdef enum:
    EPOCH_NS = 4000000


cdef inline uint64_t spin_time(const PollPolicy *p) noexcept nogil:
    """Nanoseconds to spin before sleeping."""
    if p.way == BY_RULE:
        return p.spin_ns
    return p.max_ns if (p.way == SPIN) != p.trying else 0


cdef inline void note_requests(PollPolicy *p, uint64_t now, uint32_t count) noexcept nogil:
    p.requests += count
    if now - p.epoch_start >= EPOCH_NS:
        end_epoch(p, now)
