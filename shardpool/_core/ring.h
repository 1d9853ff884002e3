/* A single-producer single-consumer byte ring: half of a link.
 *
 * Layout     struct sp_ring, then `capacity` bytes. A record is struct sp_record, its payload, padding to 8. A
 *            record never wraps: what is left at the end of the ring is filled by a pad record, for which the
 *            eight bytes that are always there suffice.
 * Writer     claims records behind its private position, copies, then publishes them all by one store of
 *            `producer` (release).
 * Reader     loads `producer` (acquire), reads records in order, stores `linked` behind each record it has taken
 *            over and `consumer` (release) once per batch, after which the writer may overwrite.
 * Crash      A writer killed before the store of `producer` has written nothing. A reader killed between taking a
 *            record over and the store of `linked` leaves one record that its successor recognises by the stamp
 *            (ring, position) in the lane's cell. Neither leaves the ring unusable.
 * Invariants
 *   R1  consumer <= linked <= producer <= consumer + capacity
 *   R2  positions and records are multiples of 8
 *   R3  a record that does not lie wholly before `producer` is corruption: the reader stops, it never follows it
 */
#ifndef SP_RING_H
#define SP_RING_H

#include <string.h>

#include "layout.h"

static inline uint64_t sp_record_size(uint64_t length) { return SP_RECORD_HEAD + ((length + 7) & ~(uint64_t)7); }

struct sp_writer {
    struct sp_ring *ring;
    uint8_t *bytes;
    uint64_t capacity;
    uint64_t position; /* private: claimed up to here */
    uint64_t consumer; /* last seen, may be old: then there is more room than believed */
};

struct sp_reader {
    struct sp_ring *ring;
    uint8_t *bytes;
    uint64_t capacity;
    uint64_t position; /* private: read up to here */
    uint64_t producer; /* last seen */
    bool stalled;      /* the record at `position` waits for memory: no reason to stay awake */
};

static inline void sp_writer_attach(struct sp_writer *w, struct sp_ring *ring, uint64_t capacity)
{
    w->ring = ring;
    w->bytes = (uint8_t *)(ring + 1);
    w->capacity = capacity;
    w->position = sp_load_relaxed(&ring->producer);
    w->consumer = sp_load_acquire(&ring->consumer);
}

static inline void sp_reader_attach(struct sp_reader *r, struct sp_ring *ring, uint64_t capacity)
{
    r->ring = ring;
    r->bytes = (uint8_t *)(ring + 1);
    r->capacity = capacity;
    r->position = sp_load_relaxed(&ring->consumer);
    r->producer = r->position;
    r->stalled = false;
}

/* Whether `bytes` of records, the largest of `largest` bytes, and a token fit, wherever the ring's end falls. */
static inline bool sp_writer_fits(struct sp_writer *w, uint64_t bytes, uint64_t largest, uint64_t keep)
{
    uint64_t need = bytes + largest + 2 * SP_RECORD_HEAD + keep;
    if (w->position + need - w->consumer <= w->capacity)
        return true;
    /* acquire: pairs with sp_reader_release; without it we could overwrite what is still being read */
    w->consumer = sp_load_acquire(&w->ring->consumer);
    return w->position + need - w->consumer <= w->capacity;
}

/* Next place for a record; the caller has made sure that it fits. Not visible before sp_writer_publish. */
static inline struct sp_record *sp_writer_claim(struct sp_writer *w, uint32_t length)
{
    uint64_t size = sp_record_size(length);
    uint64_t offset = w->position & (w->capacity - 1);
    uint64_t left = w->capacity - offset;
    if (size > left) {
        struct sp_record *pad = (struct sp_record *)(void *)(w->bytes + offset);
        pad->length = (uint32_t)(left - 8);
        pad->kind = SP_KIND_PAD;
        pad->flags = 0;
        w->position += left;
        offset = 0;
    }
    struct sp_record *record = (struct sp_record *)(void *)(w->bytes + offset);
    record->length = length;
    w->position += size;
    return record;
}

static inline uint8_t *sp_record_payload(struct sp_record *record) { return (uint8_t *)(record + 1); }

/* release: pairs with the acquire in sp_reader_next; without it the reader may see a position before the bytes. */
static inline void sp_writer_publish(struct sp_writer *w) { sp_store_release(&w->ring->producer, w->position); }

/* Forgets what was claimed since the last publish. */
static inline void sp_writer_abort(struct sp_writer *w) { w->position = sp_load_relaxed(&w->ring->producer); }

enum sp_read { SP_READ_RECORD, SP_READ_EMPTY, SP_READ_CORRUPT };

/* The record at the reader's position; sp_reader_advance goes behind it. */
static inline enum sp_read sp_reader_next(struct sp_reader *r, struct sp_record **out)
{
    for (;;) {
        if (r->position == r->producer) {
            r->producer = sp_load_acquire(&r->ring->producer);
            if (r->position == r->producer)
                return SP_READ_EMPTY;
        }
        uint64_t available = r->producer - r->position;
        uint64_t offset = r->position & (r->capacity - 1);
        uint64_t left = r->capacity - offset;
        if (available > r->capacity || (available & 7) != 0)
            return SP_READ_CORRUPT;
        struct sp_record *record = (struct sp_record *)(void *)(r->bytes + offset);
        if (record->kind == SP_KIND_PAD) {
            if (left > available || record->length != left - 8)
                return SP_READ_CORRUPT;
            r->position += left;
            continue;
        }
        uint64_t size = sp_record_size(record->length);
        if (size > available || size > left)
            return SP_READ_CORRUPT; /* R3 */
        *out = record;
        return SP_READ_RECORD;
    }
}

static inline void sp_reader_advance(struct sp_reader *r, const struct sp_record *record)
{
    r->position += sp_record_size(record->length);
}

/* Goes behind what a consumer that died had dealt with and not given back yet. */
static inline void sp_reader_skip_linked(struct sp_reader *r)
{
    uint64_t published = sp_load_acquire(&r->ring->producer) - r->position;
    uint64_t linked = sp_load_acquire(&r->ring->linked) - r->position;
    if (linked <= published) /* else `consumer` is behind a pad that `linked` is not (R1) */
        r->position += linked;
    r->producer = r->position; /* what was seen before may lie behind it by now */
}

/* Gives everything before the reader's position back to the writer; true if the writer waits for room. */
static inline bool sp_reader_release(struct sp_reader *r)
{
    if (sp_load_relaxed(&r->ring->consumer) == r->position)
        return false;
    /* seq_cst with the load of wanted below: pairs with sp_writer_want, one of the two sees the other */
    sp_store_seq_cst(&r->ring->consumer, r->position);
    return sp_load_seq_cst(&r->ring->wanted) != 0 && sp_exchange(&r->ring->wanted, 0) != 0;
}

/* Asks to be rung when room appears; true if there is room for `bytes` by now after all. */
static inline bool sp_writer_want(struct sp_writer *w, uint64_t bytes)
{
    sp_store_seq_cst(&w->ring->wanted, 1);
    w->consumer = sp_load_seq_cst(&w->ring->consumer);
    return w->position + bytes - w->consumer <= w->capacity;
}

#endif
