# Unit attention conditions: a bit of NexusState.gate each, reported lowest bit first (SPC-5 5.13).

from libc.stdint cimport uint32_t

from vringd.scsi.state cimport NexusState, UnitState


cdef enum Attention:
    ATTENTION_POWER_ON = 0x0001             # 29/00: a new nexus, or the target was reset
    ATTENTION_RESET = 0x0002                # 29/03: LOGICAL UNIT RESET
    ATTENTION_NEXUS_LOSS = 0x0004           # 29/07
    ATTENTION_MEDIUM = 0x0008               # 28/00: the medium may have changed
    ATTENTION_LUNS = 0x0010                 # 3F/0E: reported LUNs data has changed
    ATTENTION_INQUIRY = 0x0020              # 3F/03
    ATTENTION_MODE = 0x0040                 # 2A/01: mode parameters changed
    ATTENTION_CAPACITY = 0x0080             # 2A/09: capacity data has changed
    ATTENTION_PREEMPTED = 0x0100            # 2A/03: reservations preempted
    ATTENTION_RELEASED = 0x0200             # 2A/04: reservations released
    ATTENTION_REGISTRATION = 0x0400         # 2A/05: registrations preempted
    ATTENTION_CLEARED = 0x0800              # 2F/00: commands cleared by another initiator
    ATTENTION_EJECT = 0x1000                # 5A/01: operator medium removal request


cdef void raise_attention(NexusState *nexus, uint32_t attention) noexcept nogil
cdef void raise_attentions(UnitState *unit, uint32_t attention,
                           NexusState *except_for) noexcept nogil
cdef void tell_mode_change(UnitState *unit, NexusState *by) noexcept nogil
cdef uint32_t take_attention(NexusState *nexus) noexcept nogil
cdef uint32_t attention_code(uint32_t attention) noexcept nogil
