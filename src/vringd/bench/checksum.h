/* CRC-32C (Castagnoli; RFC 3720, appendix B.4), by the processor's instruction where it has one. */
#ifndef VRINGD_BENCH_CHECKSUM_H
#define VRINGD_BENCH_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t vr_crc32c_table[256];

static inline void vr_crc32c_prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
        vr_crc32c_table[i] = crc;
    }
}

static inline uint32_t vr_crc32c_portable(uint32_t crc, const uint8_t *data, size_t size)
{
    while (size--)
        crc = (crc >> 8) ^ vr_crc32c_table[(crc ^ *data++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static inline uint32_t vr_crc32c_sse(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t wide = crc, word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

static inline uint32_t vr_crc32c(const uint8_t *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~vr_crc32c_sse(0xffffffffu, data, size);
#endif
    return ~vr_crc32c_portable(0xffffffffu, data, size);
}

#endif
