"""Adaptive polling: QEMU's rule for how long, and a measurement for whether at all.

Spinning saves the driver a kick and us a wake-up, but it uses a processor, which the guest may
need more, and it makes us answer so soon that batches stay small. Which effect is the stronger
depends on the driver and the machine, so it is measured: the time is cut into epochs, now and
then a few epochs are run the other way (spinning or sleeping at once), and the way that served
more requests per second wins. When both are as good, sleeping is, since it costs less.

A nearly idle thread takes no part in this: QEMU's rule alone stops its spinning.
"""

from libc.stdint cimport uint64_t

from vringd.core.sys cimport vr_load_relaxed_u64, vr_store_relaxed_u64

cdef enum:
    FIRST_SPIN_NS = 4000        # where growing starts
    TRIAL_EPOCHS = 3
    BUSY_REQUESTS = 64          # fewer in an epoch say nothing about throughput
    FIRST_GAP_NS = 50000000
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


cdef void start_trial(PollPolicy *p) noexcept nogil:
    p.trying = 1
    p.epochs = 0
    p.trial_rate = 0


cdef void end_trial(PollPolicy *p, uint64_t now) noexcept nogil:
    """Keep the way that was tried if it is better: spinning must win by a tenth."""
    cdef bint changed
    cdef uint64_t spinning = p.trial_rate if p.sleeps else p.rate
    cdef uint64_t sleeping = p.rate if p.sleeps else p.trial_rate
    cdef uint64_t sleeps = sleeping + sleeping // 10 >= spinning
    changed = sleeps != p.sleeps
    p.trying = 0
    p.epochs = 0
    if changed:
        vr_store_relaxed_u64(&p.sleeps, sleeps)
        p.rate = p.trial_rate
        p.trial_gap_ns = FIRST_GAP_NS
    else:
        p.trial_gap_ns = min(2 * p.trial_gap_ns, <uint64_t> LAST_GAP_NS)
    p.next_trial = now + p.trial_gap_ns


cdef void end_epoch(PollPolicy *p, uint64_t now) noexcept nogil:
    cdef uint64_t elapsed = now - p.epoch_start
    cdef uint64_t rate = p.requests * <uint64_t> 1000000000 // elapsed
    cdef bint busy = p.requests >= BUSY_REQUESTS
    p.epoch_start = now
    p.requests = 0
    if not busy or p.spin_ns == 0:
        # What was learnt belongs to a load that is over.
        p.trying = 0
        p.rate = 0
        p.epochs = 0
        p.trial_gap_ns = FIRST_GAP_NS
        p.next_trial = now + FIRST_GAP_NS
        return
    p.epochs += 1
    if p.trying:
        if p.epochs > 1:            # the first epoch is the change itself
            p.trial_rate += rate // (TRIAL_EPOCHS - 1)
        if p.epochs == TRIAL_EPOCHS:
            end_trial(p, now)
        return
    p.rate = rate if p.rate == 0 else (3 * p.rate + rate) // 4
    if p.epochs >= 8:
        p.epochs = 8                # enough to compare with
        if now >= p.next_trial:
            start_trial(p)
