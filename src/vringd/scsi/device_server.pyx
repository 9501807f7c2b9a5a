"""The device server: takes a command, decides whether it may be run, and runs it.

Order of the checks as in SAM-6 5.3.3 (precedence of statuses): unit attentions that tell of a
reset, reservation conflicts, other unit attentions, then whatever is wrong with the CDB.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from vringd.core.stats cimport KIND_OTHER
from vringd.core.sys cimport (
    vr_likely, vr_load_acquire_u32, vr_load_relaxed_u32, vr_store_relaxed_u32, vr_unlikely)
from vringd.scsi.attention cimport (
    ATTENTION_NEXUS_LOSS, ATTENTION_POWER_ON, ATTENTION_RESET, attention_code, take_attention)
from vringd.scsi.locks cimport COUNTED_NOT, fence_of_runner, stop_waiting
from vringd.scsi.opcodes cimport (
    OP_ALWAYS, OP_IGNORES_RESERVE, OP_NEEDS_MEDIUM, OP_NO_ATTENTION, OP_WRITES)
from vringd.scsi.sense cimport (
    CODE_INVALID_OPCODE, CODE_NO_MEDIUM, CODE_NO_MEDIUM_OPEN, KEY_ILLEGAL_REQUEST, KEY_NOT_READY,
    KEY_UNIT_ATTENTION)
from vringd.scsi.state cimport (
    GATE_ATTENTIONS, GATE_NO_ACCESS, GATE_NO_WRITES, GATE_RESERVED, MEDIUM_ABSENT, STATUS_GOOD,
    STATUS_RESERVATION_CONFLICT, Lane, OpEntry, ScsiTask)
from vringd.scsi.task cimport end_aborted, fail, fail_field, finish_task, is_aborted


cdef void begin_task(ScsiTask *task) noexcept nogil:
    """Put the task into its lane."""
    cdef Lane *lane = task.lane
    task.status = STATUS_GOOD
    task.sense_length = task.overrun = task.aborted = 0
    task.transferred = task.given = 0
    task.counted = COUNTED_NOT
    task.waits = task.phase = task.looping = 0
    task.blocks = 0
    task.work = NULL
    task.req.kind = KIND_OTHER
    task.generation = vr_load_acquire_u32(&task.nexus.generation)
    while True:
        task.parity = <uint8_t> (task.generation & 1)
        vr_store_relaxed_u32(&lane.running[task.parity], lane.running[task.parity] + 1)
        fence_of_runner(task.unit)
        # An abort that did not see the counter up has raised the generation before this load.
        if vr_likely(task.generation == vr_load_acquire_u32(&task.nexus.generation)):
            break
        vr_store_relaxed_u32(&lane.running[task.parity], lane.running[task.parity] - 1)
        task.generation = vr_load_acquire_u32(&task.nexus.generation)
    task.previous = NULL
    task.next = lane.first
    if task.next != NULL:
        task.next.previous = task
    lane.first = task


cdef OpEntry *find_action(ScsiTask *task) noexcept nogil:
    """The entry for the CDB's service action, or NULL."""
    cdef OpEntry *entry = task.unit.operations[task.cdb[0]]
    while entry != NULL and entry.action != (task.cdb[1] & 0x1f):
        entry = entry.next
    return entry


cdef bint conflicts(ScsiTask *task, uint32_t gate, OpEntry *entry) noexcept nogil:
    """Whether reservations stand in the way (SPC-5 5.14.1; SPC-2 for RESERVE)."""
    cdef uint8_t *cdb = task.cdb
    cdef int flags = entry.flags
    if cdb[0] == 0x1e and cdb[4] & 3 == 0:              # PREVENT ALLOW MEDIUM REMOVAL: allow
        flags = OP_ALWAYS | OP_IGNORES_RESERVE
    elif cdb[0] == 0x1b and cdb[4] & 0xf1 == 1:         # START STOP UNIT: start, no power condition
        flags |= OP_ALWAYS
    if gate & <uint32_t> GATE_RESERVED and not flags & OP_IGNORES_RESERVE:
        return True
    if flags & OP_ALWAYS:
        return False
    if flags & OP_WRITES:
        return gate & <uint32_t> (GATE_NO_WRITES | GATE_NO_ACCESS) != 0
    return gate & <uint32_t> GATE_NO_ACCESS != 0


cdef bint tell_attention(ScsiTask *task) noexcept nogil:
    """End the task with a unit attention, if there is one still."""
    cdef uint32_t attention = take_attention(task.nexus)
    if attention == 0:
        return False
    fail(task, KEY_UNIT_ATTENTION, <int> attention_code(attention))
    return True


cdef bint gate_is_shut(ScsiTask *task, uint32_t gate, OpEntry *entry) noexcept nogil:
    """End the task if unit attentions or reservations keep it from being run."""
    cdef uint32_t resets = ATTENTION_POWER_ON | ATTENTION_RESET | ATTENTION_NEXUS_LOSS
    cdef bint tells = entry == NULL or not entry.flags & OP_NO_ATTENTION
    if tells and gate & resets and tell_attention(task):
        return True
    if entry != NULL and conflicts(task, gate, entry):
        task.status = STATUS_RESERVATION_CONFLICT
        finish_task(task)
        return True
    return tells and gate & <uint32_t> GATE_ATTENTIONS != 0 and tell_attention(task)


cdef void refuse_cdb(ScsiTask *task, OpEntry *entry) noexcept nogil:
    """Point at the first bit that must not be set."""
    cdef uint8_t *refused = <uint8_t *> entry.refused
    cdef uint8_t bits
    cdef uint32_t i
    cdef int bit = 7
    for i in range(16):
        bits = task.cdb[i] & refused[i]
        if bits:
            while not bits >> bit & 1:
                bit -= 1
            fail_field(task, i, bit)
            return


cdef void execute_task(ScsiTask *task) noexcept nogil:
    """Execute a command, whose inputs are set; it ends by TaskOwner.complete."""
    cdef OpEntry *entry
    cdef uint64_t cdb[2]
    cdef uint32_t gate, medium
    begin_task(task)
    entry = task.unit.operations[task.cdb[0]]
    if vr_unlikely(entry != NULL and entry.has_action):
        entry = find_action(task)
    task.command = entry
    gate = vr_load_relaxed_u32(&task.nexus.gate)
    if vr_unlikely(gate != 0) and gate_is_shut(task, gate, entry):
        return
    if vr_unlikely(entry == NULL):
        if task.unit.operations[task.cdb[0]] != NULL:
            fail_field(task, 1, 4)              # the service action
        else:
            fail(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_OPCODE)
        return
    memcpy(cdb, task.cdb, sizeof(cdb))
    if vr_unlikely((cdb[0] & entry.refused[0]) | (cdb[1] & entry.refused[1])):
        refuse_cdb(task, entry)
        return
    if entry.flags & OP_NEEDS_MEDIUM:
        medium = vr_load_relaxed_u32(&task.unit.medium)
        if vr_unlikely(medium != 0):
            fail(task, KEY_NOT_READY,
                 CODE_NO_MEDIUM if medium == MEDIUM_ABSENT else CODE_NO_MEDIUM_OPEN)
            return
    entry.run(task)


cdef void operation_done(ScsiTask *task) noexcept nogil:
    """The task's request has been completed: task.req.result says how."""
    if vr_unlikely(task.looping):
        task.looped = 1
    elif vr_unlikely(is_aborted(task)):
        end_aborted(task)
    else:
        task.step(task)


cdef void abort_task(ScsiTask *task) noexcept nogil:
    """End the task as soon as may be: what the channel is doing for it is waited for. The task
    must be one of the caller's lane that has not been completed."""
    task.aborted = 1
    stop_waiting(task)
