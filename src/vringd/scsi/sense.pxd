# Sense data: why a command ended with CHECK CONDITION (SPC-5 4.4).

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.scsi.state cimport ScsiTask


cdef enum SenseKey:
    KEY_NO_SENSE = 0x0
    KEY_NOT_READY = 0x2
    KEY_MEDIUM_ERROR = 0x3
    KEY_HARDWARE_ERROR = 0x4
    KEY_ILLEGAL_REQUEST = 0x5
    KEY_UNIT_ATTENTION = 0x6
    KEY_DATA_PROTECT = 0x7
    KEY_ABORTED_COMMAND = 0xb
    KEY_MISCOMPARE = 0xe


cdef enum SenseCode:            # additional sense code and its qualifier, as one number
    CODE_NONE = 0x0000
    CODE_WRITE_ERROR = 0x0c00
    CODE_INVALID_UNIT = 0x0e03          # invalid field in command information unit
    CODE_READ_ERROR = 0x1100
    CODE_LIST_LENGTH = 0x1a00           # parameter list length error
    CODE_MISCOMPARE = 0x1d00            # miscompare during verify operation
    CODE_INVALID_OPCODE = 0x2000
    CODE_OUT_OF_RANGE = 0x2100          # logical block address out of range
    CODE_INVALID_FIELD = 0x2400         # in the CDB
    CODE_NO_UNIT = 0x2500               # logical unit not supported
    CODE_INVALID_PARAMETER = 0x2600     # invalid field in parameter list
    CODE_INVALID_RELEASE = 0x2604       # invalid release of persistent reservation
    CODE_WRITE_PROTECTED = 0x2700
    CODE_SOFTWARE_PROTECTED = 0x2702    # logical unit software write protected
    CODE_SPACE_EXHAUSTED = 0x2707       # space allocation failed write protect
    CODE_SAVING_UNSUPPORTED = 0x3900    # saving parameters not supported
    CODE_NO_MEDIUM = 0x3a00
    CODE_NO_MEDIUM_OPEN = 0x3a02        # medium not present, tray open
    CODE_INTERNAL_FAILURE = 0x4400
    CODE_REMOVAL_PREVENTED = 0x5302
    CODE_OUT_OF_MEMORY = 0x5503         # insufficient resources
    CODE_NO_RESOURCES = 0x5504          # insufficient registration resources


cdef void check_condition(ScsiTask *task, int key, int code) noexcept nogil
cdef void set_information(ScsiTask *task, uint64_t information) noexcept nogil
cdef void set_field_pointer(ScsiTask *task, bint in_cdb, uint32_t byte, int bit) noexcept nogil
cdef uint32_t write_sense(uint8_t *sense, bint descriptors, int key, int code) noexcept nogil
