# One job of the load generator: a thread, its requests, and the queue that it submits to.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.bench.histogram cimport Latencies
from vringd.bench.random cimport Random, Zipf
from vringd.core.sys cimport pthread_mutex_t, pthread_t
from vringd.testing.driver cimport DqSegment, DriverRing


cdef enum:
    DIRECTIONS = 3
    MAX_SPLITS = 64


cdef enum:                      # directions
    READ
    WRITE
    TRIM


cdef enum:                      # failures
    FAILURE_NONE
    FAILURE_RING                # the device broke a rule of the ring: DriverRing.error
    FAILURE_STATUS              # value: the status byte
    FAILURE_MAGIC
    FAILURE_OFFSET
    FAILURE_CRC


cdef enum:                      # orders
    GO_ON
    DRAIN                       # issue no more, wait for what is in flight
    ABANDON                     # leave at once: the server does not answer


cdef struct Sizes:              # of the requests of one direction, bytes
    uint32_t count              # of the splits; 1: always least
    uint32_t least
    uint32_t most               # bsrange: multiples of least up to this
    uint32_t size[MAX_SPLITS]
    uint32_t upto[MAX_SPLITS]   # per cent, cumulated


cdef struct Plan:               # what a job has to do; offsets and sizes in bytes
    uint32_t depth
    uint32_t batch_submit
    uint32_t complete_min
    uint32_t complete_max
    uint8_t polling
    uint8_t random
    uint8_t map_blocks          # a pass visits each block once
    uint8_t reads, writes, trims
    uint8_t reduce_clock        # no latencies
    uint8_t indirect            # one ring entry for each request
    uint8_t verify
    uint8_t verify_reads        # check what is read
    uint8_t verify_after        # read back what was written
    uint32_t read_percent
    uint32_t run_length         # random: requests at consecutive offsets
    uint64_t skip               # sequential: bytes left out after each request
    Sizes sizes[DIRECTIONS]
    uint32_t unit               # verify: size of a block with a header of its own
    uint64_t start
    uint64_t length
    uint64_t limit              # bytes to transfer; 0: no limit
    uint64_t count_limit        # requests; 0: no limit
    uint64_t runtime_ns         # 0: no limit
    uint64_t ramp_ns
    uint64_t interval_ns        # rate_iops; 0: none
    uint64_t think_ns
    uint32_t think_blocks
    uint64_t seed
    double zipf_theta           # 0: uniform
    uint8_t scsi                # virtio-scsi, not virtio-blk
    uint8_t block_shift         # scsi: log2 of a logical block's size
    uint8_t lun[8]              # scsi: as in requests


cdef struct Slot:               # one request
    Job *job
    Slot *next
    uint8_t *header             # all but data; see requests.pxd
    uint8_t *data
    uint64_t data_addr          # guest address of data
    DqSegment segments[3]
    uint64_t offset
    uint64_t issued_ns
    uint32_t size
    uint8_t direction


cdef struct Tally:              # of one direction
    uint64_t ios
    uint64_t bytes
    Latencies submission        # from the start of its batch to the end of the batch's submission
    Latencies completion        # from there until it was taken back


cdef struct Queue:              # what jobs share, and sharing.pxd is about
    DriverRing *ring
    uint32_t sharers            # jobs that use it
    pthread_mutex_t lock        # taken only if there are several
    Job *jobs                   # by next_sharer; does not change while jobs run
    Job *listener               # the job that sleeps on the device's signals
    Job *starving               # jobs that wait for room in the ring, by next_starving
    uint32_t granting           # one of them has been given room and has not used it yet


cdef struct Job:
    Plan plan
    Queue *queue
    Slot *slots
    Slot *free
    # ---- under the queue's lock
    Slot *inbox                 # taken back by a job that shares the queue
    uint32_t inbox_count
    uint32_t asleep             # wants a signal when its inbox has so many; 0: does not sleep
    Job *next_sharer
    Job *next_starving
    uint32_t is_starving
    uint32_t granted            # may add requests though others wait; written under the lock
    # ----
    int wake_fd
    Slot **batch                # prepared and not submitted
    uint32_t queued
    Slot *pending               # decided on, but the ring was full
    uint32_t in_flight
    Random random
    Zipf zipf
    uint64_t position[DIRECTIONS]
    uint64_t block              # random: of the present run
    uint32_t run_left
    uint64_t pass_index         # map_blocks: how far in this pass
    uint64_t pass_seed
    uint8_t *written            # verify: 1: written, 2: being written; for each unit
    uint64_t generation
    uint64_t cursor             # of the verification
    uint8_t verifying
    # ---- progress: written by the job, read by anyone
    uint64_t submitted
    uint64_t completed
    uint64_t issued_bytes
    uint64_t begin_ns           # of the measurement: after the ramp
    uint64_t end_ns
    uint64_t cpu_user_us
    uint64_t cpu_system_us
    uint64_t switches
    uint32_t ramping
    uint32_t done
    # ---- orders and failures
    uint32_t stop               # GO_ON, DRAIN or ABANDON
    uint32_t failure            # FAILURE_…
    uint64_t failure_offset
    uint64_t failure_value
    uint64_t failure_found
    Tally tally[DIRECTIONS]
    pthread_t thread
    uint64_t cpu_mask[16]       # CPUs 0-1023; all zero: as inherited


cdef void run_job(Job *job) noexcept nogil
