"""The medium: ready, ejected, kept from being ejected (SPC-5 6.15, SBC-4 5.15, 5.28)."""

from libc.stdint cimport uint32_t, uint8_t
from libc.string cimport memset

from vringd.block.ops cimport OP_FLUSH
from vringd.core.stats cimport KIND_FLUSH
from vringd.core.sys cimport (
    pthread_mutex_lock, pthread_mutex_unlock, vr_load_relaxed_u32, vr_store_relaxed_u32,
    vr_store_release_u32)
from vringd.scsi.attention cimport (
    ATTENTION_MEDIUM, attention_code, raise_attentions, take_attention)
from vringd.scsi.bytes cimport get16, get32
from vringd.scsi.sense cimport (
    CODE_NONE, CODE_NO_MEDIUM, CODE_NO_MEDIUM_OPEN, CODE_REMOVAL_PREVENTED, KEY_ILLEGAL_REQUEST,
    KEY_NOT_READY, KEY_NO_SENSE, KEY_UNIT_ATTENTION, write_sense)
from vringd.scsi.state cimport (
    MEDIUM_ABSENT, MEDIUM_EJECTED, MEDIUM_READY, SENSE_ROOM, NexusState, ScsiTask, UnitState)
from vringd.scsi.task cimport fail, fail_field, fail_result, reply, submit, succeed


cdef void test_unit_ready_command(ScsiTask *task) noexcept nogil:
    """TEST UNIT READY: it is, or this would not have been called."""
    succeed(task)


cdef void reply_sense(ScsiTask *task, int key, int code) noexcept nogil:
    """Sense data as Data-In, in the format that DESC asks for."""
    cdef uint8_t sense[SENSE_ROOM]
    cdef uint32_t size = write_sense(sense, task.cdb[1] & 0x01, key, code)
    reply(task, sense, size, task.cdb[4])


cdef void request_sense_command(ScsiTask *task) noexcept nogil:
    """REQUEST SENSE (SPC-5 6.39): a pending unit attention, or whether the unit is ready."""
    cdef uint32_t attention = take_attention(task.nexus)
    cdef uint32_t medium = vr_load_relaxed_u32(&task.unit.medium)
    if attention:
        reply_sense(task, KEY_UNIT_ATTENTION, <int> attention_code(attention))
    elif medium == MEDIUM_ABSENT:
        reply_sense(task, KEY_NOT_READY, CODE_NO_MEDIUM)
    elif medium == MEDIUM_EJECTED:
        reply_sense(task, KEY_NOT_READY, CODE_NO_MEDIUM_OPEN)
    else:
        reply_sense(task, KEY_NO_SENSE, CODE_NONE)


# ---- START STOP UNIT ----------------------------------------------------------------------------

cdef void move_medium(ScsiTask *task) noexcept nogil:
    """LOEJ: open or close the tray."""
    cdef UnitState *unit = task.unit
    cdef bint load = task.cdb[4] & 0x01
    cdef bint prevented, absent
    pthread_mutex_lock(&unit.lock)
    prevented = unit.prevents != 0
    absent = load and unit.medium == MEDIUM_ABSENT
    if not prevented and not absent:
        if load and unit.medium == MEDIUM_EJECTED:
            vr_store_release_u32(&unit.medium, MEDIUM_READY)
            unit.media_events |= MEDIA_NEW
            raise_attentions(unit, ATTENTION_MEDIUM, task.nexus)
        elif not load and unit.medium == MEDIUM_READY:
            vr_store_release_u32(&unit.medium, MEDIUM_EJECTED)
            unit.media_events |= MEDIA_REMOVED
    pthread_mutex_unlock(&unit.lock)
    if prevented:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_REMOVAL_PREVENTED)
    elif absent:
        fail(task, KEY_NOT_READY, CODE_NO_MEDIUM)
    else:
        succeed(task)


cdef void stopped(ScsiTask *task) noexcept nogil:
    if task.req.result != 0:
        fail_result(task)
    elif task.cdb[4] & 0x02 and task.unit.removable:
        move_medium(task)
    else:
        succeed(task)


cdef void start_stop_command(ScsiTask *task) noexcept nogil:
    """START STOP UNIT. Power conditions are accepted and have no effect; neither has stopping, but
    that the cache is flushed. LOEJ moves a removable medium."""
    cdef int action = task.cdb[4]
    if action >> 4:
        succeed(task)
        return
    task.req.result = 0
    if action & 0x05 or vr_load_relaxed_u32(&task.unit.medium) != MEDIUM_READY:
        stopped(task)                       # START, NO_FLUSH, or nothing to flush
        return
    task.req.kind = KIND_FLUSH
    submit(task, OP_FLUSH, 0, 0, 0, stopped)


cdef void allow_removal(NexusState *nexus) noexcept nogil:
    """The nexus prevents nothing any more. Under the lock."""
    if nexus.prevents:
        nexus.prevents = 0
        vr_store_relaxed_u32(&nexus.unit.prevents, nexus.unit.prevents - 1)


cdef void prevent_allow_command(ScsiTask *task) noexcept nogil:
    """PREVENT ALLOW MEDIUM REMOVAL."""
    cdef UnitState *unit = task.unit
    if task.cdb[4] & 0x02:                  # persistent prevent: of changers only
        fail_field(task, 4, 1)
        return
    pthread_mutex_lock(&unit.lock)
    if not task.cdb[4] & 0x01:
        allow_removal(task.nexus)
    elif not task.nexus.prevents:
        task.nexus.prevents = 1
        vr_store_relaxed_u32(&unit.prevents, unit.prevents + 1)
    pthread_mutex_unlock(&unit.lock)
    succeed(task)


# ---- self-test and defects ----------------------------------------------------------------------

cdef void send_diagnostic_command(ScsiTask *task) noexcept nogil:
    """SEND DIAGNOSTIC: the default self-test, which passes. There are no diagnostic pages, and the
    table of operations refuses any length of them."""
    succeed(task)


cdef void read_defect_data_command(ScsiTask *task) noexcept nogil:
    """READ DEFECT DATA (10) and (12): the lists that are asked for exist and are empty."""
    cdef uint8_t data[8]
    cdef bint ten = task.cdb[0] == 0x37
    memset(data, 0, 8)
    data[1] = (task.cdb[2] if ten else task.cdb[1]) & 0x1f
    reply(task, data, 4 if ten else 8, get16(task.cdb + 7) if ten else get32(task.cdb + 6))
