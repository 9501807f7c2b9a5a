/* Every memory-ordering operation of the data plane, named once.
 *
 * The other side of each of these is not a thread of ours but a guest's driver (or another
 * IOThread, or the control plane), so plain C accesses would be data races. All are the
 * compiler's __atomic builtins: on x86-64 acquire, release and relaxed cost nothing beyond the
 * access and only the full fence is an instruction; on arm64 they are real barriers.
 *
 * Where each ordering is needed (virtio 1.3, sections 2.7.13, 2.7.14, 2.8.21):
 *   acquire  loading avail.idx, or a packed descriptor's flags, before reading what they publish
 *   release  storing used.idx, or a packed descriptor's flags, after writing what they publish
 *   full     between storing used.idx and loading used_event, and between storing avail_event
 *            (or the flags) and the last look at avail.idx before sleeping: both are
 *            store-then-load of different words, the one order that neither acquire nor release
 *            gives
 */
#ifndef VRINGD_ATOMICS_H
#define VRINGD_ATOMICS_H

#include <stdint.h>

static inline uint16_t vr_load_acquire_u16(const void *p)
{
    return __atomic_load_n((const uint16_t *)p, __ATOMIC_ACQUIRE);
}

static inline uint16_t vr_load_relaxed_u16(const void *p)
{
    return __atomic_load_n((const uint16_t *)p, __ATOMIC_RELAXED);
}

static inline void vr_store_release_u16(void *p, uint16_t v)
{
    __atomic_store_n((uint16_t *)p, v, __ATOMIC_RELEASE);
}

static inline void vr_store_relaxed_u16(void *p, uint16_t v)
{
    __atomic_store_n((uint16_t *)p, v, __ATOMIC_RELAXED);
}

static inline uint8_t vr_load_relaxed_u8(const void *p)
{
    return __atomic_load_n((const uint8_t *)p, __ATOMIC_RELAXED);
}

static inline void vr_store_relaxed_u8(void *p, uint8_t v)
{
    __atomic_store_n((uint8_t *)p, v, __ATOMIC_RELAXED);
}

static inline uint32_t vr_load_acquire_u32(const void *p)
{
    return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE);
}

static inline uint32_t vr_load_relaxed_u32(const void *p)
{
    return __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
}

static inline void vr_store_relaxed_u32(void *p, uint32_t v)
{
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELAXED);
}

static inline void vr_store_release_u32(void *p, uint32_t v)
{
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELEASE);
}

static inline uint32_t vr_exchange_u32(void *p, uint32_t v)
{
    return __atomic_exchange_n((uint32_t *)p, v, __ATOMIC_ACQ_REL);
}

static inline uint32_t vr_fetch_add_u32(void *p, uint32_t v)
{
    return __atomic_fetch_add((uint32_t *)p, v, __ATOMIC_ACQ_REL);
}

static inline uint32_t vr_fetch_or_u32(void *p, uint32_t bits)
{
    return __atomic_fetch_or((uint32_t *)p, bits, __ATOMIC_ACQ_REL);
}

static inline uint32_t vr_fetch_and_u32(void *p, uint32_t bits)
{
    return __atomic_fetch_and((uint32_t *)p, bits, __ATOMIC_ACQ_REL);
}

static inline uint64_t vr_load_acquire_u64(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}

static inline uint64_t vr_load_relaxed_u64(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}

static inline void vr_store_relaxed_u64(void *p, uint64_t v)
{
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELAXED);
}

static inline uint64_t vr_fetch_add_u64(void *p, uint64_t v)
{
    return __atomic_fetch_add((uint64_t *)p, v, __ATOMIC_RELAXED);
}

static inline void vr_store_release_u64(void *p, uint64_t v)
{
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
}

/* A counter with one writer: the writer needs no read-modify-write, readers see whole values. */
static inline void vr_count_u64(void *p, uint64_t n)
{
    vr_store_relaxed_u64(p, *(uint64_t *)p + n);
}

/* Set bits that other threads set too (the dirty bitmap). */
static inline void vr_or_relaxed_u8(void *p, uint8_t bits)
{
    __atomic_fetch_or((uint8_t *)p, bits, __ATOMIC_RELAXED);
}

static inline void vr_store_release_ptr(void **p, void *v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline void *vr_exchange_ptr(void **p, void *v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

/* Whether a list that others push to has anything: who takes it orders by the exchange. */
static inline void *vr_load_relaxed_ptr(void *const *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void *vr_load_acquire_ptr(void *const *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

/* Push onto a list that any thread may push to and one thread takes whole. No ABA problem: nobody
 * pops single entries. */
static inline void vr_push_ptr(void **head, void *entry, void **next_of_entry)
{
    void *old = __atomic_load_n(head, __ATOMIC_RELAXED);
    do {
        *next_of_entry = old;
    } while (!__atomic_compare_exchange_n(head, &old, entry, 1, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
}

#if defined(__SANITIZE_THREAD__)
/* ThreadSanitizer does not model fences; a read-modify-write on a shared word orders for it. */
static inline void vr_fence_full(void)
{
    static uint32_t word;
    __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
}
#else
static inline void vr_fence_full(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif

/* Keep the compiler from moving stores across (the same thread's signal handler, or a crash of
 * this process after which only the order of stores to shared memory counts). */
static inline void vr_fence_compiler(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Tell the processor that this is a spin loop. */
static inline void vr_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
