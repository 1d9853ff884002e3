/* The ready queue of a shard: whom to run next, in order, each object at most once. Private memory of the shard;
 * a successor rebuilds it from the slots. It has room for every slot, so queueing cannot fail. */
#ifndef SP_READY_H
#define SP_READY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct sp_ready {
    uint32_t *slots;
    uint32_t mask;
    uint32_t head; /* next to pop */
    uint32_t tail; /* next free place; both count for ever, modulo 2^32 */
};

static inline bool sp_ready_open(struct sp_ready *ready, uint32_t slots)
{
    uint32_t capacity = 1;
    while (capacity < slots)
        capacity <<= 1;
    ready->slots = malloc(capacity * sizeof *ready->slots);
    ready->mask = capacity - 1;
    ready->head = ready->tail = 0;
    return ready->slots != NULL;
}

static inline void sp_ready_close(struct sp_ready *ready)
{
    free(ready->slots);
    ready->slots = NULL;
}

static inline uint32_t sp_ready_count(const struct sp_ready *ready) { return ready->tail - ready->head; }

static inline void sp_ready_push(struct sp_ready *ready, uint32_t slot) { ready->slots[ready->tail++ & ready->mask] = slot; }

static inline uint32_t sp_ready_pop(struct sp_ready *ready) { return ready->slots[ready->head++ & ready->mask]; }

#endif
