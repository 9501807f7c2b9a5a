# Persistent reservations, and the older RESERVE and RELEASE.

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from vringd.scsi.state cimport NAME_ROOM, NexusState, ScsiTask, UnitState


cdef enum:
    MOST_REGISTRATIONS = 128


cdef enum ReservationType:
    NOT_RESERVED = 0
    WRITE_EXCLUSIVE = 1
    EXCLUSIVE_ACCESS = 3
    WRITE_EXCLUSIVE_REGISTRANTS = 5
    EXCLUSIVE_ACCESS_REGISTRANTS = 6
    WRITE_EXCLUSIVE_ALL = 7
    EXCLUSIVE_ACCESS_ALL = 8


cdef struct Registration:       # of an I_T nexus, whether it is connected or not
    uint64_t key
    NexusState *nexus           # NULL: not connected
    uint16_t port
    uint8_t holder              # of the reservation, unless all registrants hold it
    char name[NAME_ROOM]


cdef struct Reservations:       # of a unit; under UnitState.lock
    uint32_t generation         # PRGENERATION
    uint32_t count
    uint8_t type                # ReservationType
    uint8_t persists            # APTPL of the last registration
    Registration list[MOST_REGISTRATIONS]


cdef void reserve_command(ScsiTask *task) noexcept nogil
cdef void release_command(ScsiTask *task) noexcept nogil
cdef void drop_reserve(UnitState *unit) noexcept nogil
cdef Registration *find_registration(Reservations *state, NexusState *nexus) noexcept nogil
cdef Registration *find_name(Reservations *state, const char *name,
                             uint32_t port) noexcept nogil
cdef Registration *add_registration(Reservations *state, const char *name, uint32_t port,
                                    uint64_t key) noexcept nogil
cdef void remove_registration(Reservations *state, Registration *registration) noexcept nogil
cdef bint holds(Reservations *state, Registration *registration) noexcept nogil
cdef bint all_registrants(Reservations *state) noexcept nogil
cdef void set_gates(UnitState *unit) noexcept nogil
cdef char *reservations_text(Reservations *state) noexcept nogil
