"""Jobs of the load generator as the control side sees them: made, started, looked at, ended."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from vringd.bench.histogram cimport BUCKETS, LINEAR, Latencies
from vringd.bench.random cimport Random, Zipf, init_zipf, next_zipf, seed_random
from vringd.bench.requests cimport (
    BLK_HEADER_ROOM, BLK_STATUS_AT, SCSI_HEADER_ROOM, virtio_blk_outhdr, virtio_scsi_cmd_req)
from vringd.bench.verify cimport vr_crc32c, vr_crc32c_portable, vr_crc32c_prepare
from vringd.bench.worker cimport (
    ABANDON, DRAIN, FAILURE_CRC, FAILURE_MAGIC, FAILURE_NONE, FAILURE_OFFSET,
    FAILURE_RING, FAILURE_STATUS, MAX_SPLITS, Job, Plan, Queue, Sizes, Slot, run_job)
from vringd.core.sys cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, PR_SET_NAME, alloc_lines, close, errno, eventfd, prctl,
    pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init, vr_load_relaxed_u32,
    vr_load_relaxed_u64, vr_store_relaxed_u32)
from vringd.testing.driver cimport DriverQueue, ram_pointer

import os

vr_crc32c_prepare()

FAILURES = {
    FAILURE_RING: "ring", FAILURE_STATUS: "status", FAILURE_MAGIC: "magic",
    FAILURE_OFFSET: "offset", FAILURE_CRC: "crc",
}


cdef void *thread_main(void *argument) noexcept nogil:
    prctl(PR_SET_NAME, <char *> b"vringd-bench")
    run_job(<Job *> argument)
    return NULL


cdef class BenchQueue:
    """A driver queue that `sharers` jobs submit to."""

    cdef Queue queue
    cdef readonly DriverQueue driver

    def __init__(self, DriverQueue driver not None, uint32_t sharers):
        self.driver = driver
        self.queue.ring = driver.dq
        self.queue.sharers = sharers
        pthread_mutex_init(&self.queue.lock, NULL)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.queue.lock)

    @property
    def error(self):
        """What the device did wrong on the ring: (DQ_ code, id, value), or None."""
        if not self.queue.ring.error:
            return None
        return self.queue.ring.error, self.queue.ring.error_id, self.queue.ring.error_value


cdef int set_sizes(Sizes *sizes, least, most, splits) except -1:
    cdef int i
    cdef uint32_t upto = 0
    if len(splits) > MAX_SPLITS:
        raise ValueError(f"more than {MAX_SPLITS} block sizes")
    sizes.least, sizes.most, sizes.count = least, most, max(1, len(splits))
    for i, (size, percent) in enumerate(splits):
        upto += percent
        sizes.size[i], sizes.upto[i] = size, upto
    return 0


cdef dict latencies(const Latencies *source):
    cdef int i
    return {
        "count": source.count, "least": source.least, "most": source.most,
        "total": source.total, "squares": source.squares,
        "buckets": {i: source.bucket[i] for i in range(BUCKETS) if source.bucket[i]},
    }


def bucket_bounds(int bucket):
    """The least latency of a bucket and the first one behind it, nanoseconds."""
    if bucket < LINEAR:
        return bucket, bucket + 1
    shift = bucket // 64 - 1
    return (bucket - shift * 64) << shift, (bucket - shift * 64 + 1) << shift


def zipf_ranks(uint64_t count, double theta, uint64_t seed, int samples):
    """A list of ranks in [0, count), as a job with random_distribution=zipf:theta draws them."""
    cdef Random random
    cdef Zipf zipf
    seed_random(&random, seed)
    init_zipf(&zipf, count, theta)
    return [next_zipf(&zipf, &random) for _ in range(samples)]


def crc32c(const uint8_t[::1] data, bint portable=False):
    """The checksum that verify=crc32c writes; portable: without the processor's instruction."""
    if portable:
        return vr_crc32c_portable(0xffffffff, &data[0], data.shape[0]) ^ 0xffffffff
    return vr_crc32c(&data[0], data.shape[0])


cdef class NativeJob:
    """One job on one queue. plan: the fields of worker.pxd's Plan, with sizes as three tuples
    (least, most, ((size, per cent), …)) for reads, writes and trims.

    Raises MemoryError when guest memory or ours is short, OSError.
    """

    cdef Job *job
    cdef BenchQueue queue
    cdef object ram
    cdef list pins, allocations
    cdef bint running

    def __cinit__(self):
        self.job = <Job *> alloc_lines(sizeof(Job))
        if self.job == NULL:
            raise MemoryError
        self.job.wake_fd = -1

    def __init__(self, BenchQueue queue not None, ram, dict plan, cpus=()):
        cdef Plan *target = &self.job.plan
        cdef uint32_t most = 0
        cdef int i
        self.queue, self.ram = queue, ram
        self.pins, self.allocations = [], []
        self.job.queue = &queue.queue
        self.job.next_sharer = queue.queue.jobs
        queue.queue.jobs = self.job
        for i, (least, largest, splits) in enumerate(plan["sizes"]):
            set_sizes(&target.sizes[i], least, largest, splits)
            most = max(most, largest)
        target.depth = plan["depth"]
        target.batch_submit = plan["batch_submit"]
        target.complete_min = plan["complete_min"]
        target.complete_max = plan["complete_max"]
        target.polling, target.random = plan["polling"], plan["random"]
        target.map_blocks = plan["map_blocks"]
        target.reads, target.writes, target.trims = plan["reads"], plan["writes"], plan["trims"]
        target.reduce_clock, target.indirect = plan["reduce_clock"], plan["indirect"]
        target.verify, target.unit = plan["verify"], plan["unit"]
        target.verify_reads, target.verify_after = plan["verify_reads"], plan["verify_after"]
        target.read_percent, target.run_length = plan["read_percent"], plan["run_length"]
        target.skip, target.start, target.length = plan["skip"], plan["start"], plan["length"]
        target.limit, target.count_limit = plan["limit"], plan["count_limit"]
        target.runtime_ns, target.ramp_ns = plan["runtime_ns"], plan["ramp_ns"]
        target.interval_ns, target.think_ns = plan["interval_ns"], plan["think_ns"]
        target.think_blocks, target.seed = plan["think_blocks"], plan["seed"]
        target.zipf_theta = plan["zipf_theta"]
        target.scsi, target.block_shift = plan["lun"] is not None, plan["block_shift"]
        if target.scsi:
            memcpy(target.lun, <const char *> <bytes> plan["lun"], 8)
        for cpu in cpus:
            self.job.cpu_mask[cpu // 64] |= <uint64_t> 1 << (cpu % 64)
        self.job.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.job.wake_fd < 0:
            raise OSError(errno, os.strerror(errno))
        if target.verify:
            self.job.written = <uint8_t *> calloc(target.length // target.unit, 1)
            if self.job.written == NULL:
                raise MemoryError
        self.make_slots(most)

    cdef int make_slots(self, uint32_t most) except -1:
        cdef uint32_t depth = self.job.plan.depth
        cdef uint32_t i
        cdef uint64_t stride = (most + 4095) // 4096 * 4096
        cdef uint64_t room = SCSI_HEADER_ROOM if self.job.plan.scsi else BLK_HEADER_ROOM
        cdef uint64_t headers = self.allocate(depth * room, 128)
        cdef uint64_t data = self.allocate(depth * stride, 4096)
        cdef uint8_t *headers_at = <uint8_t *> ram_pointer(
            self.ram, headers, depth * room, self.pins)
        cdef uint8_t *data_at = <uint8_t *> ram_pointer(
            self.ram, data, depth * stride, self.pins)
        cdef Slot *slot
        memset(headers_at, 0, depth * room)
        self.job.slots = <Slot *> calloc(depth, sizeof(Slot))
        self.job.batch = <Slot **> calloc(depth, sizeof(Slot *))
        if self.job.slots == NULL or self.job.batch == NULL:
            raise MemoryError
        for i in range(depth):
            slot = &self.job.slots[i]
            slot.job = self.job
            slot.header, slot.data = headers_at + i * room, data_at + i * stride
            slot.data_addr = data + i * stride
            slot.segments[0].addr = headers + i * room
            slot.segments[0].length = sizeof(virtio_blk_outhdr)
            if self.job.plan.scsi:
                slot.segments[0].length = sizeof(virtio_scsi_cmd_req)
            slot.segments[2].addr = headers + i * room + <uint64_t> BLK_STATUS_AT
            slot.segments[2].length = 1
            slot.next = self.job.free
            self.job.free = slot
        return 0

    cdef uint64_t allocate(self, uint64_t size, uint64_t align) except? 0:
        address = self.ram.alloc(size, align)
        self.allocations.append(address)
        return address

    def __dealloc__(self):
        if self.job == NULL or self.running:    # a thread that was never joined still uses it
            return
        if self.job.wake_fd >= 0:
            close(self.job.wake_fd)
        free(self.job.written)
        free(self.job.slots)
        free(self.job.batch)
        free(self.job)

    def start(self):
        """Start the thread. Raises OSError."""
        cdef int rc = pthread_create(&self.job.thread, NULL, thread_main, self.job)
        if rc != 0:
            raise OSError(rc, f"cannot start a thread: {os.strerror(rc)}")
        self.running = True

    def drain(self):
        """Have the job issue no more requests."""
        if not vr_load_relaxed_u32(&self.job.stop):
            vr_store_relaxed_u32(&self.job.stop, DRAIN)

    def abandon(self):
        """Have the thread end at once: the server will not answer."""
        vr_store_relaxed_u32(&self.job.stop, ABANDON)

    def join(self):
        """Wait for the thread's end and give the guest memory back."""
        if self.running:
            with nogil:
                pthread_join(self.job.thread, NULL)
            self.running = False
        self.pins.clear()
        for address in self.allocations:
            self.ram.free(address)
        self.allocations.clear()

    @property
    def done(self):
        """Whether the thread has come to its end."""
        return vr_load_relaxed_u32(&self.job.done) != 0

    def progress(self):
        """(requests submitted, requests completed, still in the ramp): as of now."""
        return (vr_load_relaxed_u64(&self.job.submitted), vr_load_relaxed_u64(&self.job.completed),
                vr_load_relaxed_u32(&self.job.ramping) != 0)

    @property
    def failure(self):
        """None, or (kind, offset in bytes, expected, found): see FAILURES."""
        if vr_load_relaxed_u32(&self.job.failure) == FAILURE_NONE:
            return None
        return (FAILURES[self.job.failure], self.job.failure_offset, self.job.failure_value,
                self.job.failure_found)

    def results(self):
        """A dict, once the thread has ended: begin_ns, end_ns, user_us, system_us, switches, and
        for each direction a dict of ios, bytes and two histograms."""
        cdef int i
        result = {
            "begin_ns": self.job.begin_ns, "end_ns": self.job.end_ns,
            "user_us": self.job.cpu_user_us, "system_us": self.job.cpu_system_us,
            "switches": self.job.switches, "ramping": self.job.ramping != 0,
        }
        for i, name in enumerate(("read", "write", "trim")):
            result[name] = {
                "ios": self.job.tally[i].ios, "bytes": self.job.tally[i].bytes,
                "submission": latencies(&self.job.tally[i].submission),
                "completion": latencies(&self.job.tally[i].completion),
            }
        return result
