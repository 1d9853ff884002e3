/* Admission, permits and the schedule word: who may publish into an object, and who runs it.
 *
 * Layout
 *   slot.word.low, the schedule word
 *       bits 0-2  phase     3 dirty: committed since Running began     4 sealed
 *       bits 5-44 publications in flight, one bit per process     45-63 generation
 *   slot.word.high, the reservations (and slot.done, what was given back; same packing, each field modulo its size)
 *       bits 0-11 application records   12-33 application units   34-42 lifecycle records   43-60 lifecycle units
 *       a unit is SP_UNIT bytes; every record counts its payload plus SP_RECORD_CHARGE
 *   header.permits
 *       bits 0-23 in use (forced takes may exceed the capacity)     24-63 one flip bit per process
 *
 * Writer (producer p, one batch for one object)
 *   room in the own ring for the batch and one token: only p can use it up
 *   Idle object: take a permit, then Idle -> Finalizing with bit p and the reservation, by one exchange; who loses
 *   that race gives the permit back and joins. Other phases: bit p and the reservation by one exchange.
 *   Copy, publish the ring position: THE BATCH IS REAL. Then clear bit p: Finalizing becomes Runnable and owes a
 *   token; Running becomes dirty. The token goes into the same ring, then the doorbell rings (doorbell.h).
 *
 * Reader (the shard) takes a token only for an object that is Runnable and not queued: tokens are idempotent.
 *   Linking a record of a Finalizing object is also a token, so that a stopped producer delays only its own.
 *   Running is entered first and the links are looked at after it; it ends as Runnable (work left or dirty),
 *   sealed-and-settled, Finalizing (publication in flight, permit kept), or Idle (permit given back after it).
 *
 * Crash
 *   Before each exchange the process stores the exact step in its intent (or operation); the exchange changes its
 *   own bit. After its death: bit changed, it took place; bit unchanged, it did not (settle.h). All stores to an
 *   intent are releases: none moves across the change of step that gives it its meaning.
 *
 * Invariants
 *   S1  a batch whose position is published is followed by a drain that sees it
 *   S2  one executor at a time: only the winner of Runnable -> Running drains
 *   S3  Idle means: no published record unlinked or unrun, no bit in flight
 *   S4  permits in use >= objects that are Runnable, Running or Finalizing
 *   S5  reserved - done <= limit, per lane; both only grow (modulo)
 *   S6  a refusal leaves every word as it found it
 */
#ifndef SP_SCHEDULE_H
#define SP_SCHEDULE_H

#include "word.h"

/* One publication under way. */
struct sp_admission {
    uint64_t address;
    enum sp_lane lane;
    enum sp_stream stream;
    uint64_t charge;  /* of all records, from sp_charge */
    uint64_t bytes;   /* of all records in the ring, from sp_record_size */
    uint64_t largest; /* of them */
    bool forced;      /* lifecycle: takes its permit whatever the number in use */
    struct sp_peer *shard;
    struct sp_slot *slot;
    struct sp_writer *writer;
};

static inline void sp_intent_step(struct sp_intent *intent, enum sp_step step)
{
    sp_store_release(&intent->step, (uint64_t)step);
}

static inline void sp_intent_permit(struct sp_node *node, struct sp_peer *shard, enum sp_step step)
{
    sp_store_release(&node->intent->flip, sp_permit_next_flip(node, shard));
    sp_intent_step(node->intent, step);
}

/* Sets the own bit and the reservation in the object's word, with a permit if it was Idle; the intent's other fields
 * stand already. */
static inline enum sp_outcome sp_admission_enter(struct sp_node *node, struct sp_admission *a)
{
    struct sp_intent *intent = node->intent;
    uint64_t own = sp_in_flight(node->self);
    bool looked_again = false;
    /* Each failed exchange is another process's progress; a producer that is stopped holds up nobody here. */
    for (;;) {
        /* `done` first: an older one only makes the lane look fuller, a newer one would make it look overfull. */
        uint64_t done = sp_load_seq_cst(&a->slot->done);
        sp_pair now = { .low = sp_load_acquire(&a->slot->word.low), .high = sp_load_acquire(&a->slot->word.high) };
        if (sp_word_generation(now.low) != sp_address_generation(a->address))
            return SP_STALE;
        if ((now.low & SP_SEALED_BIT) != 0)
            return SP_SEALED;
        if (a->charge != 0 && !sp_lane_has_room(&node->geometry, now.high, done, a->charge)) {
            if (sp_load_seq_cst(&a->slot->done) != done)
                continue; /* room was made meanwhile */
            return SP_LANE_FULL;
        }
        sp_pair next = { .low = now.low | own, .high = sp_fields_add(now.high, a->charge) };
        if (sp_word_phase(now.low) != SP_IDLE) {
            sp_intent_step(intent, SP_STEP_JOIN);
            if (sp_pair_compare_exchange(&a->slot->word, now, next))
                return SP_ACCEPTED;
            sp_intent_step(intent, SP_STEP_NONE);
            continue;
        }
        sp_intent_permit(node, a->shard, SP_STEP_TAKE);
        if (!sp_permit_take(node, a->shard, a->forced)) {
            sp_intent_step(intent, SP_STEP_NONE);
            if (looked_again)
                return SP_SATURATED;
            looked_again = true; /* the object may have become runnable meanwhile: then no permit is needed */
            continue;
        }
        sp_intent_step(intent, SP_STEP_OPEN);
        next.low = sp_word_with_phase(next.low, SP_FINALIZING);
        if (sp_pair_compare_exchange(&a->slot->word, now, next))
            return SP_ACCEPTED;
        sp_intent_permit(node, a->shard, SP_STEP_GIVE);
        sp_permit_give(node, a->shard);
        sp_intent_step(intent, SP_STEP_NONE);
    }
}

static inline void sp_intent_begin(struct sp_node *node, const struct sp_admission *a)
{
    struct sp_intent *intent = node->intent;
    sp_store_release(&intent->address, a->address);
    sp_store_release(&intent->stream, (uint64_t)a->stream);
    sp_store_release(&intent->position, a->writer->position);
    sp_store_release(&intent->reserved, a->charge);
}

/* Begins a publication: on SP_ACCEPTED the caller writes exactly the records announced through
 * admission->writer, then calls sp_admission_commit. Any other outcome has changed nothing (S6). */
static inline enum sp_outcome sp_admission_begin(struct sp_node *node, struct sp_admission *a)
{
    a->shard = sp_node_shard(node, a->address);
    if (a->shard == NULL)
        return SP_STALE;
    uint32_t index = sp_address_index(a->address);
    if (index >= node->geometry.slots)
        return SP_STALE;
    a->slot = &a->shard->slots[index];
    a->writer = &a->shard->writers[a->stream];
    if (a->largest > a->writer->capacity / 4)
        return SP_TOO_BIG;
    if (sp_load_relaxed(&a->shard->header->closing) != 0 && a->lane == SP_LANE_APPLICATION)
        return SP_SHUTTING_DOWN;
    if (!sp_writer_fits(a->writer, a->bytes, a->largest, 0))
        return SP_LINK_FULL;
    sp_intent_begin(node, a);
    return sp_admission_enter(node, a);
}

static inline struct sp_record *sp_admission_record(struct sp_admission *a, uint32_t length, uint16_t kind)
{
    struct sp_record *record = sp_writer_claim(a->writer, length);
    record->kind = kind;
    record->flags = (uint16_t)((unsigned)a->lane << 15);
    record->target = a->address;
    return record;
}

#define SP_FLAG_LIFECYCLE 0x8000U

static inline void sp_token_write(struct sp_writer *writer, uint64_t address)
{
    struct sp_record *token = sp_writer_claim(writer, 0);
    token->kind = SP_KIND_TOKEN;
    token->flags = 0;
    token->target = address;
    token->a = token->b = 0;
    sp_writer_publish(writer);
}

/* Ends what sp_admission_enter began: clears the own bit. True: the object became Runnable, its token is owed. */
static inline bool sp_admission_settle(struct sp_node *node, struct sp_admission *a)
{
    uint64_t now = sp_load_acquire(&a->slot->word.low);
    for (;;) {
        bool owes_token = sp_word_phase(now) == SP_FINALIZING;
        sp_intent_step(node->intent, owes_token ? SP_STEP_COMMIT_RUN : SP_STEP_COMMIT_PLAIN);
        /* acq_rel: whoever finds the bit cleared also finds the ring position behind the records */
        if (sp_compare_exchange(&a->slot->word.low, &now, sp_word_committed(now, node->self)))
            return owes_token;
    }
}

/* Publishes the records written since begin. The doorbell is due afterwards: sp_node_ring_due. */
static inline void sp_admission_commit(struct sp_node *node, struct sp_admission *a)
{
    struct sp_intent *intent = node->intent;
    sp_store_release(&intent->end, a->writer->position);
    sp_intent_step(intent, SP_STEP_WRITE);
    sp_writer_publish(a->writer); /* the batch is real */
    if (sp_admission_settle(node, a))
        sp_token_write(a->writer, a->address);
    sp_intent_step(intent, SP_STEP_NONE);
    a->shard->bell_due = true;
}

/* The shard opens its own object: an admission without records, with a permit beyond the number if need be, so that
 * its death in between is settled as a producer's is. True: the caller queues the object, which is the token. */
static inline bool sp_schedule_open(struct sp_node *node, struct sp_slot *slot)
{
    struct sp_peer *self = &node->peers[node->self];
    uint64_t generation = sp_word_generation(sp_load_relaxed(&slot->word.low));
    struct sp_admission a = {
        .address = sp_address(node->self - 1 - node->geometry.acceptors, generation, (uint64_t)(slot - self->slots)),
        .lane = SP_LANE_LIFECYCLE, .stream = SP_STREAM_DATA, .forced = true, .shard = self, .slot = slot,
        .writer = &self->writers[SP_STREAM_DATA],
    };
    sp_intent_begin(node, &a);
    sp_store_release(&node->intent->end, a.writer->position);
    if (sp_admission_enter(node, &a) != SP_ACCEPTED)
        return false; /* sealed: its turn comes without this */
    bool opened = sp_admission_settle(node, &a);
    sp_intent_step(node->intent, SP_STEP_NONE);
    return opened;
}

/* After LANE_FULL or SEALED: asks to be rung when that may have changed. The caller tries once more after this
 * (the shard may have made room in between) and then waits for its doorbell. */
static inline void sp_waiters_join(struct sp_node *node, struct sp_slot *slot)
{
    sp_fetch_or(&slot->waiters, UINT64_C(1) << node->self);
}

/* The shard, after it made room: rings all that wait. The store of `done` and the load of `waiters` are seq_cst,
 * as are the producer's mark and its second look: one of the two sees the other. */
static inline void sp_waiters_ring(struct sp_node *node, struct sp_slot *slot)
{
    sp_store_seq_cst(&slot->done, sp_load_relaxed(&slot->done));
    if (sp_load_seq_cst(&slot->waiters) == 0)
        return;
    uint64_t waiters = sp_exchange(&slot->waiters, 0);
    for (uint32_t process = 0; process < node->geometry.processes; process++)
        if ((waiters >> process & 1) != 0)
            sp_doorbell_write(node->peers[process].doorbell);
}

/* The shard's side: linking a record or reading a token. True: the object must be queued now. */
static inline bool sp_schedule_wanted(struct sp_slot *slot, bool linked)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (linked && sp_word_phase(now) == SP_FINALIZING)
        if (sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNABLE)))
            return true;
    return sp_word_phase(now) == SP_RUNNABLE;
}

/* Runnable -> Running; the caller looks into its links after this, not before (S1). */
static inline bool sp_schedule_start(struct sp_slot *slot)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (sp_word_phase(now) == SP_RUNNABLE)
        if (sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNING) & ~SP_DIRTY))
            return true;
    return false;
}

static inline void sp_operation_announce(struct sp_node *node, enum sp_operation_kind kind, uint64_t slot)
{
    struct sp_peer *self = &node->peers[node->self];
    sp_store_release(&self->header->operation.word,
                     (uint64_t)kind | slot << 8 | sp_permit_next_flip(node, self) << 40);
}

static inline void sp_operation_end(struct sp_node *node)
{
    sp_store_release(&node->peers[node->self].header->operation.word, SP_OPERATION_NONE);
}

enum sp_end { SP_END_AGAIN, SP_END_FINALIZING, SP_END_IDLE, SP_END_SEALED };

/* Ends a drain. AGAIN: Runnable, the caller queues it. SEALED: still Running, nothing in flight, the caller looks
 * once more and then takes the lanes. */
static inline enum sp_end sp_schedule_end(struct sp_node *node, struct sp_slot *slot, uint64_t index, bool work_left)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    for (;;) {
        uint64_t next;
        enum sp_end end;
        bool in_flight = (now & SP_IN_FLIGHT_MASK) != 0;
        if ((now & SP_SEALED_BIT) != 0 && !in_flight && (now & SP_DIRTY) == 0)
            return SP_END_SEALED;
        if (((work_left && (now & SP_SEALED_BIT) == 0) || (now & SP_DIRTY) != 0)) {
            next = sp_word_with_phase(now & ~SP_DIRTY, SP_RUNNABLE);
            end = SP_END_AGAIN;
        } else if (in_flight) {
            next = sp_word_with_phase(now, SP_FINALIZING);
            end = SP_END_FINALIZING;
        } else {
            next = sp_word_with_phase(now, SP_IDLE);
            end = SP_END_IDLE;
            sp_operation_announce(node, SP_OPERATION_IDLE, index);
        }
        if (!sp_compare_exchange(&slot->word.low, &now, next)) {
            if (end == SP_END_IDLE)
                sp_operation_end(node); /* what ends otherwise must not look like this after a death */
            continue;
        }
        if (end == SP_END_IDLE) {
            /* after the phase, not before: else more objects run than permits say (S4) */
            sp_permit_give(node, &node->peers[node->self]);
            sp_operation_end(node);
        }
        return end;
    }
}

/* Running -> Runnable: not yet what it was to become; the caller queues it. */
static inline void sp_schedule_again(struct sp_slot *slot)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (!sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNABLE)))
        ;
}

/* Running -> Waiting: a handler is suspended; its mark and reservation stay, its permit is returned. */
static inline void sp_schedule_wait(struct sp_node *node, struct sp_slot *slot, uint64_t index)
{
    sp_operation_announce(node, SP_OPERATION_WAIT, index);
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (!sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_WAITING)))
        ;
    sp_permit_give(node, &node->peers[node->self]);
    sp_operation_end(node);
}

/* Waiting -> Running: its completion is there; the permit is taken whatever the number in use. */
static inline void sp_schedule_resume(struct sp_node *node, struct sp_slot *slot, uint64_t index)
{
    sp_operation_announce(node, SP_OPERATION_RESUME, index);
    sp_permit_take(node, &node->peers[node->self], true);
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (!sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNING) & ~SP_DIRTY))
        ;
    sp_operation_end(node);
}

/* Seals: later publications answer SEALED; an Idle object is opened, so that it gets its turn. True: queue it now. */
static inline bool sp_schedule_seal(struct sp_node *node, struct sp_slot *slot)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    for (;;) {
        if (sp_word_phase(now) == SP_IDLE) {
            sp_schedule_open(node, slot); /* Idle again only by the shard itself: at most once */
            now = sp_load_acquire(&slot->word.low);
        }
        bool wakes = sp_word_phase(now) == SP_FINALIZING;
        uint64_t next = (wakes ? sp_word_with_phase(now, SP_RUNNABLE) : now) | SP_SEALED_BIT;
        if (sp_compare_exchange(&slot->word.low, &now, next))
            return sp_word_phase(next) == SP_RUNNABLE;
    }
}

/* Running and sealed -> Runnable and open again: the move did not take place. The caller queues the object. */
static inline void sp_schedule_unseal(struct sp_slot *slot)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    while (!sp_compare_exchange(&slot->word.low, &now, sp_word_with_phase(now, SP_RUNNABLE) & ~(SP_SEALED_BIT | SP_DIRTY)))
        ;
}

/* Running and sealed -> Idle under the next generation: the object has left or ended; all old addresses are stale. */
static inline void sp_schedule_vacate(struct sp_node *node, struct sp_slot *slot, uint64_t index)
{
    uint64_t now = sp_load_acquire(&slot->word.low);
    uint64_t generation = (sp_word_generation(now) + 1) & SP_GENERATION_MASK;
    if (generation == 0)
        generation = 1;
    sp_operation_announce(node, SP_OPERATION_IDLE, index);
    /* reservations first: they may differ only while nothing can be admitted */
    sp_store_relaxed(&slot->done, sp_load_relaxed(&slot->word.high));
    while (!sp_compare_exchange(&slot->word.low, &now, generation << SP_GENERATION_SHIFT | (uint64_t)SP_IDLE))
        ;
    sp_permit_give(node, &node->peers[node->self]);
    sp_operation_end(node);
}

#endif
