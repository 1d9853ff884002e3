/* The executor of one shard, without Python: links into lanes, ready queue, gates, drains.
 *
 * Flow        look: links -> lanes (a record's object becomes ready). run: ready object -> gate -> Running -> look ->
 *             record by record: lane decision, mark, turn, done. What a turn does is behind `turn` and `infra`.
 * Owner       all of it is the shard's one thread. Shared words change only through schedule.h.
 * Crash       `mark` and `mark_done` say which record had begun and whether it had ended; a lane's cell is complete
 *             before it is linked; `linked` and the cell's stamp tell the successor what it must not link again.
 * Invariants
 *   E1  at most one turn per gate at any moment; a suspended turn keeps its gate unless it gives it back
 *   E2  a record's reservation is returned by the same store that ends it, once
 *   E3  after the last drain of an object came a look that began after it was Running (S1)
 *   E4  an object is in the ready queue at most once
 */
#ifndef SP_EXECUTOR_H
#define SP_EXECUTOR_H

#include <time.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#include "arena.h"
#include "ready.h"
#include "schedule.h"

#define SP_DRAIN_RECORDS 256     /* backstop of the time budget, per drain of one object */
#define SP_LOOK_RECORDS 512      /* taken from one ring in one look */
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

enum sp_turn { SP_TURN_DONE, SP_TURN_SUSPENDED };

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
    return slot;
}

static inline void sp_chain_append(struct sp_executor *ex, struct sp_chain *chain, uint32_t unit)
{
    /* release: a successor that walks the lane finds only complete cells */
    if (chain->last == 0)
        __atomic_store_n(&chain->first, unit, __ATOMIC_RELEASE);
    else
        __atomic_store_n(&sp_arena_cell(&ex->arena, chain->last)->next, unit, __ATOMIC_RELEASE);
    chain->last = unit;
}

static inline void sp_chain_drop_first(struct sp_executor *ex, struct sp_chain *chain)
{
    uint32_t next = sp_arena_cell(&ex->arena, chain->first)->next;
    if (next == 0)
        chain->last = 0;
    __atomic_store_n(&chain->first, next, __ATOMIC_RELEASE);
}

static inline enum sp_lane sp_cell_lane(const struct sp_cell *cell)
{
    return (cell->flags & SP_FLAG_LIFECYCLE) != 0 ? SP_LANE_LIFECYCLE : SP_LANE_APPLICATION;
}

/* Takes one record over into its object's lane. False: no memory, try again when some was freed. */
static inline bool sp_executor_link(struct sp_executor *ex, uint32_t producer, enum sp_stream stream, uint64_t position,
                                    struct sp_record *record)
{
    uint32_t index = sp_executor_slot(ex, record->target);
    if (index == ex->node->geometry.slots) {
        sp_count(ex->node, SP_COUNT_DROPPED, 1);
        return true;
    }
    bool lifecycle = (record->flags & SP_FLAG_LIFECYCLE) != 0;
    uint32_t unit = sp_arena_allocate(&ex->arena, record->length, lifecycle ? 0 : ex->lifecycle_keep);
    if (unit == 0)
        return false;
    struct sp_cell *cell = sp_arena_cell(&ex->arena, unit);
    *cell = (struct sp_cell){
        .next = 0, .length = record->length, .kind = record->kind, .flags = record->flags,
        .producer = (uint16_t)producer, .stream = (uint16_t)stream, .position = position, .a = record->a, .b = record->b,
    };
    memcpy(sp_cell_payload(cell), sp_record_payload(record), record->length);
    struct sp_slot *slot = &ex->slots[index];
    sp_chain_append(ex, &slot->lanes[lifecycle ? SP_LANE_LIFECYCLE : SP_LANE_APPLICATION], unit);
    if (sp_schedule_wanted(slot, true))
        sp_executor_queue(ex, index);
    return true;
}

static inline bool sp_executor_take(struct sp_executor *ex, uint32_t producer, enum sp_stream stream, uint64_t position,
                                    struct sp_record *record)
{
    if (record->kind == SP_KIND_TOKEN) {
        uint32_t slot = sp_executor_slot(ex, record->target);
        if (slot != ex->node->geometry.slots && sp_schedule_wanted(&ex->slots[slot], false))
            sp_executor_queue(ex, slot);
        return true;
    }
    if (record->kind > SP_KIND_TOKEN) {
        ex->infra(ex->context, producer, record);
        return true;
    }
    return sp_executor_link(ex, producer, stream, position, record);
}

static inline void sp_executor_look_ring(struct sp_executor *ex, uint32_t producer, enum sp_stream stream)
{
    struct sp_reader *reader = &ex->node->readers[producer][stream];
    struct sp_record *record;
    int budget = SP_LOOK_RECORDS;
    reader->stalled = false;
    while (budget-- > 0 && sp_reader_next(reader, &record) == SP_READ_RECORD) {
        uint64_t position = reader->position;
        if (!sp_executor_take(ex, producer, stream, position, record)) {
            reader->stalled = true;
            ex->stalled = true;
            break;
        }
        sp_reader_advance(reader, record);
        sp_store_relaxed(&reader->ring->linked, reader->position);
    }
    sp_node_release(ex->node, producer, stream);
}

/* Empties the links into the lanes, infrastructure first; bounded per ring. */
static inline void sp_executor_look(struct sp_executor *ex)
{
    uint32_t processes = ex->node->geometry.processes;
    ex->stalled = false;
    for (int stream = SP_STREAM_INFRA; stream >= SP_STREAM_DATA; stream--) {
        for (uint32_t producer = 0; producer < processes; producer++) {
            struct sp_reader *reader = &ex->node->readers[producer][stream];
            if (reader->position == reader->producer
                && reader->position == sp_load_acquire(&reader->ring->producer))
                continue;
            sp_executor_look_ring(ex, producer, (enum sp_stream)stream);
        }
    }
}

/* Takes the gate for an object, or leaves the object in the gate's queue. */
static inline bool sp_gate_take(struct sp_executor *ex, uint32_t slot)
{
    struct sp_object *object = &ex->objects[slot];
    struct sp_gate *gate = &ex->objects[object->gate].own;
    if (gate->holder == 0)
        gate->holder = slot + 1;
    if (gate->holder == slot + 1)
        return true;
    object->waiting = 1;
    object->gate_next = 0;
    if (gate->last == 0)
        gate->first = slot + 1;
    else
        ex->objects[gate->last - 1].gate_next = slot + 1;
    gate->last = slot + 1;
    return false;
}

/* Gives the gate back, if the object holds it (a turn that yielded may not); the first that waits has it then. */
static inline void sp_gate_give(struct sp_executor *ex, uint32_t gate_slot, uint32_t slot)
{
    struct sp_gate *gate = &ex->objects[gate_slot].own;
    if (gate->holder != slot + 1)
        return;
    gate->holder = gate->first;
    if (gate->first == 0)
        return;
    uint32_t next = gate->first - 1;
    struct sp_object *object = &ex->objects[next];
    gate->first = object->gate_next;
    if (gate->first == 0)
        gate->last = 0;
    object->waiting = 0;
    if (object->resuming) {
        object->resuming = 0;
        ex->resumed(ex->context, next);
    } else {
        sp_executor_queue(ex, next);
    }
}

/* The record that the object runs next, or NULL. Lifecycle first, but after eight in a row one application record. */
static inline struct sp_cell *sp_executor_next(struct sp_executor *ex, struct sp_slot *slot)
{
    uint32_t lifecycle = slot->lanes[SP_LANE_LIFECYCLE].first;
    uint32_t application = slot->lanes[SP_LANE_APPLICATION].first;
    if (lifecycle == 0)
        slot->lifecycle_run = 0;
    if (lifecycle != 0 && (application == 0 || slot->lifecycle_run < SP_LIFECYCLE_DEBT)) {
        slot->lifecycle_run++;
        return sp_arena_cell(&ex->arena, lifecycle);
    }
    if (application == 0)
        return NULL;
    slot->lifecycle_run = 0;
    return sp_arena_cell(&ex->arena, application);
}

static inline void sp_executor_begin(struct sp_executor *ex, struct sp_slot *slot, struct sp_cell *cell)
{
    slot->turn++;
    sp_store_relaxed(&slot->mark_done, slot->done);
    sp_store_release(&slot->mark, (uint64_t)((uint8_t *)cell - ex->arena.base) / SP_CELL_UNIT);
}

/* Ends the record at the head of its lane: one store returns the reservation and says that it is done (E2). */
static inline void sp_executor_done(struct sp_executor *ex, struct sp_slot *slot, struct sp_cell *cell)
{
    enum sp_lane lane = sp_cell_lane(cell);
    uint32_t unit = (uint32_t)((uint64_t)((uint8_t *)cell - ex->arena.base) / SP_CELL_UNIT);
    sp_store_release(&slot->done, sp_fields_add(slot->done, sp_charge(lane, cell->length)));
    sp_chain_drop_first(ex, &slot->lanes[lane]);
    sp_store_release(&slot->mark, 0);
    sp_arena_free(&ex->arena, unit);
}

/* After a drain: the object waits, goes to the tail, or is idle; a settled sealed one goes to `sealed`. */
static inline void sp_executor_end(struct sp_executor *ex, uint32_t index)
{
    struct sp_slot *slot = &ex->slots[index];
    uint32_t gate = ex->objects[index].gate;
    if (sp_load_relaxed(&slot->waiters) != 0)
        sp_waiters_ring(ex->node, slot);
    bool left = slot->lanes[0].first != 0 || slot->lanes[1].first != 0;
    switch (sp_schedule_end(ex->node, slot, index, left)) {
    case SP_END_AGAIN:
        sp_executor_queue(ex, index);
        break;
    case SP_END_SEALED:
        sp_executor_look(ex); /* the last publication may have been settled after our last look */
        ex->sealed(ex->context, index);
        break;
    case SP_END_IDLE:
    case SP_END_FINALIZING:
        break;
    }
    sp_gate_give(ex, gate, index);
}

/* Runs one object's records until its lanes are empty, it suspends, or its budget is used up (T-22). */
static inline void sp_executor_drain(struct sp_executor *ex, uint32_t index)
{
    struct sp_slot *slot = &ex->slots[index];
    struct sp_object *object = &ex->objects[index];
    struct sp_cell *cell;
    uint64_t start = sp_cycles();
    int records = SP_DRAIN_RECORDS;
    while (!ex->blocked && (sp_load_relaxed(&slot->word.low) & SP_SEALED_BIT) == 0
           && (cell = sp_executor_next(ex, slot)) != NULL) {
        sp_executor_begin(ex, slot, cell);
        object->suspended = (uint32_t)slot->mark;
        if (ex->turn(ex->context, index, cell) == SP_TURN_SUSPENDED) {
            sp_schedule_wait(ex->node, slot, index);
            return; /* the gate is kept (E1) */
        }
        object->suspended = 0;
        sp_executor_done(ex, slot, cell);
        if (--records == 0 || sp_cycles() - start > ex->budget_cycles)
            break;
    }
    sp_executor_end(ex, index);
}

static inline void sp_executor_run_object(struct sp_executor *ex, uint32_t index)
{
    ex->objects[index].queued = 0;
    if (!sp_gate_take(ex, index))
        return; /* stays Runnable, keeps its permit */
    if (!sp_schedule_start(&ex->slots[index])) {
        sp_gate_give(ex, ex->objects[index].gate, index);
        return;
    }
    sp_executor_look(ex); /* after Running, not before (E3) */
    sp_executor_drain(ex, index);
}

/* The end of a suspended turn; the caller has replied. False: not the turn that is suspended there. */
static inline bool sp_executor_finish(struct sp_executor *ex, uint32_t index, uint64_t turn)
{
    struct sp_slot *slot = &ex->slots[index];
    struct sp_object *object = &ex->objects[index];
    if (object->suspended == 0 || slot->turn != turn)
        return false;
    sp_schedule_resume(ex->node, slot, index);
    sp_executor_done(ex, slot, sp_arena_cell(&ex->arena, object->suspended));
    object->suspended = 0;
    sp_executor_look(ex); /* what was committed while it waited left no token (E3) */
    sp_executor_end(ex, index);
    return true;
}

/* Puts a record that came with a move into a lane of an object that nobody else knows yet; in order, past the
 * limits (it was within them at its source). False: no memory. */
static inline bool sp_executor_place(struct sp_executor *ex, uint32_t index, const struct sp_cell *head, const void *payload)
{
    struct sp_slot *slot = &ex->slots[index];
    enum sp_lane lane = sp_cell_lane(head);
    uint32_t unit = sp_arena_allocate(&ex->arena, head->length, 0);
    if (unit == 0)
        return false;
    struct sp_cell *cell = sp_arena_cell(&ex->arena, unit);
    *cell = *head;
    cell->next = 0;
    memcpy(sp_cell_payload(cell), payload, head->length);
    for (;;) {
        sp_pair now = { .low = sp_load_acquire(&slot->word.low), .high = sp_load_relaxed(&slot->word.high) };
        sp_pair next = { .low = now.low, .high = sp_fields_add(now.high, sp_charge(lane, head->length)) };
        if (sp_pair_compare_exchange(&slot->word, now, next))
            break;
    }
    sp_chain_append(ex, &slot->lanes[lane], unit);
    return true;
}

/* Lets an object with placed records run: Idle -> Runnable with a permit beyond the number if need be. */
static inline void sp_executor_open_object(struct sp_executor *ex, uint32_t index)
{
    struct sp_slot *slot = &ex->slots[index];
    sp_permit_take(ex->node, &ex->node->peers[ex->node->self], true);
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (sp_word_phase(now) == SP_IDLE) {
        if (!sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNABLE)))
            continue;
        sp_executor_queue(ex, index);
        return;
    }
    sp_permit_give(ex->node, &ex->node->peers[ex->node->self]);
}

/* Drops what an ending object has not run and frees its slot for the next tenant. */
static inline void sp_executor_vacate(struct sp_executor *ex, uint32_t index)
{
    struct sp_slot *slot = &ex->slots[index];
    for (int lane = 0; lane < 2; lane++) {
        while (slot->lanes[lane].first != 0) {
            uint32_t unit = slot->lanes[lane].first;
            sp_chain_drop_first(ex, &slot->lanes[lane]);
            sp_arena_free(&ex->arena, unit);
            sp_count(ex->node, SP_COUNT_DROPPED, 1);
        }
    }
    ex->objects[index].live = 0;
    slot->session = slot->client = slot->kind = 0;
    sp_store_relaxed(&slot->route, 0);
    sp_schedule_vacate(ex->node, slot, index);
    sp_waiters_ring(ex->node, slot);
    ex->free_list[ex->free_count++] = index;
}

/* Declares the shard parked and looks again; true: it may sleep. */
static inline bool sp_executor_park(struct sp_executor *ex)
{
    return sp_ready_count(&ex->ready) == 0 && sp_node_park(ex->node);
}

#endif
