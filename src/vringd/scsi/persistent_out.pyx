"""PERSISTENT RESERVE OUT (SPC-5 6.17): each service action changes the state under the unit's lock
and says how it ended; what follows (aborted tasks, the file) is waited for afterwards."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc

from vringd.core.sys cimport pthread_mutex_lock, pthread_mutex_unlock
from vringd.scsi.attention cimport (
    ATTENTION_PREEMPTED, ATTENTION_REGISTRATION, ATTENTION_RELEASED, raise_attention)
from vringd.scsi.bytes cimport get16, get32, get64
from vringd.scsi.locks cimport await_aborted, begin_abort
from vringd.scsi.reservation_store cimport ReservationStore, store_reservations
from vringd.scsi.reservations cimport (
    EXCLUSIVE_ACCESS, EXCLUSIVE_ACCESS_ALL, EXCLUSIVE_ACCESS_REGISTRANTS, NOT_RESERVED,
    WRITE_EXCLUSIVE, WRITE_EXCLUSIVE_ALL, WRITE_EXCLUSIVE_REGISTRANTS, Registration, Reservations,
    add_registration, all_registrants, find_name, find_registration, holds, remove_registration,
    set_gates)
from vringd.scsi.sense cimport (
    CODE_INTERNAL_FAILURE, CODE_INVALID_RELEASE, CODE_LIST_LENGTH, CODE_NO_RESOURCES,
    CODE_OUT_OF_MEMORY, KEY_ABORTED_COMMAND, KEY_HARDWARE_ERROR, KEY_ILLEGAL_REQUEST)
from vringd.scsi.state cimport (
    NAME_ROOM, STATUS_BUSY, STATUS_RESERVATION_CONFLICT, NexusState, ScsiTask, UnitState)
from vringd.scsi.task cimport (
    fail, fail_field, fail_parameter, finish_task, is_aborted, succeed, take_parameters)

cdef enum Action:
    REGISTER = 0
    RESERVE = 1
    RELEASE = 2
    CLEAR = 3
    PREEMPT = 4
    PREEMPT_AND_ABORT = 5
    REGISTER_AND_IGNORE = 6
    REGISTER_AND_MOVE = 7

cdef enum:
    BASIC_LENGTH = 24
    MOST_PARAMETERS = BASIC_LENGTH + 4 + NAME_ROOM
    APTPL = 0x01
    UNREG = 0x02                # of REGISTER AND MOVE


cdef enum Outcome:              # of a service action
    DONE
    CONFLICT
    BUSY
    BAD_KEY                     # the service action reservation key makes no sense
    BAD_TYPE
    BAD_SCOPE
    BAD_TRANSPORT
    BAD_RELEASE
    BAD_PERSISTENCE
    NO_ROOM
    NO_MEMORY


cdef struct Order:              # what the initiator asks for
    int action
    int type
    int scope
    uint64_t key                # that it says it has
    uint64_t other              # service action reservation key
    bint persists
    bint unregister
    uint32_t port               # REGISTER AND MOVE
    char name[NAME_ROOM]


cdef bint known_type(int type) noexcept nogil:
    return type in (WRITE_EXCLUSIVE, EXCLUSIVE_ACCESS, WRITE_EXCLUSIVE_REGISTRANTS,
                    EXCLUSIVE_ACCESS_REGISTRANTS, WRITE_EXCLUSIVE_ALL, EXCLUSIVE_ACCESS_ALL)


# ---- attentions ---------------------------------------------------------------------------------

cdef void tell_registered(Reservations *state, uint32_t attention,
                          NexusState *except_for) noexcept nogil:
    cdef uint32_t i
    for i in range(state.count):
        if state.list[i].nexus != NULL and state.list[i].nexus != except_for:
            raise_attention(state.list[i].nexus, attention)


cdef void end_reservation(Reservations *state, NexusState *by) noexcept nogil:
    """Release the reservation; other registrants are told if they had rights by it."""
    cdef uint32_t i
    if state.type >= WRITE_EXCLUSIVE_REGISTRANTS:
        tell_registered(state, ATTENTION_RELEASED, by)
    state.type = NOT_RESERVED
    for i in range(state.count):
        state.list[i].holder = 0


# ---- service actions, under the lock ------------------------------------------------------------

cdef int do_register(ScsiTask *task, Reservations *state, Order *order) noexcept nogil:
    """REGISTER, and REGISTER AND IGNORE EXISTING KEY."""
    cdef Registration *mine = find_registration(state, task.nexus)
    if order.action == REGISTER and order.key != (mine.key if mine != NULL else 0):
        return CONFLICT
    if mine == NULL and order.other == 0:
        return DONE
    if mine == NULL:
        mine = add_registration(state, task.nexus.name, task.nexus.port, order.other)
        if mine == NULL:
            return NO_ROOM
        mine.nexus = task.nexus
    elif order.other:
        mine.key = order.other
    else:
        # The last holder's unregistering releases the reservation (SPC-5 5.14.11.2.2).
        if mine.holder or state.count == 1:
            end_reservation(state, task.nexus)
        remove_registration(state, mine)
    state.persists = order.persists
    state.generation += 1
    return DONE


cdef int do_reserve(Reservations *state, Order *order, Registration *mine) noexcept nogil:
    if order.scope:
        return BAD_SCOPE
    if not known_type(order.type):
        return BAD_TYPE
    if state.type != NOT_RESERVED:
        if not holds(state, mine) or state.type != order.type:
            return CONFLICT
        return DONE
    state.type = <uint8_t> order.type
    mine.holder = 0 if all_registrants(state) else 1
    return DONE


cdef int do_release(ScsiTask *task, Reservations *state, Order *order,
                    Registration *mine) noexcept nogil:
    if state.type == NOT_RESERVED or not holds(state, mine):
        return DONE
    if order.scope or order.type != state.type:
        return BAD_RELEASE
    end_reservation(state, task.nexus)
    return DONE


cdef int do_clear(ScsiTask *task, Reservations *state) noexcept nogil:
    tell_registered(state, ATTENTION_PREEMPTED, task.nexus)
    state.count = 0
    state.type = NOT_RESERVED
    state.generation += 1
    return DONE


cdef bint is_victim(Reservations *state, Order *order, uint32_t index,
                    NexusState *mine) noexcept nogil:
    """Whether PREEMPT removes this registration: never that of who sends it."""
    if state.list[index].nexus == mine:
        return False
    return state.list[index].key == order.other or order.other == 0


cdef void remove_victims(ScsiTask *task, Reservations *state, Order *order) noexcept nogil:
    cdef NexusState *victim
    cdef uint32_t i = 0
    while i < state.count:
        if not is_victim(state, order, i, task.nexus):
            i += 1
            continue
        victim = state.list[i].nexus
        if victim != NULL:
            raise_attention(victim, ATTENTION_REGISTRATION)
            if order.action == PREEMPT_AND_ABORT:
                victim.aborter, victim.awaited = task, victim.generation & 1
                begin_abort(victim)
        remove_registration(state, &state.list[i])


cdef int do_preempt(ScsiTask *task, Reservations *state, Order *order) noexcept nogil:
    """PREEMPT, and PREEMPT AND ABORT (SPC-5 5.14.11.4)."""
    cdef NexusState *victim
    cdef bint takes = False, matches = False
    cdef int before = state.type
    cdef uint32_t i
    for i in range(state.count):
        if state.list[i].key == order.other:
            matches = True
            if state.list[i].holder:
                takes = True
    if order.other == 0:
        if not all_registrants(state):
            return BAD_KEY
        takes = True
    elif not matches:
        return CONFLICT
    if takes and order.scope:
        return BAD_SCOPE
    if takes and not known_type(order.type):
        return BAD_TYPE
    for i in range(state.count):
        victim = state.list[i].nexus
        if (order.action == PREEMPT_AND_ABORT and is_victim(state, order, i, task.nexus)
                and victim != NULL and victim.aborter != NULL):
            return BUSY
    remove_victims(task, state, order)
    if takes:
        if before != order.type:
            tell_registered(state, ATTENTION_RELEASED, task.nexus)
        state.type = <uint8_t> order.type
        for i in range(state.count):
            state.list[i].holder = (not all_registrants(state)
                                    and state.list[i].nexus == task.nexus)
    state.generation += 1
    return DONE


cdef int do_move(ScsiTask *task, Reservations *state, Order *order,
                 Registration *mine) noexcept nogil:
    """REGISTER AND MOVE (SPC-5 5.14.9)."""
    cdef Registration *target
    cdef NexusState *nexus = task.unit.nexuses
    if all_registrants(state) or not mine.holder:
        return CONFLICT
    if order.other == 0:
        return BAD_KEY
    target = find_name(state, order.name, order.port)
    if target == mine:
        return BAD_TRANSPORT
    if target == NULL:
        target = add_registration(state, order.name, order.port, order.other)
        if target == NULL:
            return NO_ROOM
        while nexus != NULL:
            if find_name(state, nexus.name, nexus.port) == target:
                target.nexus = nexus
            nexus = nexus.next
    target.key = order.other
    target.holder = 1
    mine.holder = 0
    if order.unregister:
        remove_registration(state, mine)
    state.persists = order.persists
    state.generation += 1
    return DONE


cdef int perform(ScsiTask *task, Order *order) noexcept nogil:
    cdef UnitState *unit = task.unit
    cdef Reservations *state = <Reservations *> unit.reservations
    cdef Registration *mine
    if unit.reserved_by != NULL:                # also its own RESERVE conflicts (SPC-2 5.5.3)
        return CONFLICT
    if order.persists and unit.store == NULL and order.action in (
            REGISTER, REGISTER_AND_IGNORE, REGISTER_AND_MOVE):
        return BAD_PERSISTENCE
    if state == NULL:
        state = <Reservations *> calloc(1, sizeof(Reservations))
        if state == NULL:
            return NO_MEMORY
        unit.reservations = state
    if order.action == REGISTER or order.action == REGISTER_AND_IGNORE:
        return do_register(task, state, order)
    mine = find_registration(state, task.nexus)
    if mine == NULL or mine.key != order.key:
        return CONFLICT
    if order.action == RESERVE:
        return do_reserve(state, order, mine)
    if order.action == RELEASE:
        return do_release(task, state, order, mine)
    if order.action == CLEAR:
        return do_clear(task, state)
    if order.action == REGISTER_AND_MOVE:
        return do_move(task, state, order, mine)
    return do_preempt(task, state, order)


# ---- afterwards ---------------------------------------------------------------------------------

cdef void stored(ScsiTask *task) noexcept nogil:
    if task.req.result != 0:
        fail(task, KEY_HARDWARE_ERROR, CODE_INTERNAL_FAILURE)
        return
    finish_task(task)


cdef void changed(ScsiTask *task) noexcept nogil:
    """The state has changed, and what was aborted has ended: keep it, if it is to be kept."""
    if is_aborted(task) or task.unit.store == NULL:
        succeed(task)
        return
    task.step = stored
    store_reservations(<ReservationStore> task.unit.store, task)


cdef void answer(ScsiTask *task, Order *order, int outcome) noexcept nogil:
    if outcome == DONE:
        if order.action != PREEMPT_AND_ABORT or await_aborted(task, changed):
            changed(task)
    elif outcome == CONFLICT or outcome == BUSY:
        task.status = STATUS_BUSY if outcome == BUSY else STATUS_RESERVATION_CONFLICT
        finish_task(task)
    elif outcome == BAD_KEY:
        fail_parameter(task, 8, -1)
    elif outcome == BAD_TYPE:
        fail_field(task, 2, 3)
    elif outcome == BAD_SCOPE:
        fail_field(task, 2, 7)
    elif outcome == BAD_TRANSPORT:
        fail_parameter(task, 24, -1)
    elif outcome == BAD_PERSISTENCE:
        fail_parameter(task, 17 if order.action == REGISTER_AND_MOVE else 20, 0)
    elif outcome == BAD_RELEASE:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_INVALID_RELEASE)
    elif outcome == NO_ROOM:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_NO_RESOURCES)
    else:
        fail(task, KEY_ABORTED_COMMAND, CODE_OUT_OF_MEMORY)


# ---- parameters ---------------------------------------------------------------------------------

cdef bint read_move(ScsiTask *task, Order *order, const uint8_t *list,
                    uint32_t size) noexcept nogil:
    """The parameters of REGISTER AND MOVE: an iSCSI TransportID, format 00b (SPC-5 7.6.4.6)."""
    cdef uint32_t length = get32(list + 20), i = 0
    order.persists = list[17] & APTPL
    order.unregister = list[17] & UNREG
    order.port = get16(list + 18)
    if length != size - BASIC_LENGTH or length < 24 or length % 4:
        fail(task, KEY_ILLEGAL_REQUEST, CODE_LIST_LENGTH)
        return False
    if list[24] != 0x05 or get16(list + 26) != length - 4:
        fail_parameter(task, 24, -1)
        return False
    while i < length - 4 and i < NAME_ROOM - 1 and list[28 + i]:
        # What a file of lines can keep.
        if list[28 + i] <= 0x20 or list[28 + i] > 0x7e:
            fail_parameter(task, 28 + i, -1)
            return False
        order.name[i] = <char> list[28 + i]
        i += 1
    order.name[i] = 0
    if i == 0 or i == length - 4 or list[28 + i]:
        fail_parameter(task, 28, -1)
        return False
    return True


cdef void persistent_out_command(ScsiTask *task) noexcept nogil:
    cdef uint8_t list[MOST_PARAMETERS]
    cdef uint32_t size = get32(task.cdb + 5)
    cdef Order order
    cdef int outcome
    order.action = task.cdb[1] & 0x1f
    order.scope, order.type = task.cdb[2] >> 4, task.cdb[2] & 0x0f
    order.unregister = False
    order.port = 0
    if (size < BASIC_LENGTH or size > MOST_PARAMETERS
            or size != BASIC_LENGTH and order.action != REGISTER_AND_MOVE):
        fail(task, KEY_ILLEGAL_REQUEST, CODE_LIST_LENGTH)
        return
    if not take_parameters(task, list, size):
        return
    order.key, order.other = get64(list), get64(list + 8)
    if order.action == REGISTER_AND_MOVE:
        if not read_move(task, &order, list, size):
            return
    else:
        order.persists = list[20] & APTPL
        if list[20] & 0x08:                     # SPEC_I_PT: SIP_C is 0
            fail_parameter(task, 20, 3)
            return
        if list[20] & 0x04:                     # ALL_TG_PT: ATP_C is 0
            fail_parameter(task, 20, 2)
            return
    pthread_mutex_lock(&task.unit.lock)
    outcome = perform(task, &order)
    if outcome == DONE:
        set_gates(task.unit)
    pthread_mutex_unlock(&task.unit.lock)
    answer(task, &order, outcome)
