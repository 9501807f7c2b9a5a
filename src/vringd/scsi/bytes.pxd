# Big-endian numbers, as SCSI has them.

from libc.stdint cimport uint32_t, uint64_t, uint8_t


cdef inline uint32_t get16(const uint8_t *at) noexcept nogil:
    return <uint32_t> at[0] << 8 | at[1]


cdef inline uint32_t get24(const uint8_t *at) noexcept nogil:
    return <uint32_t> at[0] << 16 | <uint32_t> at[1] << 8 | at[2]


cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    return get16(at) << 16 | get16(at + 2)


cdef inline uint64_t get64(const uint8_t *at) noexcept nogil:
    return <uint64_t> get32(at) << 32 | get32(at + 4)


cdef inline void put16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 8)
    at[1] = <uint8_t> value


cdef inline void put24(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 16)
    put16(at + 1, value)


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    put16(at, value >> 16)
    put16(at + 2, value)


cdef inline void put64(uint8_t *at, uint64_t value) noexcept nogil:
    put32(at, <uint32_t> (value >> 32))
    put32(at + 4, <uint32_t> value)
