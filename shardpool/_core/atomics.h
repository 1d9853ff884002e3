/* Atomic operations on shared memory, each a scheduling point.
 *
 * Every access to a word that another process may write goes through this file. The explorer and the
 * ThreadSanitizer harness compile the same headers and define SP_SCHEDULING_POINT to take over between any two
 * of these operations; in the extension it is nothing. Ordered operations are used in place of fences because
 * ThreadSanitizer does not model fences.
 */
#ifndef SP_ATOMICS_H
#define SP_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#ifndef SP_SCHEDULING_POINT
#define SP_SCHEDULING_POINT(word) ((void)0)
#endif

static inline uint64_t sp_load_relaxed(const uint64_t *word)
{
    SP_SCHEDULING_POINT(word);
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline uint64_t sp_load_acquire(const uint64_t *word)
{
    SP_SCHEDULING_POINT(word);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint64_t sp_load_seq_cst(const uint64_t *word)
{
    SP_SCHEDULING_POINT(word);
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void sp_store_relaxed(uint64_t *word, uint64_t value)
{
    SP_SCHEDULING_POINT(word);
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void sp_store_release(uint64_t *word, uint64_t value)
{
    SP_SCHEDULING_POINT(word);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void sp_store_seq_cst(uint64_t *word, uint64_t value)
{
    SP_SCHEDULING_POINT(word);
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static inline uint64_t sp_fetch_or(uint64_t *word, uint64_t bits)
{
    SP_SCHEDULING_POINT(word);
    return __atomic_fetch_or(word, bits, __ATOMIC_SEQ_CST);
}

static inline uint64_t sp_exchange(uint64_t *word, uint64_t value)
{
    SP_SCHEDULING_POINT(word);
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

/* On failure *expected holds what was there. */
static inline bool sp_compare_exchange(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    SP_SCHEDULING_POINT(word);
    return __atomic_compare_exchange_n(word, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

/* Two adjacent words changed as one (cmpxchg16b). Their halves may be read apart: a torn read only makes the
 * exchange fail, because it compares both. */
typedef struct {
    uint64_t low;
    uint64_t high;
} __attribute__((aligned(16))) sp_pair;

static inline bool sp_pair_compare_exchange(sp_pair *pair, sp_pair expected, sp_pair desired)
{
    SP_SCHEDULING_POINT(&pair->low);
    unsigned __int128 from = ((unsigned __int128)expected.high << 64) | expected.low;
    unsigned __int128 to = ((unsigned __int128)desired.high << 64) | desired.low;
    return __sync_bool_compare_and_swap((unsigned __int128 *)(void *)pair, from, to);
}

#endif
