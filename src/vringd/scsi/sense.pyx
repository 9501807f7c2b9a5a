"""Sense data in the fixed (70h) and the descriptor (72h) format.

Which of them autosense has is the control mode page's choice (D_SENSE).
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memset

from vringd.core.sys cimport vr_load_relaxed_u32
from vringd.scsi.bytes cimport put16, put32, put64
from vringd.scsi.state cimport STATUS_CHECK_CONDITION, ScsiTask

cdef enum:
    FIXED_LENGTH = 18
    DESCRIPTOR_INFORMATION = 0
    DESCRIPTOR_KEY_SPECIFIC = 2


cdef uint32_t write_sense(uint8_t *sense, bint descriptors, int key, int code) noexcept nogil:
    """Sense data without particulars, in a buffer of SENSE_ROOM bytes; its length."""
    if descriptors:
        memset(sense, 0, 8)
        sense[0] = 0x72
        sense[1] = <uint8_t> key
        put16(sense + 2, <uint32_t> code)
        return 8
    memset(sense, 0, FIXED_LENGTH)
    sense[0] = 0x70
    sense[2] = <uint8_t> key
    sense[7] = FIXED_LENGTH - 8
    put16(sense + 12, <uint32_t> code)
    return FIXED_LENGTH


cdef void check_condition(ScsiTask *task, int key, int code) noexcept nogil:
    """The task ends with CHECK CONDITION and this sense data (SenseKey, SenseCode)."""
    cdef bint descriptors = task.unit != NULL and vr_load_relaxed_u32(&task.unit.descriptor_sense)
    task.status = STATUS_CHECK_CONDITION
    task.sense_length = <uint8_t> write_sense(task.sense, descriptors, key, code)


cdef uint8_t *add_descriptor(ScsiTask *task, int kind, int length) noexcept nogil:
    """Append a descriptor of length bytes. There are two kinds, of 12 and of 8 bytes, and each is
    added at most once, so that SENSE_ROOM suffices."""
    cdef uint8_t *at = task.sense + task.sense_length
    memset(at, 0, <size_t> length)
    at[0] = <uint8_t> kind
    at[1] = <uint8_t> (length - 2)
    task.sense[7] = <uint8_t> (task.sense[7] + length)
    task.sense_length = <uint8_t> (task.sense_length + length)
    return at


cdef void set_information(ScsiTask *task, uint64_t information) noexcept nogil:
    """Fill the INFORMATION field (and VALID); the fixed format has room for 32 bits only."""
    cdef uint8_t *at
    if task.sense[0] & 0x7f == 0x72:
        at = add_descriptor(task, DESCRIPTOR_INFORMATION, 12)
        at[2] = 0x80
        put64(at + 4, information)
    elif information <= <uint64_t> 0xffffffff:
        task.sense[0] |= 0x80
        put32(task.sense + 3, <uint32_t> information)


cdef void set_field_pointer(ScsiTask *task, bint in_cdb, uint32_t byte, int bit) noexcept nogil:
    """Point at the byte of the CDB or of the parameter list that is wrong, and at the leftmost bit
    of the field if bit is not negative (SPC-5 4.4.2.4.2)."""
    cdef uint8_t *at = task.sense + 15
    if task.sense[0] & 0x7f == 0x72:
        at = add_descriptor(task, DESCRIPTOR_KEY_SPECIFIC, 8) + 4
    at[0] = 0x80 | (0x40 if in_cdb else 0)
    if bit >= 0:
        at[0] |= <uint8_t> (0x08 | bit)
    put16(at + 1, byte)
