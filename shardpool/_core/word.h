/* The packed words of an object and of a shard's permits: their fields, arithmetic and the permit exchanges.
 * The layout is at the head of schedule.h, which is where they are used. */
#ifndef SP_WORD_H
#define SP_WORD_H

#include "node.h"

enum sp_phase { SP_IDLE = 0, SP_RUNNABLE = 1, SP_RUNNING = 2, SP_WAITING = 3, SP_FINALIZING = 4 };

#define SP_PHASE_MASK UINT64_C(7)
#define SP_DIRTY (UINT64_C(1) << 3)
#define SP_SEALED_BIT (UINT64_C(1) << 4)
#define SP_IN_FLIGHT_SHIFT 5
#define SP_IN_FLIGHT_MASK (((UINT64_C(1) << SP_MAX_PROCESSES) - 1) << SP_IN_FLIGHT_SHIFT)
#define SP_GENERATION_SHIFT 45
#define SP_GENERATION_MASK ((UINT64_C(1) << 19) - 1)

#define SP_UNIT UINT64_C(64)
#define SP_RECORD_CHARGE UINT64_C(256)

#define SP_APPLICATION_RECORDS_MAX UINT64_C(4095)
#define SP_LIFECYCLE_RECORDS_MAX UINT64_C(511)
#define SP_APPLICATION_UNITS_SHIFT 12
#define SP_LIFECYCLE_RECORDS_SHIFT 34
#define SP_LIFECYCLE_UNITS_SHIFT 43
#define SP_APPLICATION_UNITS_MASK ((UINT64_C(1) << 22) - 1)
#define SP_LIFECYCLE_UNITS_MASK ((UINT64_C(1) << 18) - 1)
/* The highest bit of each field: adding and subtracting below them keeps carries inside the fields. */
#define SP_FIELD_TOPS (UINT64_C(1) << 11 | UINT64_C(1) << 33 | UINT64_C(1) << 42 | UINT64_C(1) << 60)

#define SP_PERMIT_MASK ((UINT64_C(1) << 24) - 1)
#define SP_PERMIT_FLIP(process) (UINT64_C(1) << (24 + (process)))

static inline enum sp_phase sp_word_phase(uint64_t word) { return (enum sp_phase)(word & SP_PHASE_MASK); }
static inline uint64_t sp_word_generation(uint64_t word) { return word >> SP_GENERATION_SHIFT; }
static inline uint64_t sp_in_flight(uint32_t process) { return UINT64_C(1) << (SP_IN_FLIGHT_SHIFT + process); }
static inline uint64_t sp_word_with_phase(uint64_t word, enum sp_phase phase)
{
    return (word & ~SP_PHASE_MASK) | (uint64_t)phase;
}

/* The word after `process` has committed: Finalizing becomes Runnable (and owes a token), Running becomes dirty. */
static inline uint64_t sp_word_committed(uint64_t word, uint32_t process)
{
    uint64_t next = word & ~sp_in_flight(process);
    if (sp_word_phase(word) == SP_FINALIZING)
        return sp_word_with_phase(next, SP_RUNNABLE);
    return sp_word_phase(word) == SP_RUNNING ? next | SP_DIRTY : next;
}

static inline uint64_t sp_fields_add(uint64_t a, uint64_t b)
{
    return ((a & ~SP_FIELD_TOPS) + (b & ~SP_FIELD_TOPS)) ^ ((a ^ b) & SP_FIELD_TOPS);
}

static inline uint64_t sp_fields_subtract(uint64_t a, uint64_t b)
{
    return ((a | SP_FIELD_TOPS) - (b & ~SP_FIELD_TOPS)) ^ ((a ^ ~b) & SP_FIELD_TOPS);
}

/* What one record of `length` payload bytes reserves. */
static inline uint64_t sp_charge(enum sp_lane lane, uint64_t length)
{
    uint64_t units = (length + SP_RECORD_CHARGE + SP_UNIT - 1) / SP_UNIT;
    return lane == SP_LANE_APPLICATION
        ? UINT64_C(1) | units << SP_APPLICATION_UNITS_SHIFT
        : UINT64_C(1) << SP_LIFECYCLE_RECORDS_SHIFT | units << SP_LIFECYCLE_UNITS_SHIFT;
}

/* Whether `charge` more stays within the limits (S5). An old `done` only makes the answer stricter. */
static inline bool sp_lane_has_room(const struct sp_geometry *g, uint64_t reserved, uint64_t done, uint64_t charge)
{
    uint64_t held = sp_fields_subtract(reserved, done);
    uint64_t records = (held & 0xFFF) + (charge & 0xFFF);
    uint64_t units = (held >> SP_APPLICATION_UNITS_SHIFT & SP_APPLICATION_UNITS_MASK)
        + (charge >> SP_APPLICATION_UNITS_SHIFT & SP_APPLICATION_UNITS_MASK);
    uint64_t lifecycle_records =
        (held >> SP_LIFECYCLE_RECORDS_SHIFT & 0x1FF) + (charge >> SP_LIFECYCLE_RECORDS_SHIFT & 0x1FF);
    uint64_t lifecycle_units = (held >> SP_LIFECYCLE_UNITS_SHIFT & SP_LIFECYCLE_UNITS_MASK)
        + (charge >> SP_LIFECYCLE_UNITS_SHIFT & SP_LIFECYCLE_UNITS_MASK);
    if ((charge & 0xFFF) != 0)
        return records <= g->lane_records && units * SP_UNIT <= g->lane_bytes;
    return lifecycle_records <= g->lifecycle_records && lifecycle_units * SP_UNIT <= g->lifecycle_bytes;
}

/* Takes one permit; refused at the capacity unless forced (lifecycle, completions). */
static inline bool sp_permit_take(struct sp_node *node, struct sp_peer *shard, bool forced)
{
    uint64_t now = sp_load_relaxed(&shard->header->permits);
    for (;;) {
        if (!forced && (now & SP_PERMIT_MASK) >= node->geometry.permits)
            return false;
        if (sp_compare_exchange(&shard->header->permits, &now, (now + 1) ^ SP_PERMIT_FLIP(node->self)))
            return true;
    }
}

static inline void sp_permit_give(struct sp_node *node, struct sp_peer *shard)
{
    uint64_t now = sp_load_relaxed(&shard->header->permits);
    while (!sp_compare_exchange(&shard->header->permits, &now, (now - 1) ^ SP_PERMIT_FLIP(node->self)))
        ;
}

static inline uint64_t sp_permit_next_flip(struct sp_node *node, struct sp_peer *shard)
{
    return (sp_load_relaxed(&shard->header->permits) & SP_PERMIT_FLIP(node->self)) == 0;
}

#endif
