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
 *   E3  after the last drain of an object came a look that began after it was Running (S1); where that look was cut
 *       short for want of arena memory, linking the record opens the object again
 *   E4  an object is in the ready queue at most once
 */
#ifndef SP_EXECUTOR_H
#define SP_EXECUTOR_H

#include "gate.h"
#include "lane.h"

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

/* Takes everything over that was published when it began, so that a look is complete (E3) and ends: at most one ring. */
static inline void sp_executor_look_ring(struct sp_executor *ex, uint32_t producer, enum sp_stream stream)
{
    struct sp_reader *reader = &ex->node->readers[producer][stream];
    uint64_t end = sp_load_acquire(&reader->ring->producer);
    struct sp_record *record;
    reader->stalled = false;
    while (reader->position != end && sp_reader_next(reader, &record) == SP_READ_RECORD) {
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

/* Empties the links into the lanes, infrastructure first. Incomplete only where the arena is full (ex->stalled). */
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

/* After a drain: the object waits, goes to the tail, or is idle; a settled sealed one goes to `sealed`. */
static inline void sp_executor_end(struct sp_executor *ex, uint32_t index)
{
    struct sp_slot *slot = &ex->slots[index];
    uint32_t gate = ex->objects[index].gate;
    bool left = slot->lanes[0].first != 0 || slot->lanes[1].first != 0;
    switch (sp_schedule_end(ex->node, slot, index, left)) {
    case SP_END_AGAIN:
        sp_executor_queue(ex, index);
        break;
    case SP_END_SEALED:
        sp_executor_look(ex); /* the last publication may have been settled after our last look */
        if (!ex->stalled) {
            ex->sealed(ex->context, index);
            break;
        }
        /* its records may lie in a link that waits for memory: settled only when they are out */
        sp_schedule_again(slot);
        sp_executor_queue(ex, index);
        break;
    case SP_END_IDLE:
    case SP_END_FINALIZING:
        break;
    }
    /* behind the exchange that ended the drain: a load before it could pass the store of `done`, and a producer that
     * joined the waiters in between would find the lane full and sleep */
    if (sp_load_seq_cst(&slot->waiters) != 0)
        sp_waiters_ring(ex->node, slot);
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
        enum sp_turn turn = ex->turn(ex->context, index, cell);
        if (turn == SP_TURN_SUSPENDED) {
            sp_schedule_wait(ex->node, slot, index);
            return; /* the gate is kept (E1) */
        }
        object->suspended = 0;
        sp_executor_done(ex, slot, cell, turn == SP_TURN_FAILED ? SP_BOOK_FAILED : SP_BOOK_HANDLED);
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
static inline bool sp_executor_finish(struct sp_executor *ex, uint32_t index, uint64_t turn, enum sp_book book)
{
    struct sp_slot *slot = &ex->slots[index];
    struct sp_object *object = &ex->objects[index];
    if (object->suspended == 0 || slot->turn != turn)
        return false;
    sp_schedule_resume(ex->node, slot, index);
    sp_executor_done(ex, slot, sp_arena_cell(&ex->arena, object->suspended), book);
    object->suspended = 0;
    sp_executor_look(ex); /* what was committed while it waited left no token (E3) */
    sp_executor_end(ex, index);
    return true;
}

/* Drops what an ending object has not run and frees its slot for the next tenant. */
static inline void sp_executor_vacate(struct sp_executor *ex, uint32_t index)
{
    struct sp_slot *slot = &ex->slots[index];
    bool ending = ex->objects[index].ending != 0;
    for (int lane = 0; lane < 2; lane++) {
        while (slot->lanes[lane].first != 0) {
            uint32_t unit = slot->lanes[lane].first;
            bool counts = sp_arena_cell(&ex->arena, unit)->kind != SP_KIND_RECOVER;
            sp_chain_drop_first(ex, &slot->lanes[lane]);
            if (counts)
                sp_book(ex->node, ending ? SP_BOOK_UNRUN : SP_BOOK_MOVED);
            sp_arena_free(&ex->arena, unit);
            if (ending)
                sp_count(ex->node, SP_COUNT_DROPPED, 1);
        }
    }
    ex->objects[index].live = 0;
    slot->session = slot->client = slot->kind = slot->spot = slot->mark = 0;
    slot->deaths = slot->attempts = slot->life = 0;
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
