# What verify=crc32c writes into each block, and how it is judged when it is read back.

from libc.stdint cimport uint32_t, uint64_t, uint8_t

from vringd.bench.random cimport mix


cdef extern from "checksum.h" nogil:
    void vr_crc32c_prepare() noexcept
    uint32_t vr_crc32c(const uint8_t *data, size_t size) noexcept
    uint32_t vr_crc32c_portable(uint32_t crc, const uint8_t *data, size_t size) noexcept


cdef enum:
    MAGIC = 0x76726E67


cdef packed struct BlockHeader:
    uint32_t magic
    uint32_t crc                # CRC-32C of all that follows this field
    uint64_t offset             # bytes, in the disk
    uint64_t generation         # of the write


cdef enum:                      # findings
    BLOCK_GOOD
    BLOCK_MAGIC                 # not a block of ours
    BLOCK_OFFSET                # a block of ours, from somewhere else
    BLOCK_CRC


cdef inline uint32_t block_crc(const uint8_t *block, uint32_t size) noexcept nogil:
    return vr_crc32c(block + 8, size - 8)


cdef inline void fill_block(uint8_t *block, uint32_t size, uint64_t offset,
                            uint64_t generation) noexcept nogil:
    """size: 512 at least, a multiple of 8."""
    cdef BlockHeader *header = <BlockHeader *> block
    cdef uint64_t *words = <uint64_t *> block
    cdef uint64_t value = mix(offset ^ mix(generation))
    cdef uint32_t i
    for i in range(sizeof(BlockHeader) // 8, size // 8):
        value = value * <uint64_t> 6364136223846793005 + <uint64_t> 1442695040888963407
        words[i] = value
    header.offset, header.generation = offset, generation
    header.crc = block_crc(block, size)
    header.magic = MAGIC


cdef inline int check_block(const uint8_t *block, uint32_t size,
                            uint64_t offset) noexcept nogil:
    cdef const BlockHeader *header = <const BlockHeader *> block
    if header.magic != MAGIC:
        return BLOCK_MAGIC
    if header.crc != block_crc(block, size):
        return BLOCK_CRC
    if header.offset != offset:
        return BLOCK_OFFSET
    return BLOCK_GOOD
