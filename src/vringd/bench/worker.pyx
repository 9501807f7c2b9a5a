"""What a job's thread does, without the GIL: make requests, submit, wait, take back, count."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memset

from vringd.bench.histogram cimport note
from vringd.bench.random cimport (
    below, init_zipf, mix, next_random, next_zipf, seed_random)
from vringd.bench.requests cimport status_of, write_request
from vringd.bench.sharing cimport (
    give_room, give_way, hand_over, has_room, leave, lock, may_add, queue_up, shared, unlock)
from vringd.bench.verify cimport (
    BLOCK_CRC, BLOCK_GOOD, BLOCK_MAGIC, BlockHeader, block_crc, check_block, fill_block,
    vr_crc32c_prepare)
from vringd.core.sys cimport (
    POLLIN, poll, pollfd, pthread_mutex_lock, pthread_mutex_unlock, timespec, vr_fence_full,
    vr_load_acquire_u16, vr_load_relaxed_u32, vr_log2, vr_now_ns, vr_relax, vr_store_relaxed_u16,
    vr_store_relaxed_u32, vr_store_relaxed_u64, vr_unlikely)
from vringd.testing.driver cimport (
    DqUsed, DriverRing, dq_add, dq_add_indirect, dq_disable_callbacks, dq_enable_callbacks,
    dq_has_used, dq_kick_needed, dq_pop_used, dq_publish, dq_signal, dq_take_signals)

cdef extern from *:
    """
    #include <sched.h>
    #include <sys/resource.h>
    #include <time.h>
    static inline void vr_bench_usage(uint64_t *user, uint64_t *system, uint64_t *switches)
    {
        struct rusage usage;
        getrusage(RUSAGE_THREAD, &usage);
        *user = (uint64_t)usage.ru_utime.tv_sec * 1000000 + (uint64_t)usage.ru_utime.tv_usec;
        *system = (uint64_t)usage.ru_stime.tv_sec * 1000000 + (uint64_t)usage.ru_stime.tv_usec;
        *switches = (uint64_t)usage.ru_nvcsw + (uint64_t)usage.ru_nivcsw;
    }
    static inline int vr_bench_pin(const uint64_t *mask, size_t size)
    {
        return sched_setaffinity(0, size, (const cpu_set_t *)mask);
    }
    """
    void vr_bench_usage(uint64_t *user, uint64_t *system, uint64_t *switches) noexcept nogil
    int vr_bench_pin(const uint64_t *mask, size_t size) noexcept nogil

cdef extern from "<time.h>" nogil:
    int nanosleep(const timespec *request, timespec *left)

cdef enum:
    LONGEST_WAIT_MS = 100       # so that orders are seen
    SPINS = 64                  # looks at the ring between two looks at the clock
    SLEEP_FROM_NS = 100000      # shorter pauses are spun
    REPICKS = 32

vr_crc32c_prepare()


# ---- what to do next ----------------------------------------------------------------------------

cdef inline uint32_t pick_size(Job *job, uint32_t direction) noexcept nogil:
    cdef Sizes *sizes = &job.plan.sizes[direction]
    cdef uint32_t i, percent
    if sizes.count > 1:
        percent = <uint32_t> below(&job.random, 100)
        for i in range(sizes.count - 1):
            if percent < sizes.upto[i]:
                return sizes.size[i]
        return sizes.size[sizes.count - 1]
    if sizes.most > sizes.least:
        return sizes.least * <uint32_t> (1 + below(&job.random, sizes.most // sizes.least))
    return sizes.least


cdef inline uint32_t pick_direction(Job *job) noexcept nogil:
    if job.plan.reads and job.plan.writes:
        return READ if below(&job.random, 100) < job.plan.read_percent else WRITE
    if job.plan.reads:
        return READ
    return WRITE if job.plan.writes else TRIM


cdef uint64_t permuted(Job *job, uint64_t index, uint64_t count) noexcept nogil:
    """The index-th element of a random order of [0, count): four Feistel rounds over the next
    even power of two, repeated until the result is in range (at most four times on average)."""
    cdef uint32_t half = <uint32_t> (vr_log2(count) // 2 + 1)
    cdef uint64_t mask = (<uint64_t> 1 << half) - 1
    cdef uint64_t left, right, following
    cdef int i
    while True:
        left, right = index >> half, index & mask
        for i in range(4):
            following = left ^ (mix(right ^ job.pass_seed ^ (<uint64_t> i << 60)) & mask)
            left, right = right, following
        index = left << half | right
        if index < count:
            return index


cdef inline uint64_t pick_random_block(Job *job, uint64_t count) noexcept nogil:
    cdef uint64_t block
    if job.plan.zipf_theta > 0:
        # Popular ranks are spread over the disk, each to one place.
        return mix(next_zipf(&job.zipf, &job.random) + 1) % count
    if not job.plan.map_blocks:
        return below(&job.random, count)
    if job.pass_index == count:
        job.pass_index = 0
        job.pass_seed = next_random(&job.random)
    block = permuted(job, job.pass_index, count)
    job.pass_index += 1
    return block


cdef inline uint64_t pick_offset(Job *job, uint32_t direction, uint32_t size) noexcept nogil:
    """Relative to the job's start; size <= length, which the control side has checked."""
    cdef Plan *plan = &job.plan
    cdef uint32_t align = plan.sizes[direction].least
    cdef uint64_t offset
    if not plan.random:
        offset = job.position[direction]
        if offset + size > plan.length:
            offset = 0
        job.position[direction] = offset + size + plan.skip
        return offset
    if job.run_left == 0:
        job.run_left = plan.run_length
        job.block = pick_random_block(job, plan.length // align)
        job.position[direction] = job.block * align
    job.run_left -= 1
    offset = job.position[direction]
    if offset + size > plan.length:
        offset = plan.length - size
        offset -= offset % align
    job.position[direction] = offset + size
    return offset


cdef bint claim_units(Job *job, uint64_t offset, uint32_t size) noexcept nogil:
    """Verify: mark the units as being written; False if one of them already is."""
    cdef uint64_t first = offset // job.plan.unit
    cdef uint32_t count = size // job.plan.unit
    cdef uint32_t i
    for i in range(count):
        if job.written[first + i] & 2:
            return False
    for i in range(count):
        job.written[first + i] |= 2
    return True


cdef void release_units(Job *job, uint64_t offset, uint32_t size) noexcept nogil:
    memset(&job.written[offset // job.plan.unit], 1, size // job.plan.unit)


cdef bint next_request(Job *job, Slot *slot) noexcept nogil:
    """Decide on direction, size and place; False when none is possible at the moment."""
    cdef uint32_t direction = pick_direction(job)
    cdef uint32_t size = pick_size(job, direction)
    cdef uint64_t offset
    for _ in range(REPICKS):
        offset = pick_offset(job, direction, size)
        if not job.plan.verify or direction != WRITE or claim_units(job, offset, size):
            slot.direction, slot.size = direction, size
            slot.offset = job.plan.start + offset
            return True
    return False


cdef bint next_to_verify(Job *job, Slot *slot) noexcept nogil:
    """The next run of written units, up to a block; False at the end."""
    cdef uint64_t units = job.plan.length // job.plan.unit
    cdef uint64_t begin
    cdef uint32_t most = job.plan.sizes[WRITE].most // job.plan.unit
    while job.cursor < units and job.written[job.cursor] != 1:
        job.cursor += 1
    if job.cursor == units:
        return False
    begin = job.cursor
    while job.cursor < units and job.written[job.cursor] == 1 and job.cursor - begin < most:
        job.cursor += 1
    slot.direction = READ
    slot.offset = job.plan.start + begin * job.plan.unit
    slot.size = <uint32_t> (job.cursor - begin) * job.plan.unit
    return True


# ---- submitting ---------------------------------------------------------------------------------

cdef inline bint prepare(Job *job, Slot *slot) noexcept nogil:
    """Write the request and add it to the ring; False if the ring is full, or others are first."""
    cdef uint32_t n_out = write_request(job, slot)
    cdef uint32_t i
    cdef int id
    if slot.direction == WRITE and job.plan.verify:
        job.generation += 1
        for i in range(slot.size // job.plan.unit):
            fill_block(slot.data + i * job.plan.unit, job.plan.unit,
                       slot.offset + <uint64_t> i * job.plan.unit, job.generation)
    lock(job)
    if shared(job) and not may_add(job):
        id = -1
    elif job.plan.indirect:
        id = dq_add_indirect(job.queue.ring, slot.segments, n_out, 3 - n_out, <uint64_t> slot)
    else:
        id = dq_add(job.queue.ring, slot.segments, n_out, 3 - n_out, <uint64_t> slot)
    unlock(job)
    return id >= 0


cdef void submit(Job *job, uint64_t begin) noexcept nogil:
    """Show the device what is prepared since `begin`, and kick it if it asks for that."""
    cdef uint64_t now
    cdef uint32_t i
    cdef Slot *slot
    cdef bint kick
    lock(job)
    dq_publish(job.queue.ring)
    kick = dq_kick_needed(job.queue.ring)
    unlock(job)
    if kick:
        dq_signal(job.queue.ring.kick_fd)
    job.in_flight += job.queued
    if not job.plan.reduce_clock:
        now = vr_now_ns()
        for i in range(job.queued):
            slot = job.batch[i]
            slot.issued_ns = now
            if not job.verifying:
                note(&job.tally[slot.direction].submission, now - begin)
    vr_store_relaxed_u64(&job.submitted, job.submitted + job.queued)
    job.queued = 0


cdef bint exhausted(Job *job, uint64_t now) noexcept nogil:
    """Whether the job has issued all that it had to."""
    cdef Plan *plan = &job.plan
    return (vr_load_relaxed_u32(&job.stop) != GO_ON
            or (plan.limit and job.issued_bytes >= plan.limit)
            or (plan.count_limit and job.submitted + job.queued >= plan.count_limit)
            or (plan.runtime_ns and not job.ramping and now - job.begin_ns >= plan.runtime_ns))


cdef void fill(Job *job, uint64_t now, uint64_t *due) noexcept nogil:
    """Submit requests until the depth is reached or the next one is not due yet."""
    cdef Plan *plan = &job.plan
    cdef Slot *slot
    cdef uint64_t begin = now
    while job.in_flight + job.queued < plan.depth:
        if job.verifying:
            if vr_load_relaxed_u32(&job.stop) != GO_ON:
                break
        elif exhausted(job, now) or due[0] > now:
            break
        slot = job.pending
        job.pending = NULL
        if slot == NULL:
            slot = job.free
            if not (next_to_verify(job, slot) if job.verifying else next_request(job, slot)):
                break
            job.free = slot.next
        if not prepare(job, slot):
            job.pending = slot      # the ring is full of other jobs' requests
            break
        job.batch[job.queued] = slot
        job.queued += 1
        if not job.verifying:
            job.issued_bytes += slot.size
            if plan.interval_ns:
                due[0] += plan.interval_ns
            if plan.think_ns and (job.submitted + job.queued) % plan.think_blocks == 0:
                due[0] = now + plan.think_ns
        if job.queued >= plan.batch_submit:
            submit(job, begin)
            if not plan.reduce_clock:
                begin = vr_now_ns()
    if job.queued:
        submit(job, begin)


# ---- taking back --------------------------------------------------------------------------------

cdef void fail(Job *job, uint32_t failure, uint64_t offset, uint64_t value,
               uint64_t found) noexcept nogil:
    """The first failure ends the job."""
    if job.failure == FAILURE_NONE:
        job.failure_offset, job.failure_value, job.failure_found = offset, value, found
        vr_store_relaxed_u32(&job.failure, failure)


cdef void check_data(Job *job, Slot *slot) noexcept nogil:
    cdef uint32_t unit = job.plan.unit
    cdef uint32_t i
    cdef uint64_t offset
    cdef BlockHeader *header
    cdef int finding
    for i in range(slot.size // unit):
        offset = slot.offset + <uint64_t> i * unit
        header = <BlockHeader *> (slot.data + i * unit)
        finding = check_block(<uint8_t *> header, unit, offset)
        if finding == BLOCK_GOOD:
            continue
        if finding == BLOCK_MAGIC:
            fail(job, FAILURE_MAGIC, offset, 0, header.magic)
        elif finding == BLOCK_CRC:
            fail(job, FAILURE_CRC, offset, block_crc(<uint8_t *> header, unit), header.crc)
        else:
            fail(job, FAILURE_OFFSET, offset, offset, header.offset)
        return


cdef inline void finish(Job *job, Slot *slot, uint64_t now) noexcept nogil:
    cdef Tally *tally = &job.tally[slot.direction]
    cdef uint64_t status = status_of(job, slot)
    slot.next = job.free
    job.free = slot
    job.in_flight -= 1
    if vr_unlikely(status != 0):
        fail(job, FAILURE_STATUS, slot.offset, slot.direction, status)
        return
    if job.plan.verify:
        if slot.direction == WRITE:
            release_units(job, slot.offset - job.plan.start, slot.size)
        elif slot.direction == READ and (job.verifying or job.plan.verify_reads):
            check_data(job, slot)
    if job.verifying:
        return
    tally.ios += 1
    tally.bytes += slot.size
    if not job.plan.reduce_clock:
        note(&tally.completion, now - slot.issued_ns)


cdef uint32_t reap_shared(Job *job) noexcept nogil:
    """As `reap`, for a queue of several jobs: all that is done, and theirs to their inboxes."""
    cdef DqUsed used
    cdef Slot *slot
    cdef Slot *mine
    cdef uint64_t now = 0 if job.plan.reduce_clock else vr_now_ns()
    cdef uint32_t count = 0
    cdef int found
    pthread_mutex_lock(&job.queue.lock)
    mine = job.inbox
    job.inbox = NULL
    job.inbox_count = 0
    while True:
        found = dq_pop_used(job.queue.ring, &used)
        if found != 1:
            break
        slot = <Slot *> used.cookie
        if slot.job == job:
            slot.next = mine
            mine = slot
        else:
            hand_over(slot)
    give_room(job.queue)
    pthread_mutex_unlock(&job.queue.lock)
    while mine != NULL:
        slot = mine.next
        finish(job, mine, now)
        mine = slot
        count += 1
    if found < 0:
        fail(job, FAILURE_RING, 0, 0, 0)
    return count


cdef uint32_t reap(Job *job, uint32_t most) noexcept nogil:
    """Take back requests that are done, up to `most` of a queue of one's own; how many."""
    cdef DqUsed used
    cdef uint32_t count = 0
    cdef uint64_t now = 0
    cdef int found = 0
    if shared(job):
        return reap_shared(job)
    while count < most:
        found = dq_pop_used(job.queue.ring, &used)
        if found != 1:
            break
        if count == 0 and not job.plan.reduce_clock:
            now = vr_now_ns()
        finish(job, <Slot *> used.cookie, now)
        count += 1
    if found < 0:
        fail(job, FAILURE_RING, 0, 0, 0)
    return count


# ---- waiting ------------------------------------------------------------------------------------

cdef bint ask_for_signal(Job *job, uint32_t wanted) noexcept nogil:
    """Have the device signal when `wanted` more requests are done; True if something is already
    there. One more than asked for may be signalled, never one less."""
    cdef DriverRing *ring = job.queue.ring
    if wanted <= 1 or shared(job) or ring.packed or not ring.event_idx:
        return dq_enable_callbacks(ring)
    vr_store_relaxed_u16(ring.used_event, <uint16_t> (ring.popped + wanted - 1))
    # Full: as in dq_enable_callbacks.
    vr_fence_full()
    return <uint16_t> (vr_load_acquire_u16(&ring.used[1]) - <uint16_t> ring.popped) >= wanted


cdef void sleep_alone(Job *job, uint32_t wanted, int timeout_ms) noexcept nogil:
    cdef pollfd fd
    if ask_for_signal(job, wanted):
        return
    fd.fd, fd.events, fd.revents = job.queue.ring.call_fd, POLLIN, 0
    poll(&fd, 1, timeout_ms)
    if fd.revents:
        dq_take_signals(job.queue.ring.call_fd)


cdef void sleep_together(Job *job, uint32_t wanted, bint for_room, int timeout_ms) noexcept nogil:
    """Until the inbox has `wanted` requests; for_room: or there is room in the ring; or something
    is to be taken back from the ring and nobody else listens."""
    cdef Queue *queue = job.queue
    cdef pollfd fds[2]
    cdef bint listens, ready
    pthread_mutex_lock(&queue.lock)
    ready = job.inbox_count >= wanted or (for_room and has_room(job))
    if for_room and not ready:
        queue_up(job)
    listens = not ready and queue.listener == NULL
    if listens:
        ready = ask_for_signal(job, wanted)
    if ready:
        pthread_mutex_unlock(&queue.lock)
        return
    if listens:
        queue.listener = job
    job.asleep = wanted
    pthread_mutex_unlock(&queue.lock)
    fds[0].fd, fds[1].fd = job.wake_fd, queue.ring.call_fd
    fds[0].events = fds[1].events = POLLIN
    fds[0].revents = fds[1].revents = 0
    poll(fds, 2 if listens else 1, timeout_ms)
    if fds[0].revents:
        dq_take_signals(job.wake_fd)
    if fds[1].revents:
        dq_take_signals(queue.ring.call_fd)
    pthread_mutex_lock(&queue.lock)
    job.asleep = 0
    if listens:
        queue.listener = NULL
    pthread_mutex_unlock(&queue.lock)


cdef inline void sleep_until_signal(Job *job, uint32_t wanted, int timeout_ms) noexcept nogil:
    if shared(job):
        sleep_together(job, wanted, False, timeout_ms)
    else:
        sleep_alone(job, wanted, timeout_ms)


cdef inline bint has_something(Job *job) noexcept nogil:
    """Whether a request of this job, or of one that shares its queue, is done."""
    cdef bint found
    lock(job)
    found = dq_has_used(job.queue.ring) or job.inbox != NULL
    unlock(job)
    return found


cdef void wait_for_requests(Job *job, uint32_t wanted) noexcept nogil:
    """Until `wanted` requests are done, or it is time to look at the orders."""
    if not job.plan.polling:
        sleep_until_signal(job, wanted, LONGEST_WAIT_MS)
        return
    for _ in range(SPINS):
        if has_something(job):
            return
        vr_relax()


cdef void wait_for_room(Job *job) noexcept nogil:
    """Until the ring is not full of other jobs' requests any more; or not so long."""
    if not job.plan.polling:
        sleep_together(job, 1, True, LONGEST_WAIT_MS)
        return
    pthread_mutex_lock(&job.queue.lock)
    if not has_room(job):
        queue_up(job)
    pthread_mutex_unlock(&job.queue.lock)
    for _ in range(SPINS):
        if vr_load_relaxed_u32(&job.granted):
            return
        vr_relax()


cdef void pause_until(Job *job, uint64_t due, uint64_t now) noexcept nogil:
    """Nothing may be submitted before `due`: wait for that or for requests in flight."""
    cdef uint64_t left = due - now if due > now else 0
    cdef timespec ts
    if left < SLEEP_FROM_NS:
        vr_relax()
    elif job.in_flight and left >= 2000000 and not job.plan.polling:
        sleep_until_signal(job, 1, <int> min(left // 1000000, <uint64_t> LONGEST_WAIT_MS))
    elif not job.in_flight:
        left = min(left - SLEEP_FROM_NS // 2, <uint64_t> LONGEST_WAIT_MS * 1000000)
        leave(job)
        ts.tv_sec, ts.tv_nsec = 0, <int64_t> left
        nanosleep(&ts, NULL)
    else:
        vr_relax()


# ---- the thread ---------------------------------------------------------------------------------

cdef void begin_measuring(Job *job, uint64_t now) noexcept nogil:
    """The ramp is over: forget what was counted."""
    memset(job.tally, 0, sizeof(job.tally))
    job.begin_ns = now
    vr_bench_usage(&job.cpu_user_us, &job.cpu_system_us, &job.switches)
    vr_store_relaxed_u32(&job.ramping, 0)


cdef bint may_issue(Job *job, uint64_t now) noexcept nogil:
    if job.verifying:
        return (job.cursor < job.plan.length // job.plan.unit
                and vr_load_relaxed_u32(&job.stop) == GO_ON)
    return not exhausted(job, now)


cdef void serve_phase(Job *job) noexcept nogil:
    """Issue everything that this phase has, and take it all back."""
    cdef Plan *plan = &job.plan
    cdef uint64_t now = vr_now_ns()
    cdef uint64_t due = now
    cdef uint32_t got, wanted
    cdef bint issuing
    while job.failure == FAILURE_NONE and vr_load_relaxed_u32(&job.stop) != ABANDON:
        now = vr_now_ns()
        if job.ramping and now - job.begin_ns >= plan.ramp_ns:
            begin_measuring(job, now)
            due = now
        issuing = may_issue(job, now)
        if issuing:
            fill(job, now, &due)
        give_way(job)
        if job.in_flight == 0:
            if not issuing or not may_issue(job, now):
                return
            if job.pending != NULL and shared(job):
                reap_shared(job)
                wait_for_room(job)
            else:
                pause_until(job, due, now)
            continue
        got = reap(job, plan.complete_max)
        if got:
            vr_store_relaxed_u64(&job.completed, job.completed + got)
        if issuing and job.in_flight < plan.depth and due > now:
            if not got:
                pause_until(job, due, now)
            continue
        wanted = min(plan.complete_min, job.in_flight + got)
        if got < wanted:
            wait_for_requests(job, wanted - got)


cdef void run_job(Job *job) noexcept nogil:
    cdef uint64_t user = 0, system = 0, switches = 0
    cdef int i
    for i in range(16):
        if job.cpu_mask[i]:
            vr_bench_pin(job.cpu_mask, sizeof(job.cpu_mask))
            break
    seed_random(&job.random, job.plan.seed)
    job.pass_seed = next_random(&job.random)
    if job.plan.zipf_theta > 0:
        init_zipf(&job.zipf, job.plan.length // job.plan.sizes[pick_direction(job)].least,
                  job.plan.zipf_theta)
    if job.plan.polling:
        lock(job)
        dq_disable_callbacks(job.queue.ring)
        unlock(job)
    job.begin_ns = vr_now_ns()
    vr_store_relaxed_u32(&job.ramping, 1)
    if job.plan.ramp_ns == 0:
        begin_measuring(job, job.begin_ns)
    serve_phase(job)
    leave(job)
    job.end_ns = vr_now_ns()
    vr_bench_usage(&user, &system, &switches)
    job.cpu_user_us = user - job.cpu_user_us
    job.cpu_system_us = system - job.cpu_system_us
    job.switches = switches - job.switches
    if (job.plan.verify_after and job.failure == FAILURE_NONE
            and vr_load_relaxed_u32(&job.stop) == GO_ON):
        job.verifying = 1
        serve_phase(job)
        leave(job)
    vr_store_relaxed_u32(&job.done, 1)
