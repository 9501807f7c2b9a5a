"""Drives the SCSI target with bytes, without a transport.

An `Initiator` is one thread's lane of one nexus: any number of them share a unit, and each may be
used by one thread at a time. Buffers have exactly the sizes asked for and are followed by guards,
so that a byte too many is noticed.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from vringd.block.ops cimport (
    FLAG_FUA, FLAG_HOLE, FLAG_UNMAP, OP_EXTENT, OP_READ, OP_WRITE, OP_WRITE_ZEROES)
from vringd.core.channel cimport finish
from vringd.core.sys cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EIO, alloc_lines, close, eventfd, read, vr_exchange_ptr,
    vr_fetch_add_u64, vr_load_relaxed_u32, vr_load_relaxed_u64, vr_now_ns, vr_relax,
    vr_store_relaxed_u32, vr_store_relaxed_u64, vr_store_relaxed_u8)
from vringd.scsi.bytes cimport get32, get64, put16, put32, put64
from vringd.scsi.device_server cimport abort_task, execute_task, operation_done
from vringd.scsi.state cimport STATUS_CHECK_CONDITION, STATUS_GOOD

import struct
from typing import NamedTuple

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    UNIT = 512
    GUARD = 64
    GUARD_BYTE = 0xd7


# ---- a disk in memory ---------------------------------------------------------------------------

cdef class MemoryDisk:
    """size bytes, a multiple of 512. Operations complete from within submit, but for those that
    `hold` names, which wait until `Initiator.release`."""

    def __cinit__(self, uint64_t size):
        if size % UNIT:
            raise ValueError(f"size {size} is not a multiple of {UNIT}")
        self.state = <MemoryState *> calloc(1, sizeof(MemoryState))
        if self.state == NULL:
            raise MemoryError
        self.state.size = size
        self.state.data = <uint8_t *> calloc(1, size if size else 1)
        self.state.stored = <uint8_t *> calloc(1, size // UNIT + 1)
        if self.state.data == NULL or self.state.stored == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.state != NULL:
            free(self.state.data)
            free(self.state.stored)
            free(self.state)

    @property
    def data(self):
        """All bytes."""
        return (<char *> self.state.data)[:self.state.size]

    def write(self, uint64_t offset, bytes data not None):
        """Put data on the disk, behind the target's back."""
        if offset + len(data) > self.state.size:
            raise ValueError("beyond the end")
        memcpy(self.state.data + offset, <char *> data, len(data))
        for at in range(offset // UNIT, (offset + len(data) + UNIT - 1) // UNIT):
            self.state.stored[at] = 1

    def open_channel(self):
        """A `MemoryChannel` for one thread."""
        return MemoryChannel(self)

    def fail(self, int op, uint32_t error):
        """From now on, operations of kind op (block.ops.Op) end with this errno; 0: no more."""
        vr_store_relaxed_u32(&self.state.errors[op % OPS], error)

    def hold(self, int op):
        """From now on, operations of kind op wait; a negative op: none does."""
        vr_store_relaxed_u32(&self.state.holds, 0 if op < 0 else <uint32_t> 1 << op)

    def pause(self, uint64_t ns):
        """From now on, every operation takes about that long before it begins: what must not
        come between two of them has time to try."""
        vr_store_relaxed_u64(&self.state.pause_ns, ns)

    @property
    def violations(self):
        """Requests that were not within the disk, or whose buffers did not fit."""
        return vr_load_relaxed_u64(&self.state.violations)

    @property
    def operations(self):
        """How many of each kind (block.ops.Op) there were."""
        return [vr_load_relaxed_u64(&self.state.counts[i]) for i in range(OPS)]

    @property
    def durable_writes(self):
        """How many writes had to be durable before they completed."""
        return vr_load_relaxed_u64(&self.state.durable)


cdef void copy_words(uint8_t *target, const uint8_t *source, uint64_t size) noexcept nogil:
    """Copy whole words atomically: threads may read what others write, as with a real disk."""
    cdef uint64_t i
    if (size | <uint64_t> target | <uint64_t> source) & 7:
        memcpy(target, source, size)
        return
    for i in range(0, size, 8):
        vr_store_relaxed_u64(target + i, vr_load_relaxed_u64(source + i))


cdef class MemoryChannel(Channel):
    """One thread's way to a `MemoryDisk`."""

    def __init__(self, MemoryDisk disk not None):
        self.disk = disk
        self.state = disk.state
        self.needs_turns = False

    cdef int32_t perform(self, Request *req) noexcept nogil:
        cdef MemoryState *disk = self.state
        cdef uint64_t at = req.offset, total = 0, i, first
        cdef uint32_t error = vr_load_relaxed_u32(&disk.errors[req.op % OPS])
        cdef uint64_t pause = vr_load_relaxed_u64(&disk.pause_ns)
        cdef uint64_t until
        if pause:               # not always the same, lest threads fall into step
            until = vr_now_ns()
            until += pause * (until >> 3 & 7) // 4
            while vr_now_ns() < until:
                vr_relax()
        vr_fetch_add_u64(&disk.counts[req.op % OPS], 1)
        if error:
            return -<int32_t> error
        if req.op == OP_READ or req.op == OP_WRITE:
            for i in range(req.niov):
                total += req.iov[i].iov_len
        elif req.op == OP_WRITE_ZEROES or req.op == OP_EXTENT:
            total = req.length
        else:
            return 0
        if (req.offset > disk.size or req.length > disk.size - req.offset
                or total != req.length or total == 0):
            vr_fetch_add_u64(&disk.violations, 1)
            return -EIO
        if req.op == OP_EXTENT:
            first = at // UNIT
            i = first
            while i * UNIT < at + req.length and disk.stored[i] == disk.stored[first]:
                i += 1
            req.length = min(req.length, i * UNIT - at)
            if not disk.stored[first]:
                req.flags |= FLAG_HOLE
            return 0
        if req.op == OP_WRITE_ZEROES:
            memset(disk.data + at, 0, total)
        else:
            for i in range(req.niov):
                if req.op == OP_READ:
                    copy_words(<uint8_t *> req.iov[i].iov_base, disk.data + at,
                               req.iov[i].iov_len)
                else:
                    copy_words(disk.data + at, <uint8_t *> req.iov[i].iov_base,
                               req.iov[i].iov_len)
                at += req.iov[i].iov_len
        if req.op != OP_READ:
            if req.flags & FLAG_FUA:
                vr_fetch_add_u64(&disk.durable, 1)
            for i in range(req.offset // UNIT, (req.offset + total) // UNIT):
                vr_store_relaxed_u8(&disk.stored[i], 0 if req.flags & FLAG_UNMAP else 1)
        return 0

    cdef void submit(self, Request *req) noexcept nogil:
        if vr_load_relaxed_u32(&self.state.holds) >> req.op & 1:
            req.next = self.held
            self.held = req
            self.held_count += 1
            return
        finish(req, self.perform(req))

    cdef void release(self) noexcept nogil:
        """Perform what waits, the newest first."""
        cdef Request *req = self.held
        cdef Request *following
        self.held = NULL
        self.held_count = 0
        while req != NULL:
            following = req.next
            finish(req, self.perform(req))
            req = following


# ---- outcomes -----------------------------------------------------------------------------------

class _Fields(NamedTuple):
    status: int
    sense: bytes
    data: bytes
    residual: int
    transferred: int
    overrun: bool
    aborted: bool
    guards_intact: bool


class Result(_Fields):
    """How a command ended. key, code: of the sense data; information: its INFORMATION field;
    field: what the sense-key specific data point at: ("cdb" or "list", byte, bit or None)."""

    __slots__ = ()

    @property
    def _descriptor(self):
        return bool(self.sense) and self.sense[0] & 0x7F == 0x72

    @property
    def key(self):
        if not self.sense:
            return 0
        return self.sense[1 if self._descriptor else 2] & 0x0F

    @property
    def code(self):
        if not self.sense:
            return 0
        return struct.unpack_from(">H", self.sense, 2 if self._descriptor else 12)[0]

    def _find(self, kind):
        at = 8
        while at + 2 <= len(self.sense):
            if self.sense[at] == kind:
                return self.sense[at:at + 2 + self.sense[at + 1]]
            at += 2 + self.sense[at + 1]
        return None

    @property
    def information(self):
        if not self.sense:
            return None
        if self._descriptor:
            found = self._find(0)
            return None if found is None else struct.unpack_from(">Q", found, 4)[0]
        if not self.sense[0] & 0x80:
            return None
        return struct.unpack_from(">I", self.sense, 3)[0]

    @property
    def field(self):
        if not self.sense:
            return None
        found = self._find(2) if self._descriptor else self.sense[11:18]
        if found is None or len(found) < 7 or not found[4] & 0x80:
            return None
        where = "cdb" if found[4] & 0x40 else "list"
        bit = found[4] & 7 if found[4] & 8 else None
        return (where, struct.unpack_from(">H", found, 5)[0], bit)


# ---- the initiator ------------------------------------------------------------------------------

cdef class Command:
    """A command that was started: whether it is done, and its `Result` then."""

    def __dealloc__(self):
        # One in flight is leaked rather than freed under the target.
        if self.flight != NULL and vr_load_relaxed_u32(&self.flight.done):
            free(self.flight)
            free(self.segments)
            free(self.buffers)

    @property
    def done(self):
        return vr_load_relaxed_u32(&self.flight.done) != 0

    cdef bint intact(self):
        cdef uint64_t i
        for i in range(<uint64_t> GUARD):
            if (self.buffers[self.out_size + i] != GUARD_BYTE
                    or self.buffers[self.out_size + GUARD + self.in_size + i] != GUARD_BYTE):
                return False
        return True

    @property
    def result(self):
        cdef ScsiTask *task = &self.flight.task
        cdef char *data = <char *> self.buffers + self.out_size + GUARD
        if not self.done:
            raise RuntimeError("the command is not done")
        return Result(
            task.status, (<char *> task.sense)[:task.sense_length],
            data[:task.given], task.residual, task.transferred,
            task.overrun != 0, task.aborted != 0, self.intact())


cdef class Completions(QueueHandler):
    cdef void complete(self, Request *req) noexcept nogil:
        operation_done(<ScsiTask *> req.device_data)


cdef class Initiator(TaskOwner):
    """An initiator of unit through channel, which becomes this object's.

    nexus: use this one, through another lane of it, instead of opening one. target: what REPORT
    LUNS and execute_lun see.
    """

    def __cinit__(self, *args, **kwargs):
        self.thread = <ThreadState *> alloc_lines(sizeof(ThreadState))
        self.queue = <Vring *> alloc_lines(sizeof(Vring))
        if self.thread == NULL or self.queue == NULL:
            raise MemoryError
        self.thread.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        self.running = set()

    def __init__(self, unit, Channel channel not None, name="initiator", *, port=1,
                 ScsiTarget target=None, ScsiNexus nexus=None, lane=0):
        self.nexus = unit.open_nexus(name, port=port) if nexus is None else nexus
        self.target = target
        self.channel = channel
        self.lane = lane
        self.completions = Completions()
        self.queue.handler = <void *> self.completions
        self.queue.channel = <void *> channel
        self.queue.clock = &self.thread.now
        channel.thread = self.thread
        if channel.start() != 0:
            raise RuntimeError("the channel does not start")
        self.nexus.open_lane(lane, channel)

    def __dealloc__(self):
        if self.thread != NULL:
            close(self.thread.wake_fd)
        free(self.thread)
        free(self.queue)

    def close(self):
        """Close the lane, and the nexus if nothing else uses it. Raises RuntimeError if a command
        is in flight."""
        if self.channel is None:
            return
        self.nexus.close_lane(self.lane)
        self.channel.stop()
        self.channel = None

    # ---- completions --------------------------------------------------------------------------

    cdef void complete(self, ScsiTask *task) noexcept nogil:
        vr_store_relaxed_u32(<uint32_t *> task.tag, 1)

    cdef void take_remote(self) noexcept nogil:
        """What an IOThread does with its list of remote completions."""
        cdef Request *req = <Request *> vr_exchange_ptr(&self.thread.remote, NULL)
        cdef Request *ordered = NULL
        cdef Request *following
        cdef uint64_t count
        if req != NULL:
            read(self.thread.wake_fd, &count, 8)
        while req != NULL:
            following = req.next
            req.next = ordered
            ordered = req
            req = following
        while ordered != NULL:
            following = ordered.next
            operation_done(<ScsiTask *> ordered.device_data)
            ordered = following

    cdef bint wait_for(self, Flight *flight, uint64_t timeout_ns) noexcept nogil:
        cdef uint64_t end
        if flight.done:
            return True
        end = vr_now_ns() + timeout_ns
        while not flight.done:
            self.take_remote()
            if not flight.done:
                sched_yield()       # who is waited for may need this CPU
                if vr_now_ns() > end:
                    return False
        return True

    # ---- commands -----------------------------------------------------------------------------

    cdef void prepare(self, Flight *flight) noexcept nogil:
        flight.done = 0
        flight.task.owner = <void *> self
        flight.task.tag = <uint64_t> &flight.done
        flight.task.req = &flight.req
        flight.req.device_data = &flight.task
        flight.req.queue = self.queue
        flight.task.nexus = self.nexus.state
        flight.task.unit = self.nexus.state.unit
        flight.task.lane = self.nexus.state.lanes[self.lane]
        flight.task.target = <void *> self.target if self.target is not None else NULL

    cdef Command make(self, bytes cdb, bytes data_out, uint64_t data_in, object split):
        """A `Command` with its buffers; split: lengths of the segments of either buffer, the rest
        is in the last one."""
        cdef Command command = Command.__new__(Command)
        cdef Flight *flight = <Flight *> calloc(1, sizeof(Flight))
        cdef uint64_t at, here, size
        cdef uint32_t count = 0
        cdef int half
        if flight == NULL:
            raise MemoryError
        flight.done = 1
        command.flight = flight
        command.out_size, command.in_size = len(data_out), data_in
        command.buffers = <uint8_t *> malloc(len(data_out) + data_in + 2 * GUARD)
        command.segments = <iovec *> calloc(2 * (len(split) + 1), sizeof(iovec))
        if command.buffers == NULL or command.segments == NULL:
            raise MemoryError
        memset(command.buffers, GUARD_BYTE, len(data_out) + data_in + 2 * GUARD)
        memcpy(command.buffers, <char *> data_out, len(data_out))
        self.prepare(flight)
        flight.task.cdb_length = len(cdb)
        memcpy(flight.task.cdb, <char *> cdb, min(len(cdb), 32))
        flight.task.out_length, flight.task.in_length = command.out_size, data_in
        for half in range(2):
            size = data_in if half else command.out_size
            at = 0
            if half:
                flight.task.in_iov = command.segments + count
            else:
                flight.task.out_iov = command.segments
            for length in list(split) + [size]:
                here = min(<uint64_t> length, size - at)
                if here:
                    command.segments[count].iov_base = (
                        command.buffers + (command.out_size + GUARD if half else 0) + at)
                    command.segments[count].iov_len = here
                    at += here
                    count += 1
            if half:
                flight.task.in_niov = count - flight.task.out_niov
            else:
                flight.task.out_niov = count
        return command

    def start(self, bytes cdb not None, bytes data_out=b"", uint64_t data_in=0, *, split=()):
        """Begin a command; `poll` lets it go on."""
        cdef Command command = self.make(cdb, data_out, data_in, split)
        with nogil:
            execute_task(&command.flight.task)
        return command

    def execute(self, bytes cdb not None, bytes data_out=b"", uint64_t data_in=0, *, split=(),
                double timeout=10.0):
        """Execute a command. Raises TimeoutError."""
        cdef Command command = self.start(cdb, data_out, data_in, split=split)
        cdef bint done
        with nogil:
            done = self.wait_for(command.flight, <uint64_t> (timeout * 1e9))
        if not done:
            raise TimeoutError("the command is not done")
        return command.result

    def execute_lun(self, uint32_t lun, bytes cdb not None, uint64_t data_in=0):
        """Execute a command for a LUN of the target."""
        cdef Command command = self.make(cdb, b"", data_in, ())
        cdef bint done
        with nogil:
            self.target.execute(&command.flight.task, lun, <uint32_t> self.lane)
            done = self.wait_for(command.flight, <uint64_t> 10000000000)
        if not done:
            raise TimeoutError("the command is not done")
        return command.result

    def abort(self, Command command not None):
        """ABORT TASK."""
        if not command.done:
            abort_task(&command.flight.task)

    def poll(self):
        """Go on with what other threads have finished."""
        with nogil:
            self.take_remote()

    def release(self):
        """Perform the operations that the disk holds, of a `MemoryChannel`."""
        cdef MemoryChannel channel = self.channel
        with nogil:
            channel.release()
            self.take_remote()

    # ---- loops without the GIL, for tests of atomicity and of speed --------------------------

    cdef int run(self, Flight *flight, uint8_t *block, uint64_t out_size,
                 uint64_t in_size) noexcept nogil:
        """Execute flight's CDB with block as its buffer; the status, or -1 after 10 s."""
        cdef iovec iov
        iov.iov_base, iov.iov_len = block, out_size + in_size
        self.prepare(flight)
        flight.task.out_iov = flight.task.in_iov = &iov
        flight.task.out_niov, flight.task.in_niov = 1 if out_size else 0, 1 if in_size else 0
        flight.task.out_length, flight.task.in_length = out_size, in_size
        execute_task(&flight.task)
        if not self.wait_for(flight, <uint64_t> 10000000000):
            return -1
        return flight.task.status

    def increment(self, uint64_t lba, uint64_t times):
        """Add 1 to the first big-endian word of a block with READ and COMPARE AND WRITE, times
        times; how many COMPARE AND WRITE failed because somebody was faster, or -1 on any other
        error."""
        cdef Flight *flight = <Flight *> calloc(1, sizeof(Flight))
        cdef uint8_t buffer[1024]
        cdef uint64_t done = 0
        cdef long lost = 0
        cdef int status = 0
        with nogil:
            while done < times and lost >= 0:
                memset(flight.task.cdb, 0, 32)
                flight.task.cdb[0], flight.task.cdb[13] = 0x88, 1
                put64(flight.task.cdb + 2, lba)
                if self.run(flight, buffer, 0, 512) != STATUS_GOOD:
                    lost = -1
                    break
                memcpy(buffer + 512, buffer, 512)
                put64(buffer + 512, get64(buffer) + 1)
                flight.task.cdb[0] = 0x89
                status = self.run(flight, buffer, 1024, 0)
                if status == STATUS_GOOD:
                    done += 1
                elif status == STATUS_CHECK_CONDITION and flight.task.sense[2] == 0x0e:
                    lost += 1
                else:
                    lost = -1
        free(flight)
        return lost

    def overwrite(self, uint64_t lba, uint64_t times):
        """WRITE a block whose first word is a number that grows in the upper half, then READ it;
        how often the upper half was not what had just been written, or -1 on an error."""
        cdef Flight *flight = <Flight *> calloc(1, sizeof(Flight))
        cdef uint8_t buffer[512]
        cdef uint64_t i
        cdef long wrong = 0
        with nogil:
            for i in range(1, times + 1):
                memset(flight.task.cdb, 0, 32)
                flight.task.cdb[0], flight.task.cdb[13] = 0x8a, 1
                put64(flight.task.cdb + 2, lba)
                memset(buffer, 0, 512)
                put32(buffer, <uint32_t> i)
                if self.run(flight, buffer, 512, 0) != STATUS_GOOD:
                    wrong = -1
                    break
                flight.task.cdb[0] = 0x88
                if self.run(flight, buffer, 0, 512) != STATUS_GOOD:
                    wrong = -1
                    break
                if get32(buffer) != <uint32_t> i:
                    wrong += 1
        free(flight)
        return wrong

    def set_bits(self, uint64_t lba, uint64_t times, uint8_t bits):
        """ORWRITE one byte pattern times times at bytes of its own; 0, or -1 on an error."""
        cdef Flight *flight = <Flight *> calloc(1, sizeof(Flight))
        cdef uint8_t buffer[512]
        cdef uint64_t i
        cdef int failed = 0
        with nogil:
            for i in range(times):
                memset(flight.task.cdb, 0, 32)
                flight.task.cdb[0], flight.task.cdb[13] = 0x8b, 1
                put64(flight.task.cdb + 2, lba)
                memset(buffer, 0, 512)
                buffer[i % 512] = bits
                if self.run(flight, buffer, 512, 0) != STATUS_GOOD:
                    failed = -1
                    break
        free(flight)
        return failed

    def repeat_reads(self, uint32_t blocks, uint64_t times):
        """READ (10) of that many blocks from the disk's start, times times: how long it took, in
        ns, or -1 on an error."""
        cdef Flight *flight = <Flight *> calloc(1, sizeof(Flight))
        cdef uint8_t *buffer = <uint8_t *> malloc(blocks * 512)
        cdef uint64_t _i, begun
        cdef long took = 0
        with nogil:
            begun = vr_now_ns()
            for _i in range(times):
                memset(flight.task.cdb, 0, 32)
                flight.task.cdb[0] = 0x28
                put16(flight.task.cdb + 7, blocks)
                if self.run(flight, buffer, 0, <uint64_t> blocks * 512) != STATUS_GOOD:
                    took = -1
                    break
            if took == 0:
                took = <long> (vr_now_ns() - begun)
        free(buffer)
        free(flight)
        return took
