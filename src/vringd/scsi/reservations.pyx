"""Who holds what, and what that means for each nexus (SPC-5 5.14).

All of this is under the unit's lock. Commands do not look here: `set_gates` puts into each nexus
what it may not do.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport malloc
from libc.string cimport memset, strcmp, strncpy

from vringd.core.sys cimport (
    pthread_mutex_lock, pthread_mutex_unlock, vr_fetch_and_u32, vr_fetch_or_u32)
from vringd.scsi.state cimport (
    GATE_NO_ACCESS, GATE_NO_WRITES, GATE_RESERVED, NAME_ROOM, STATUS_RESERVATION_CONFLICT,
    NexusState, ScsiTask, UnitState)
from vringd.scsi.task cimport finish_task, succeed

cdef enum:
    LINE_ROOM = NAME_ROOM + 64


# ---- registrations ------------------------------------------------------------------------------

cdef Registration *find_registration(Reservations *state, NexusState *nexus) noexcept nogil:
    cdef uint32_t i
    for i in range(state.count):
        if state.list[i].nexus == nexus:
            return &state.list[i]
    return NULL


cdef Registration *find_name(Reservations *state, const char *name,
                             uint32_t port) noexcept nogil:
    cdef uint32_t i
    for i in range(state.count):
        if state.list[i].port == port and strcmp(state.list[i].name, name) == 0:
            return &state.list[i]
    return NULL


cdef Registration *add_registration(Reservations *state, const char *name, uint32_t port,
                                    uint64_t key) noexcept nogil:
    """A registration of a nexus that is not connected; NULL: there is no room."""
    cdef Registration *made
    if state.count == MOST_REGISTRATIONS:
        return NULL
    made = &state.list[state.count]
    state.count += 1
    memset(made, 0, sizeof(Registration))
    made.key, made.port = key, <unsigned short> port
    strncpy(made.name, name, NAME_ROOM - 1)
    return made


cdef void remove_registration(Reservations *state, Registration *registration) noexcept nogil:
    """The list keeps its order: that of registering. Pointers into it do not survive this."""
    cdef uint32_t i = <uint32_t> (registration - state.list)
    state.count -= 1
    while i < state.count:
        state.list[i] = state.list[i + 1]
        i += 1


cdef bint all_registrants(Reservations *state) noexcept nogil:
    return state.type == WRITE_EXCLUSIVE_ALL or state.type == EXCLUSIVE_ACCESS_ALL


cdef bint holds(Reservations *state, Registration *registration) noexcept nogil:
    """Whether the nexus is a holder of the reservation that there is."""
    return state.type != NOT_RESERVED and (registration.holder or all_registrants(state))


# ---- what each nexus may not do -----------------------------------------------------------------

cdef uint32_t restriction(UnitState *unit, NexusState *nexus) noexcept nogil:
    cdef Reservations *state = <Reservations *> unit.reservations
    cdef Registration *registration
    cdef uint32_t bits = 0
    if unit.reserved_by != NULL and unit.reserved_by != nexus:
        bits = GATE_RESERVED
    if state == NULL or state.type == NOT_RESERVED:
        return bits
    registration = find_registration(state, nexus)
    if registration != NULL and (registration.holder
                                 or state.type >= WRITE_EXCLUSIVE_REGISTRANTS):
        return bits
    if (state.type == WRITE_EXCLUSIVE or state.type == WRITE_EXCLUSIVE_REGISTRANTS
            or state.type == WRITE_EXCLUSIVE_ALL):
        return bits | <uint32_t> GATE_NO_WRITES
    return bits | <uint32_t> GATE_NO_ACCESS


cdef void set_gates(UnitState *unit) noexcept nogil:
    """Publish what the reservations mean. Bits are set before others are cleared, so that no gate
    is open in between."""
    cdef uint32_t every = GATE_NO_WRITES | GATE_NO_ACCESS | GATE_RESERVED
    cdef NexusState *nexus = unit.nexuses
    cdef uint32_t bits
    while nexus != NULL:
        bits = restriction(unit, nexus)
        vr_fetch_or_u32(&nexus.gate, bits)
        vr_fetch_and_u32(&nexus.gate, ~(every & ~bits))
        nexus = nexus.next


# ---- RESERVE and RELEASE (SPC-2) ----------------------------------------------------------------

cdef int compatible(UnitState *unit, NexusState *nexus) noexcept nogil:
    """RESERVE and RELEASE where there are registrations (SPC-3 5.6.3, CRH is 1): 1: answered with
    GOOD and without effect; 0: they conflict; -1: there are none."""
    cdef Reservations *state = <Reservations *> unit.reservations
    cdef Registration *registration
    if state == NULL or state.count == 0:
        return -1
    registration = find_registration(state, nexus)
    if registration == NULL:
        return 0
    return (state.type == NOT_RESERVED or registration.holder
            or state.type >= WRITE_EXCLUSIVE_REGISTRANTS)


cdef void conflict(ScsiTask *task) noexcept nogil:
    task.status = STATUS_RESERVATION_CONFLICT
    finish_task(task)


cdef void reserve_command(ScsiTask *task) noexcept nogil:
    """RESERVE (6) and (10), for the initiator that sends it."""
    cdef UnitState *unit = task.unit
    cdef int kind
    cdef bint refused = False
    pthread_mutex_lock(&unit.lock)
    kind = compatible(unit, task.nexus)
    if kind < 0:
        refused = unit.reserved_by != NULL and unit.reserved_by != task.nexus
        if not refused:
            unit.reserved_by = task.nexus
            set_gates(unit)
    pthread_mutex_unlock(&unit.lock)
    if kind == 0 or refused:
        conflict(task)
    else:
        succeed(task)


cdef void release_command(ScsiTask *task) noexcept nogil:
    """RELEASE (6) and (10): without effect for who has not reserved."""
    cdef UnitState *unit = task.unit
    cdef int kind
    pthread_mutex_lock(&unit.lock)
    kind = compatible(unit, task.nexus)
    if unit.reserved_by == task.nexus:
        drop_reserve(unit)
    pthread_mutex_unlock(&unit.lock)
    if kind == 0:
        conflict(task)
    else:
        succeed(task)


cdef void drop_reserve(UnitState *unit) noexcept nogil:
    """End a RESERVE reservation: by its holder, a reset, or the loss of its nexus."""
    unit.reserved_by = NULL
    set_gates(unit)


# ---- the file -----------------------------------------------------------------------------------

cdef char *reservations_text(Reservations *state) noexcept nogil:
    """What is to be kept, as reservation_file.py reads it; to be freed. NULL: no memory."""
    cdef size_t room = 64 + <size_t> state.count * LINE_ROOM
    cdef char *text = <char *> malloc(room)
    cdef size_t at
    cdef uint32_t i
    if text == NULL:
        return NULL
    at = <size_t> snprintf(text, room, "vringd-reservations 1\nreservation %d\n",
                           <int> (state.type if state.persists else 0))
    for i in range(state.count if state.persists else 0):
        at += <size_t> snprintf(text + at, room - at, "registration %016llx %d %d %s\n",
                                <unsigned long long> state.list[i].key, <int> state.list[i].holder,
                                <int> state.list[i].port, state.list[i].name)
    return text
