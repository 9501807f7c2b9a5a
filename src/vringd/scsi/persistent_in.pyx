"""PERSISTENT RESERVE IN (SPC-5 6.16)."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset, strlen

from vringd.core.sys cimport pthread_mutex_lock, pthread_mutex_unlock
from vringd.scsi.bytes cimport get16, put16, put32, put64
from vringd.scsi.reservations cimport (
    MOST_REGISTRATIONS, NOT_RESERVED, Registration, Reservations, holds)
from vringd.scsi.state cimport NAME_ROOM, ScsiTask
from vringd.scsi.task cimport reply, take_work

cdef enum Action:
    READ_KEYS = 0
    READ_RESERVATION = 1
    REPORT_CAPABILITIES = 2
    READ_FULL_STATUS = 3

cdef enum:
    STATUS_ROOM = 24 + 4 + NAME_ROOM    # of one full status descriptor
    DATA_ROOM = 8 + MOST_REGISTRATIONS * STATUS_ROOM


cdef uint32_t keys(Reservations *state, uint8_t *at) noexcept nogil:
    cdef uint32_t i
    for i in range(state.count):
        put64(at + 8 * i, state.list[i].key)
    return 8 * state.count


cdef uint32_t reservation(Reservations *state, uint8_t *at) noexcept nogil:
    cdef uint32_t i
    if state.type == NOT_RESERVED:
        return 0
    memset(at, 0, 16)
    for i in range(state.count):
        if state.list[i].holder:        # none, if all registrants hold it: the key is 0
            put64(at, state.list[i].key)
    at[13] = state.type
    return 16


cdef uint32_t full_status(Reservations *state, uint8_t *at) noexcept nogil:
    cdef Registration *one
    cdef uint32_t i, name, padded, size = 0
    for i in range(state.count):
        one = &state.list[i]
        # TransportID of an iSCSI initiator, format 00b: the name with its zero, padded to a
        # multiple of 4, 20 at least.
        name = <uint32_t> strlen(one.name)
        padded = max((name + 4) & ~<uint32_t> 3, <uint32_t> 20)
        memset(at, 0, 28 + padded)
        put64(at, one.key)
        if holds(state, one):
            at[12], at[13] = 0x01, state.type
        put16(at + 18, one.port)
        put32(at + 20, 4 + padded)
        at[24] = 0x05
        put16(at + 26, padded)
        memcpy(at + 28, one.name, name)
        at += 28 + padded
        size += 28 + padded
    return size


cdef void report_capabilities(ScsiTask *task, uint64_t allocation) noexcept nogil:
    cdef Reservations *state
    cdef uint8_t data[8]
    memset(data, 0, 8)
    data[1] = 8
    data[2] = 0x10                      # CRH
    data[3] = 0x80                      # TMV
    data[4], data[5] = 0xea, 0x01       # all types
    pthread_mutex_lock(&task.unit.lock)
    state = <Reservations *> task.unit.reservations
    if task.unit.store != NULL:
        data[2] |= 0x01                 # PTPL_C
        if state != NULL and state.persists:
            data[3] |= 0x01             # PTPL_A
    pthread_mutex_unlock(&task.unit.lock)
    reply(task, data, 8, allocation)


cdef void persistent_in_command(ScsiTask *task) noexcept nogil:
    cdef Reservations *state
    cdef uint64_t allocation = get16(task.cdb + 7)
    cdef uint32_t size = 0
    cdef int action = task.cdb[1] & 0x1f
    if action == REPORT_CAPABILITIES:
        report_capabilities(task, allocation)
        return
    if not take_work(task, DATA_ROOM):
        return
    memset(task.work, 0, 8)
    pthread_mutex_lock(&task.unit.lock)
    state = <Reservations *> task.unit.reservations
    if state != NULL:
        put32(task.work, state.generation)
        if action == READ_KEYS:
            size = keys(state, task.work + 8)
        elif action == READ_RESERVATION:
            size = reservation(state, task.work + 8)
        else:
            size = full_status(state, task.work + 8)
    pthread_mutex_unlock(&task.unit.lock)
    put32(task.work + 4, size)
    reply(task, task.work, <uint64_t> size + 8, allocation)
