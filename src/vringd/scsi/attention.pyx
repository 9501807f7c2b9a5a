"""Unit attention conditions: what an initiator must be told before its next command is served."""

from libc.stdint cimport uint32_t, uint64_t

from vringd.core.sys cimport (
    vr_fetch_and_u32, vr_fetch_or_u32, vr_load_relaxed_u32, vr_store_release_u32, write)
from vringd.scsi.state cimport GATE_ATTENTIONS, NexusState, UnitState


cdef void raise_attention(NexusState *nexus, uint32_t attention) noexcept nogil:
    vr_fetch_or_u32(&nexus.gate, attention)


cdef void raise_attentions(UnitState *unit, uint32_t attention,
                           NexusState *except_for) noexcept nogil:
    """For all nexuses but one (or NULL). Under UnitState.lock, which keeps the list."""
    cdef NexusState *nexus = unit.nexuses
    while nexus != NULL:
        if nexus != except_for:
            raise_attention(nexus, attention)
        nexus = nexus.next


cdef void tell_mode_change(UnitState *unit, NexusState *by) noexcept nogil:
    """A nexus has changed mode parameters: the others are told, and so are their owners, who may
    have a way to tell initiators at once. Under UnitState.lock."""
    cdef NexusState *nexus = unit.nexuses
    cdef uint64_t one = 1
    raise_attentions(unit, ATTENTION_MODE, by)
    while nexus != NULL:
        if nexus != by:
            vr_store_release_u32(&nexus.mode_changes, nexus.mode_changes + 1)
        nexus = nexus.next
    write(unit.change_fd, &one, 8)


cdef uint32_t take_attention(NexusState *nexus) noexcept nogil:
    """The most important condition that is pending, which is cleared; 0: none is."""
    cdef uint32_t pending, lowest
    while True:
        pending = vr_load_relaxed_u32(&nexus.gate) & <uint32_t> GATE_ATTENTIONS
        lowest = pending & (~pending + 1)
        # Two commands on two threads may see the same condition: it is told once.
        if lowest == 0 or vr_fetch_and_u32(&nexus.gate, ~lowest) & lowest:
            return lowest


cdef uint32_t attention_code(uint32_t attention) noexcept nogil:
    """Additional sense code and qualifier of a condition."""
    if attention == ATTENTION_POWER_ON:
        return 0x2900
    if attention == ATTENTION_RESET:
        return 0x2903
    if attention == ATTENTION_NEXUS_LOSS:
        return 0x2907
    if attention == ATTENTION_MEDIUM:
        return 0x2800
    if attention == ATTENTION_LUNS:
        return 0x3f0e
    if attention == ATTENTION_INQUIRY:
        return 0x3f03
    if attention == ATTENTION_MODE:
        return 0x2a01
    if attention == ATTENTION_CAPACITY:
        return 0x2a09
    if attention == ATTENTION_PREEMPTED:
        return 0x2a03
    if attention == ATTENTION_RELEASED:
        return 0x2a04
    if attention == ATTENTION_REGISTRATION:
        return 0x2a05
    if attention == ATTENTION_CLEARED:
        return 0x2f00
    return 0x5a01
