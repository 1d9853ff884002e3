/* The lanes of an object: its accepted and not yet finished records, as chains of arena cells.
 *
 * Writer      the shard alone: a cell is complete before it is linked, and linked at the tail only.
 * Crash       `mark` names the record that has begun; `mark_done` tells whether it had ended (layout.h).
 * Invariants: A1 (arena.h), E2 (executor.h).
 */
#ifndef SP_LANE_H
#define SP_LANE_H

#include "objects.h"

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

/* Lets an object run whose records came without a producer that would have opened it (placed by a move, or linked
 * late for want of memory): Idle -> Runnable, with a permit beyond the number if need be. */
static inline void sp_executor_open_object(struct sp_executor *ex, uint32_t index)
{
    if (sp_schedule_open(ex->node, &ex->slots[index]))
        sp_executor_queue(ex, index);
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
    sp_book(ex->node, SP_BOOK_LINKED);
    if (sp_schedule_wanted(slot, true)) {
        sp_executor_queue(ex, index);
    } else {
        enum sp_phase phase = sp_word_phase(sp_load_relaxed(&slot->word.low));
        if (phase == SP_IDLE || phase == SP_FINALIZING) /* it was Idle: a producer that opened it since may be lost */
            sp_executor_open_object(ex, index);
    }
    return true;
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

/* Takes the record at the head of its lane out: one store returns the reservation and says that it is done (E2). */
static inline void sp_executor_remove(struct sp_executor *ex, struct sp_slot *slot, struct sp_cell *cell, enum sp_book book)
{
    enum sp_lane lane = sp_cell_lane(cell);
    uint32_t unit = (uint32_t)((uint64_t)((uint8_t *)cell - ex->arena.base) / SP_CELL_UNIT);
    uint64_t charge = cell->kind == SP_KIND_RECOVER ? 0 : sp_charge(lane, cell->length);
    sp_store_release(&slot->done, sp_fields_add(slot->done, charge));
    if (cell->kind != SP_KIND_RECOVER)
        sp_book(ex->node, book);
    sp_chain_drop_first(ex, &slot->lanes[lane]);
    if (lane == SP_LANE_APPLICATION)
        slot->attempts = 0;
    sp_store_release(&slot->mark, 0);
    sp_arena_free(&ex->arena, unit);
}

/* Ends the record at the head of its lane after its turn. */
static inline void sp_executor_done(struct sp_executor *ex, struct sp_slot *slot, struct sp_cell *cell, enum sp_book book)
{
    /* a recovery or a tick that went well says nothing about the message that kills the shard */
    if (cell->kind != SP_KIND_RECOVER && cell->kind != SP_KIND_TIMER && slot->deaths < SP_QUARANTINE_DEATHS)
        slot->deaths = 0;
    sp_executor_remove(ex, slot, cell, book);
}

/* Puts the recovery record before everything that is queued: nothing else is ever put there, and this one comes
 * before any turn of this shard. It is charged to no lane and stands in no book, so that a death in between leaves
 * nothing behind.
 * False: no memory. */
static inline bool sp_executor_place_recovery(struct sp_executor *ex, struct sp_slot *slot)
{
    struct sp_chain *chain = &slot->lanes[SP_LANE_LIFECYCLE];
    uint32_t unit = sp_arena_allocate(&ex->arena, 0, 0);
    if (unit == 0)
        return false;
    *sp_arena_cell(&ex->arena, unit) = (struct sp_cell){
        .next = chain->first, .kind = SP_KIND_RECOVER, .flags = SP_FLAG_LIFECYCLE,
        .producer = (uint16_t)ex->node->self, .position = UINT64_MAX,
    };
    if (chain->last == 0)
        chain->last = unit;
    __atomic_store_n(&chain->first, unit, __ATOMIC_RELEASE);
    slot->lifecycle_run = 0;
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
    cell->position = UINT64_MAX; /* of no ring: settle.h must not take it for a linked record */
    memcpy(sp_cell_payload(cell), payload, head->length);
    for (;;) {
        sp_pair now = { .low = sp_load_acquire(&slot->word.low), .high = sp_load_relaxed(&slot->word.high) };
        sp_pair next = { .low = now.low, .high = sp_fields_add(now.high, sp_charge(lane, head->length)) };
        if (sp_pair_compare_exchange(&slot->word, now, next))
            break;
    }
    sp_chain_append(ex, &slot->lanes[lane], unit);
    sp_book(ex->node, SP_BOOK_PLACED);
    return true;
}

#endif
