"""Adaptive polling: QEMU's rule for light load, a measurement under load.

Spinning saves the driver a kick and us a wake-up, but it uses a processor, which the guest may
need more, and it makes us answer so soon that batches stay small. QEMU's rule compares how long
a wait lasted with how long we would spin; but a wait that we slept through also contains both
sides' wake-ups, so under load it can stay on the wrong side of the limit for ever. Hence, once
there is load, both ways are measured: time is cut into epochs, now and then a few epochs are run
the other way (spinning for poll-max-ns, or sleeping at once), and the way that served more
requests per second wins. When both are about as good sleeping does, since it costs less.
"""

from libc.stdint cimport uint64_t

from vringd.core.sys cimport vr_load_relaxed_u64, vr_store_relaxed_u64

cdef enum:
    FIRST_SPIN_NS = 4000        # where growing starts
    TRIAL_EPOCHS = 3
    STEADY_EPOCHS = 4           # of the present way, before it is compared
    BUSY_REQUESTS = 48          # in an epoch: 12,000 a second
    FIRST_GAP_NS = 30000000
    LAST_GAP_NS = 2000000000


cdef void adjust_spin(PollPolicy *p, uint64_t idle_ns) noexcept nogil:
    """QEMU's rule: spin a little longer than the wait lasts, not at all when waits are long."""
    cdef uint64_t most = vr_load_relaxed_u64(&p.max_ns)
    cdef uint64_t spin = p.spin_ns
    if most == 0:
        spin = 0
    elif idle_ns <= spin:
        return
    elif idle_ns > most:
        spin = spin // p.shrink if p.shrink else 0
    elif spin < most:
        spin = min(spin * (p.grow if p.grow else 2) if spin else FIRST_SPIN_NS, most)
    vr_store_relaxed_u64(&p.spin_ns, spin)


cdef void choose(PollPolicy *p, PollWay way, uint64_t now) noexcept nogil:
    """Go this way and forget what was measured of another."""
    vr_store_relaxed_u64(&p.way, way)
    p.trying = 0
    p.epochs = 0
    p.rate = 0
    p.trial_gap_ns = FIRST_GAP_NS
    p.next_trial = now + FIRST_GAP_NS


cdef void end_trial(PollPolicy *p, uint64_t now) noexcept nogil:
    """Keep the way that was tried if it is better: spinning must win by a tenth."""
    cdef uint64_t spinning = p.rate if p.way == SPIN else p.trial_rate
    cdef uint64_t sleeping = p.trial_rate if p.way == SPIN else p.rate
    cdef PollWay better = SLEEP if sleeping + sleeping // 10 >= spinning else SPIN
    if better != p.way:
        choose(p, better, now)
        return
    p.trying = 0
    p.epochs = 0
    p.trial_gap_ns = min(2 * p.trial_gap_ns, <uint64_t> LAST_GAP_NS)
    p.next_trial = now + p.trial_gap_ns


cdef void end_epoch(PollPolicy *p, uint64_t now) noexcept nogil:
    """An epoch is over: learn from it."""
    cdef uint64_t elapsed = now - p.epoch_start
    cdef uint64_t rate = p.requests * <uint64_t> 1000000000 // elapsed
    # An epoch ends with the first request after its time, so a pause makes it long.
    cdef bint busy = p.requests * <uint64_t> EPOCH_NS >= BUSY_REQUESTS * elapsed
    p.epoch_start = now
    p.requests = 0
    if not busy or vr_load_relaxed_u64(&p.max_ns) == 0:
        choose(p, BY_RULE, now)
        return
    if p.way == BY_RULE:
        choose(p, SPIN, now)
        return
    p.epochs += 1
    if p.trying:
        if p.epochs > 1:            # the first epoch is the change itself
            p.trial_rate += rate // (TRIAL_EPOCHS - 1)
        if p.epochs == TRIAL_EPOCHS:
            end_trial(p, now)
        return
    p.rate = rate if p.rate == 0 else (3 * p.rate + rate) // 4
    p.epochs = min(p.epochs, <unsigned char> STEADY_EPOCHS)
    if p.epochs == STEADY_EPOCHS and now >= p.next_trial:
        p.trying = 1
        p.epochs = 0
        p.trial_rate = 0
