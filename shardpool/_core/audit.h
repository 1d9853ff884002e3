/* Do a shard's books balance? Looks into its segment from outside, and changes nothing.
 *
 * Reader      any process, at any time, while the shard runs, is stopped, or is dead.
 * Layout      what it looks at is in layout.h: books, lanes, links, slot words, permits; the directory.
 * How         The shard's own writes are seen twice: where they differ the shard moved meanwhile, and nothing is judged
 *             but what cannot be (`moved`). Producers may go on: a slot is judged only if its word, in which each of
 *             them sets its bit first, was the same before and after, and no bit in it was set.
 * Invariants
 *   B1  the books of a shard that does not move are at most one entry apart from its lanes (layout.h, enum sp_book)
 *   B2  an object's reservations are the records in its lanes and in the links
 *   B3  permits in use are the objects that are Runnable, Running or Finalizing (S4), but for takes under way
 *   B4  a route in the directory leads to an object of that generation
 */
#ifndef SP_AUDIT_H
#define SP_AUDIT_H

#include <stdlib.h>

#include "arena.h"
#include "directory.h"
#include "schedule.h"

struct sp_audit_slot {
    uint64_t low;
    uint64_t high;
    uint64_t done;
    uint32_t found; /* records in lanes and links */
    uint32_t damaged;
};

struct sp_audit {
    uint64_t books[SP_BOOKS];
    uint64_t objects;
    uint64_t in_lanes;
    uint64_t in_links;
    uint64_t judged;    /* slots */
    uint64_t off;       /* ... whose reservations are not their records (B2) */
    uint64_t first_off; /* address of one of them */
    uint64_t damaged;   /* lanes that lead to no cell */
    uint64_t permits;
    uint64_t permits_needed;
    uint64_t routes;
    uint64_t stray_routes; /* that lead to nobody (B4) */
    bool moved;
};

static inline uint64_t sp_audit_held(const struct sp_audit_slot *slot)
{
    uint64_t held = sp_fields_subtract(slot->high, slot->done);
    return (held & SP_APPLICATION_RECORDS_MAX) + (held >> SP_LIFECYCLE_RECORDS_SHIFT & SP_LIFECYCLE_RECORDS_MAX);
}

/* Records of one lane; a lane that a live shard changes under our eyes may lead anywhere, so no step is trusted. */
static inline uint64_t sp_audit_lane(const struct sp_node *node, const struct sp_peer *shard, uint32_t unit, bool *damaged)
{
    const struct sp_geometry *g = &node->geometry;
    uint64_t most = (uint64_t)g->lane_records + g->lifecycle_records + 4096; /* placed ones may exceed the limits */
    uint64_t count = 0;
    while (unit != 0) {
        uint64_t offset = (uint64_t)unit * SP_CELL_UNIT;
        if (offset + sizeof(struct sp_cell) > g->arena_bytes || count == most) {
            *damaged = true;
            return count;
        }
        const struct sp_cell *cell = (const void *)(shard->base + sp_arena_offset(g) + offset);
        count += cell->kind != SP_KIND_RECOVER;
        unit = __atomic_load_n(&cell->next, __ATOMIC_ACQUIRE);
    }
    return count;
}

/* Counts the records of one link that no lane has yet. False: the shard went past where we read. */
static inline bool sp_audit_link(const struct sp_node *node, struct sp_peer *shard, uint32_t producer, enum sp_stream stream,
                                 struct sp_audit_slot *slots, struct sp_audit *audit)
{
    const struct sp_geometry *g = &node->geometry;
    struct sp_reader reader;
    struct sp_record *record;
    struct sp_ring *ring = sp_link_ring(shard, g, producer, stream);
    sp_reader_attach(&reader, ring, stream == SP_STREAM_DATA ? g->link_bytes : g->infra_bytes);
    uint64_t linked = sp_load_acquire(&ring->linked);
    sp_reader_skip_linked(&reader);
    uint64_t end = sp_load_acquire(&ring->producer);
    while (reader.position != end && sp_reader_next(&reader, &record) == SP_READ_RECORD) {
        uint32_t index = sp_address_index(record->target);
        if (record->kind < SP_KIND_TOKEN && index < g->slots
            && sp_word_generation(slots[index].low) == sp_address_generation(record->target)) {
            slots[index].found++;
            audit->in_links++;
        }
        sp_reader_advance(&reader, record);
        if (reader.position - end < (UINT64_C(1) << 63) && reader.position != end)
            break; /* over a record that was published since */
    }
    return sp_load_acquire(&ring->linked) == linked;
}

static inline void sp_audit_look(const struct sp_peer *shard, uint32_t index, struct sp_audit_slot *slot)
{
    const struct sp_slot *there = &shard->slots[index];
    slot->low = sp_load_acquire(&there->word.low);
    slot->high = sp_load_acquire(&there->word.high);
    slot->done = sp_load_acquire(&there->done);
}

static inline void sp_audit_judge(const struct sp_node *node, const struct sp_peer *shard, struct sp_audit_slot *slots,
                                  uint32_t number, struct sp_audit *audit)
{
    for (uint32_t i = 0; i < node->geometry.slots; i++) {
        struct sp_audit_slot now;
        sp_audit_look(shard, i, &now);
        bool still = now.low == slots[i].low && now.high == slots[i].high && (now.low & SP_IN_FLIGHT_MASK) == 0;
        if (now.done != slots[i].done)
            audit->moved = true;
        enum sp_phase phase = sp_word_phase(now.low);
        audit->permits_needed += phase == SP_RUNNABLE || phase == SP_RUNNING || phase == SP_FINALIZING;
        audit->objects += shard->slots[i].kind != 0;
        audit->damaged += slots[i].damaged;
        if (!still)
            continue;
        audit->judged++;
        if (sp_audit_held(&slots[i]) != slots[i].found) {
            audit->first_off = sp_address(number, sp_word_generation(now.low), i);
            audit->off++;
        }
    }
}

static inline void sp_audit_routes(const struct sp_node *node, const struct sp_peer *shard, uint32_t number,
                                   struct sp_audit *audit)
{
    for (uint32_t place = 0; place < node->geometry.directory_entries; place++) {
        struct sp_entry *entry = sp_directory_entry(node, place);
        uint64_t state = sp_load_acquire(&entry->state);
        uint64_t route = sp_load_acquire(&entry->route);
        if (sp_entry_state(state) != SP_ENTRY_READY || sp_address_number(route) != number)
            continue;
        uint32_t index = sp_address_index(route);
        audit->routes++;
        bool alive = index < node->geometry.slots && shard->slots[index].kind != 0
            && sp_word_generation(sp_load_acquire(&shard->slots[index].word.low)) == sp_address_generation(route);
        if (!alive && sp_load_acquire(&entry->state) == state)
            audit->stray_routes++;
    }
}

/* False: no memory. */
static inline bool sp_audit_shard(struct sp_node *node, uint32_t process, struct sp_audit *audit)
{
    const struct sp_geometry *g = &node->geometry;
    struct sp_peer *shard = &node->peers[process];
    uint32_t number = process - 1 - g->acceptors;
    struct sp_audit_slot *slots = calloc(g->slots, sizeof *slots);
    *audit = (struct sp_audit){0};
    if (slots == NULL)
        return false;
    for (int book = 0; book < SP_BOOKS; book++)
        audit->books[book] = sp_load_acquire(&shard->header->books[book]);
    for (uint32_t i = 0; i < g->slots; i++)
        sp_audit_look(shard, i, &slots[i]);
    for (uint32_t i = 0; i < g->slots; i++)
        for (int lane = 0; lane < 2; lane++) {
            bool damaged = false;
            uint64_t count = sp_audit_lane(node, shard, __atomic_load_n(&shard->slots[i].lanes[lane].first, __ATOMIC_ACQUIRE),
                                           &damaged);
            slots[i].found += (uint32_t)count;
            slots[i].damaged += damaged;
            audit->in_lanes += count;
        }
    for (uint32_t producer = 0; producer < g->processes; producer++)
        for (int stream = 0; stream < 2; stream++)
            if (!sp_audit_link(node, shard, producer, (enum sp_stream)stream, slots, audit))
                audit->moved = true;
    sp_audit_judge(node, shard, slots, number, audit);
    audit->permits = sp_load_acquire(&shard->header->permits) & SP_PERMIT_MASK;
    for (int book = 0; book < SP_BOOKS; book++)
        if (sp_load_acquire(&shard->header->books[book]) != audit->books[book])
            audit->moved = true;
    sp_audit_routes(node, shard, number, audit);
    free(slots);
    return true;
}

#endif
