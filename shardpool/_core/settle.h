/* What the supervisor does to shared memory after a process died, before its successor is started.
 *
 * The dead announced each step before it took it (schedule.h); its own bit in the word that the step changes says
 * whether it did. Everything here is done by the supervisor's one thread, while all other processes go on.
 *
 * Producer p   step from its intent        own bit says                     then
 *              TAKE                        flip reached                     permit back
 *              GIVE                        flip not reached                 permit back
 *              OPEN                        bit set / not                    cancel / permit back
 *              JOIN                        bit set                          cancel
 *              WRITE                       ring beyond / at its position    commit / cancel
 *              COMMIT_RUN, COMMIT_PLAIN    bit set                          commit
 *              COMMIT_RUN                  bit clear, no token in the ring  token
 *   cancel     takes bit and reservation back; the last to leave a Finalizing object makes it Idle (permit back), or
 *              Runnable if it is sealed (token). commit is what the producer would have done.
 *   token      goes through the supervisor's own link. No room: the step TOKEN is left in the intent, and the next call
 *              tries again. A shard that is being settled itself needs none: its successor queues what is Runnable.
 *
 * Shard        its own publications as a producer; then its announced operation
 *              IDLE, WAIT                  left Running, flip not reached   permit back
 *              RESUME                      flip reached, still Waiting      the permit of the next line is there
 *   each slot  the record whose end was cut is taken out of its lane; Waiting takes a permit; Running and Waiting become
 *              Runnable; a lane with records and nobody to run them (Idle, or Finalizing) too
 *   each ring  begins behind what hangs in lanes already
 *
 * Crash        The supervisor's own death ends the node (M-17): a half repair is never seen by anybody.
 * Invariants
 *   T1  afterwards no bit, permit, reservation or announced step of the dead process is left
 *   T2  a record is run exactly if the dead producer's ring position says that it is real
 *   T3  every process is rung whatever it declared (D3): the dead may have owed it a ring, or taken its declaration
 *   T4  the dead process's bits pass to its successor only after all this
 */
#ifndef SP_SETTLE_H
#define SP_SETTLE_H

#include "arena.h"
#include "directory.h"
#include "schedule.h"

static inline bool sp_settle_token(struct sp_node *node, struct sp_peer *shard, uint64_t address)
{
    struct sp_writer *writer = &shard->writers[SP_STREAM_INFRA];
    if (!sp_writer_fits(writer, SP_RECORD_HEAD, SP_RECORD_HEAD, 0))
        return false;
    sp_token_write(writer, address);
    (void)node;
    return true;
}

/* Takes a dead producer's bit and reservation back; true: a token is owed. */
static inline bool sp_settle_cancel(struct sp_node *node, struct sp_peer *shard, struct sp_slot *slot, uint32_t process,
                                    uint64_t reserved)
{
    for (;;) {
        sp_pair now = { .low = sp_load_acquire(&slot->word.low), .high = sp_load_acquire(&slot->word.high) };
        sp_pair next = { .low = now.low & ~sp_in_flight(process), .high = sp_fields_subtract(now.high, reserved) };
        bool last = sp_word_phase(now.low) == SP_FINALIZING && (next.low & SP_IN_FLIGHT_MASK) == 0;
        bool sealed = (now.low & SP_SEALED_BIT) != 0;
        if (last)
            next.low = sp_word_with_phase(next.low, sealed ? SP_RUNNABLE : SP_IDLE);
        if (!sp_pair_compare_exchange(&slot->word, now, next))
            continue;
        if (last && !sealed)
            sp_permit_give(node, shard); /* after the phase (S4) */
        return last && sealed;
    }
}

static inline bool sp_settle_commit(struct sp_slot *slot, uint32_t process)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (!sp_compare_exchange(&slot->word.low, &now, sp_word_committed(now, process)))
        ;
    return sp_word_phase(now) == SP_FINALIZING;
}

/* Finishes or takes back the one step that the dead producer had announced; true: a token is owed. */
static inline bool sp_settle_step(struct sp_node *node, struct sp_peer *shard, struct sp_slot *slot, uint32_t process)
{
    const struct sp_intent *intent = &node->peers[process].header->intent;
    const struct sp_ring *ring = sp_link_ring(shard, &node->geometry, process, (enum sp_stream)intent->stream);
    uint64_t producer = sp_load_acquire(&ring->producer);
    uint64_t reserved = sp_load_acquire(&intent->reserved);
    bool flip = (sp_load_acquire(&shard->header->permits) & SP_PERMIT_FLIP(process)) != 0;
    bool reached = flip == (sp_load_acquire(&intent->flip) != 0);
    bool inside = (sp_load_acquire(&slot->word.low) & sp_in_flight(process)) != 0;
    switch ((enum sp_step)sp_load_acquire(&intent->step)) {
    case SP_STEP_TAKE:
        if (reached)
            sp_permit_give(node, shard);
        return false;
    case SP_STEP_GIVE:
        if (!reached)
            sp_permit_give(node, shard);
        return false;
    case SP_STEP_OPEN:
        if (inside)
            return sp_settle_cancel(node, shard, slot, process, reserved);
        sp_permit_give(node, shard);
        return false;
    case SP_STEP_JOIN:
        return inside && sp_settle_cancel(node, shard, slot, process, reserved);
    case SP_STEP_WRITE:
        if (producer == intent->position) /* T2 */
            return sp_settle_cancel(node, shard, slot, process, reserved);
        return sp_settle_commit(slot, process);
    case SP_STEP_COMMIT_RUN:
        return inside ? sp_settle_commit(slot, process) : producer == intent->end;
    case SP_STEP_COMMIT_PLAIN:
        return inside && sp_settle_commit(slot, process);
    case SP_STEP_TOKEN:
        return true;
    case SP_STEP_NONE:
        return false;
    }
    return false;
}

/* Ends what a dead process had begun as a producer. False: a token found no room; call again later. */
static inline bool sp_settle_producer(struct sp_node *node, uint32_t process)
{
    struct sp_intent *intent = &node->peers[process].header->intent;
    uint64_t address = sp_load_acquire(&intent->address);
    struct sp_peer *shard = sp_node_shard(node, address);
    if (sp_load_acquire(&intent->step) == SP_STEP_NONE)
        return true;
    if (shard == NULL || sp_address_index(address) >= node->geometry.slots || intent->stream > SP_STREAM_INFRA) {
        sp_intent_step(intent, SP_STEP_NONE); /* no step was ever announced for such an object (L1) */
        return true;
    }
    bool owed = sp_settle_step(node, shard, &shard->slots[sp_address_index(address)], process);
    if (owed && shard != &node->peers[process] && !sp_settle_token(node, shard, address)) {
        sp_intent_step(intent, SP_STEP_TOKEN);
        return false;
    }
    sp_intent_step(intent, SP_STEP_NONE);
    return true;
}

/* The permit operation that a dead shard had announced; the slot whose resumption has its permit already, else `slots`. */
static inline uint64_t sp_settle_operation(struct sp_node *node, struct sp_peer *shard, uint32_t process)
{
    uint64_t word = sp_load_acquire(&shard->header->operation.word);
    uint64_t index = word >> 8 & UINT32_MAX;
    uint64_t resumed = node->geometry.slots;
    if ((word & 0xFF) == SP_OPERATION_NONE || index >= node->geometry.slots)
        return resumed;
    enum sp_phase phase = sp_word_phase(sp_load_acquire(&shard->slots[index].word.low));
    bool flip = (sp_load_acquire(&shard->header->permits) & SP_PERMIT_FLIP(process)) != 0;
    bool reached = flip == ((word >> 40 & 1) != 0);
    switch ((enum sp_operation_kind)(word & 0xFF)) {
    case SP_OPERATION_IDLE:
    case SP_OPERATION_WAIT:
        /* only the shard leaves Running: whatever phase it is now, the exchange took place */
        if (phase != SP_RUNNING && !reached)
            sp_permit_give(node, shard);
        break;
    case SP_OPERATION_RESUME:
        if (phase == SP_WAITING && reached)
            resumed = index;
        break;
    case SP_OPERATION_NONE:
        break;
    }
    sp_store_release(&shard->header->operation.word, SP_OPERATION_NONE);
    return resumed;
}

static inline struct sp_cell *sp_settle_cell(const struct sp_node *node, const struct sp_peer *shard, uint64_t unit)
{
    if (unit == 0 || unit * SP_CELL_UNIT + sizeof(struct sp_cell) > node->geometry.arena_bytes)
        return NULL;
    return (struct sp_cell *)(void *)(shard->base + sp_arena_offset(&node->geometry) + unit * SP_CELL_UNIT);
}

/* A record whose reservation was returned has ended: what its shard had not done any more is done here. A record that
 * had begun and not ended keeps its mark; its successor knows the object's policy. */
static inline void sp_settle_mark(const struct sp_node *node, const struct sp_peer *shard, struct sp_slot *slot)
{
    uint64_t mark = sp_load_acquire(&slot->mark);
    if (mark == 0 || slot->done == slot->mark_done)
        return;
    struct sp_cell *cell = sp_settle_cell(node, shard, mark);
    for (int lane = 0; cell != NULL && lane < 2; lane++) {
        struct sp_chain *chain = &slot->lanes[lane];
        if (chain->first != mark)
            continue;
        chain->first = cell->next;
        if (chain->first == 0)
            chain->last = 0;
    }
    sp_store_release(&slot->mark, 0);
}

/* Counts the death for the object whose turn held the CPU, if that had not ended: two in a row are no accident. */
static inline void sp_settle_suspect(const struct sp_node *node, struct sp_peer *shard)
{
    uint64_t index = sp_load_acquire(&shard->header->counters[SP_COUNT_RUNNING_SLOT]);
    if (index != 0 && index < node->geometry.slots && shard->slots[index].mark != 0 && shard->slots[index].deaths < UINT16_MAX)
        shard->slots[index].deaths++;
}

/* Makes a dead shard's object Runnable if it was running, or has records and nobody who will run it. */
static inline void sp_settle_phase(struct sp_node *node, struct sp_peer *shard, struct sp_slot *slot, bool has_permit)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    bool work = slot->lanes[0].first != 0 || slot->lanes[1].first != 0;
    for (;;) {
        enum sp_phase phase = sp_word_phase(now);
        bool stopped = phase == SP_RUNNING || phase == SP_WAITING;
        bool forgotten = work && (phase == SP_IDLE || phase == SP_FINALIZING);
        if (!stopped && !forgotten)
            break;
        if ((phase == SP_WAITING || phase == SP_IDLE) && !has_permit) {
            sp_permit_take(node, shard, true); /* before the phase (S4) */
            has_permit = true;
        }
        if (sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNABLE) & ~SP_DIRTY)) {
            if (forgotten && phase == SP_FINALIZING && has_permit)
                sp_permit_give(node, shard); /* a producer opened it meanwhile, with a permit of its own */
            return;
        }
    }
    if (has_permit)
        sp_permit_give(node, shard);
}

/* Whether the record at a ring's `linked` hangs in its object's lane already: it would be the lane's last cell. */
static inline bool sp_settle_is_linked(const struct sp_node *node, const struct sp_peer *shard,
                                       const struct sp_record *record, uint32_t producer, enum sp_stream stream,
                                       uint64_t position)
{
    uint32_t index = sp_address_index(record->target);
    if (record->kind >= SP_KIND_TOKEN || index >= node->geometry.slots)
        return false;
    enum sp_lane lane = (record->flags & SP_FLAG_LIFECYCLE) != 0 ? SP_LANE_LIFECYCLE : SP_LANE_APPLICATION;
    uint64_t cells = node->geometry.arena_bytes / SP_CELL_UNIT;
    struct sp_cell *last = NULL;
    struct sp_cell *cell = sp_settle_cell(node, shard, shard->slots[index].lanes[lane].first);
    for (; cell != NULL && cells > 0; cells--) {
        last = cell;
        cell = sp_settle_cell(node, shard, cell->next);
    }
    return last != NULL && last->producer == producer && last->stream == stream && last->position == position
        && last->kind == record->kind && last->length == record->length;
}

/* Lets a ring of a dead shard begin behind what its shard had taken over. */
static inline void sp_settle_ring(const struct sp_node *node, struct sp_peer *shard, uint32_t producer,
                                  enum sp_stream stream)
{
    const struct sp_geometry *g = &node->geometry;
    struct sp_reader reader;
    struct sp_record *record;
    struct sp_ring *ring = sp_link_ring(shard, g, producer, stream);
    sp_reader_attach(&reader, ring, stream == SP_STREAM_DATA ? g->link_bytes : g->infra_bytes);
    sp_reader_skip_linked(&reader);
    if (sp_reader_next(&reader, &record) == SP_READ_RECORD
        && sp_settle_is_linked(node, shard, record, producer, stream, reader.position))
        sp_reader_advance(&reader, record);
    sp_store_release(&ring->linked, reader.position);
    sp_store_release(&ring->consumer, reader.position);
}

/* Makes a dead shard's segment fit for its successor. Its publications were settled before (sp_settle_producer). */
static inline void sp_settle_shard(struct sp_node *node, uint32_t process)
{
    struct sp_peer *shard = &node->peers[process];
    uint64_t resumed = sp_settle_operation(node, shard, process);
    for (uint32_t i = 0; i < node->geometry.slots; i++) {
        sp_settle_mark(node, shard, &shard->slots[i]);
        sp_settle_phase(node, shard, &shard->slots[i], i == resumed);
    }
    sp_settle_suspect(node, shard);
    for (uint32_t producer = 0; producer < node->geometry.processes; producer++)
        for (int stream = 0; stream < 2; stream++)
            sp_settle_ring(node, shard, producer, (enum sp_stream)stream);
}

/* All of it. False: call again before the successor is started (T4). */
static inline bool sp_settle(struct sp_node *node, uint32_t process)
{
    struct sp_header *header = node->peers[process].header;
    bool settled = sp_settle_producer(node, process);
    if (settled) {
        if (process > node->geometry.acceptors)
            sp_settle_shard(node, process);
        sp_directory_release_dead(node, process);
        sp_store_release(&header->counters[SP_COUNT_RUNNING_SLOT], 0);
        sp_store_release(&header->counters[SP_COUNT_RUNNING_SINCE_NS], 0);
        sp_store_release(&header->incarnation, sp_load_relaxed(&header->incarnation) + 1);
        sp_store_seq_cst(&header->parked, 0);
    }
    for (uint32_t i = 0; i < node->geometry.processes; i++)
        sp_doorbell_write(node->peers[i].doorbell); /* T3 */
    return settled;
}

#endif
