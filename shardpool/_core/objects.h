/* What the executor keeps: its private state, one entry per slot, and the clocks it works with. */
#ifndef SP_OBJECTS_H
#define SP_OBJECTS_H

#include <time.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#include "arena.h"
#include "ready.h"
#include "schedule.h"

#define SP_DRAIN_RECORDS 256     /* backstop of the time budget, per drain of one object */
#define SP_LIFECYCLE_DEBT 8      /* lifecycle turns in a row before one application turn is owed */
#define SP_RING_EVERY 32         /* objects run between two looks at who must be rung */

struct sp_gate {
    uint32_t holder; /* slot + 1; 0: free */
    uint32_t first;  /* waiting objects, slot + 1, linked by sp_object.gate_next */
    uint32_t last;
};

struct sp_object {
    struct sp_gate own;
    uint32_t gate;      /* slot whose gate this object runs under */
    uint32_t gate_next;
    uint32_t suspended; /* cell of the suspended record, 0: none */
    uint8_t queued;
    uint8_t waiting;    /* in its gate's queue */
    uint8_t resuming;   /* ... to go on with a suspended turn that had given the gate back */
    uint8_t yielded;    /* suspended without the gate */
    uint8_t ending;     /* sealed in order to end, not to move */
    uint8_t live;
};

enum sp_turn { SP_TURN_DONE, SP_TURN_FAILED, SP_TURN_SUSPENDED };

struct sp_executor {
    struct sp_node *node;
    struct sp_arena arena;
    struct sp_ready ready;
    struct sp_object *objects;
    struct sp_slot *slots;
    uint32_t free_slot;    /* next never used slot */
    uint32_t *free_list;   /* slots given back */
    uint32_t free_count;
    uint64_t budget_cycles;
    uint32_t lifecycle_keep; /* arena pages that only lifecycle may use */
    bool stalled;            /* a ring waits for arena memory */
    bool blocked;            /* an outbound link is full: nothing is executed */
    void *context;
    enum sp_turn (*turn)(void *context, uint32_t slot, struct sp_cell *cell);
    void (*infra)(void *context, uint32_t process, struct sp_record *record);
    void (*sealed)(void *context, uint32_t slot);
    void (*resumed)(void *context, uint32_t slot);
};

static inline uint64_t sp_cycles(void)
{
#ifdef __x86_64__
    return __rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
#endif
}

static inline uint64_t sp_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* How many cycles the time budget has; measured once, over one millisecond. */
static inline uint64_t sp_cycles_of(uint64_t ns)
{
    uint64_t from_ns = sp_clock_ns();
    uint64_t from = sp_cycles();
    uint64_t passed;
    while ((passed = sp_clock_ns() - from_ns) < 1000000)
        ;
    return (sp_cycles() - from) * ns / passed;
}

static inline bool sp_executor_open(struct sp_executor *ex, struct sp_node *node, uint64_t budget_ns)
{
    const struct sp_geometry *g = &node->geometry;
    struct sp_peer *self = &node->peers[node->self];
    ex->node = node;
    ex->slots = self->slots;
    ex->free_slot = 0;
    ex->free_count = 0;
    ex->budget_cycles = sp_cycles_of(budget_ns);
    ex->lifecycle_keep = (uint32_t)(g->arena_bytes / SP_ARENA_PAGE / 16);
    ex->objects = calloc(g->slots, sizeof *ex->objects);
    ex->free_list = malloc(g->slots * sizeof *ex->free_list);
    return ex->objects != NULL && ex->free_list != NULL && sp_ready_open(&ex->ready, g->slots)
        && sp_arena_open(&ex->arena, self->base + sp_arena_offset(g), g->arena_bytes);
}

static inline void sp_executor_close(struct sp_executor *ex)
{
    free(ex->objects);
    free(ex->free_list);
    sp_ready_close(&ex->ready);
    sp_arena_close(&ex->arena);
}

static inline void sp_executor_queue(struct sp_executor *ex, uint32_t slot)
{
    if (ex->objects[slot].queued || ex->objects[slot].waiting)
        return; /* E4 */
    ex->objects[slot].queued = 1;
    sp_ready_push(&ex->ready, slot);
}

static inline uint64_t sp_executor_address(const struct sp_executor *ex, uint32_t slot)
{
    uint64_t generation = sp_word_generation(sp_load_relaxed(&ex->slots[slot].word.low));
    return sp_address(ex->node->self - 1 - ex->node->geometry.acceptors, generation, slot);
}

/* The slot of an address of this shard, if it is the object that lives there now; else `slots`. */
static inline uint32_t sp_executor_slot(const struct sp_executor *ex, uint64_t address)
{
    uint32_t slot = sp_address_index(address);
    if (sp_address_number(address) != ex->node->self - 1 - ex->node->geometry.acceptors
        || slot >= ex->node->geometry.slots
        || sp_word_generation(sp_load_relaxed(&ex->slots[slot].word.low)) != sp_address_generation(address))
        return ex->node->geometry.slots;
    return slot;
}

static inline uint32_t sp_executor_allocate(struct sp_executor *ex)
{
    uint32_t slot;
    if (ex->free_count > 0)
        slot = ex->free_list[--ex->free_count];
    else if (ex->free_slot < ex->node->geometry.slots)
        slot = ex->free_slot++;
    else
        return ex->node->geometry.slots;
    ex->objects[slot] = (struct sp_object){ .gate = slot, .live = 1 };
    ex->slots[slot].lifecycle_run = 0;
    /* only of slot 0, which acceptors publish to before it has a tenant */
    if (sp_word_phase(sp_load_acquire(&ex->slots[slot].word.low)) == SP_RUNNABLE)
        sp_executor_queue(ex, slot);
    return slot;
}

#endif
