/* The headers as a library for ctypes: thin functions for tests/unit, no logic of their own. */
#include "executor.h"

#include "adopt.h"
#include "directory.h"
#include "settle.h"

/* Ring */

struct ring_pair {
    struct sp_ring *ring;
    struct sp_writer writer;
    struct sp_reader reader;
};

struct ring_pair *ring_open(uint64_t capacity, uint64_t position)
{
    struct ring_pair *pair = calloc(1, sizeof *pair);
    pair->ring = calloc(1, sizeof *pair->ring + capacity);
    pair->ring->producer = pair->ring->consumer = pair->ring->linked = position;
    sp_writer_attach(&pair->writer, pair->ring, capacity);
    sp_reader_attach(&pair->reader, pair->ring, capacity);
    return pair;
}

void ring_close(struct ring_pair *pair)
{
    free(pair->ring);
    free(pair);
}

uint8_t *ring_bytes(struct ring_pair *pair) { return pair->writer.bytes; }
uint64_t ring_position(struct ring_pair *pair) { return pair->writer.position; }

/* Writes one record if it and a token fit. */
bool ring_write(struct ring_pair *pair, const uint8_t *payload, uint32_t length)
{
    uint64_t size = sp_record_size(length);
    if (!sp_writer_fits(&pair->writer, size, size, 0))
        return false;
    struct sp_record *record = sp_writer_claim(&pair->writer, length);
    record->kind = SP_KIND_FRAME;
    record->flags = 0;
    memcpy(sp_record_payload(record), payload, length);
    return true;
}

void ring_token(struct ring_pair *pair) { sp_token_write(&pair->writer, 1); }
void ring_publish(struct ring_pair *pair) { sp_writer_publish(&pair->writer); }
void ring_abort(struct ring_pair *pair) { sp_writer_abort(&pair->writer); }

/* The next record's kind, its payload's length in *length; -1: empty, -2: corrupt. */
int ring_read(struct ring_pair *pair, uint8_t *payload, uint32_t *length)
{
    struct sp_record *record;
    switch (sp_reader_next(&pair->reader, &record)) {
    case SP_READ_EMPTY:
        return -1;
    case SP_READ_CORRUPT:
        return -2;
    case SP_READ_RECORD:
        break;
    }
    *length = record->length;
    memcpy(payload, sp_record_payload(record), record->length);
    int kind = record->kind;
    sp_reader_advance(&pair->reader, record);
    return kind;
}

bool ring_release(struct ring_pair *pair) { return sp_reader_release(&pair->reader); }
bool ring_want(struct ring_pair *pair, uint64_t bytes) { return sp_writer_want(&pair->writer, bytes); }

/* Arena */

struct sp_arena *arena_open(uint64_t bytes)
{
    struct sp_arena *arena = calloc(1, sizeof *arena);
    uint8_t *base = aligned_alloc(4096, bytes);
    sp_arena_open(arena, base, bytes);
    return arena;
}

void arena_close(struct sp_arena *arena)
{
    free(arena->base);
    sp_arena_close(arena);
    free(arena);
}

uint32_t arena_allocate(struct sp_arena *arena, uint32_t length, uint32_t keep)
{
    uint32_t unit = sp_arena_allocate(arena, length, keep);
    if (unit != 0)
        *sp_arena_cell(arena, unit) = (struct sp_cell){.length = length};
    return unit;
}

void arena_free(struct sp_arena *arena, uint32_t unit) { sp_arena_free(arena, unit); }
uint32_t arena_free_pages(struct sp_arena *arena) { return arena->free_pages; }

/* A second arena over the same bytes, as a successor makes it from the cells that hang in lanes; the number kept. */
struct sp_arena *arena_adopt(struct sp_arena *from, const uint32_t *units, uint32_t count, uint32_t *kept)
{
    struct sp_arena *arena = calloc(1, sizeof *arena);
    uint64_t bytes = from->pages * SP_ARENA_PAGE;
    uint64_t *used = calloc(bytes / SP_CELL_UNIT / 64, sizeof *used);
    sp_arena_open(arena, from->base, bytes);
    for (uint32_t i = 0; i < count; i++)
        *kept += sp_arena_keep(arena, used, units[i]);
    sp_arena_free_rest(arena, used);
    free(used);
    sp_arena_close(from);
    free(from);
    return arena;
}

/* Words */

uint64_t fields_add(uint64_t a, uint64_t b) { return sp_fields_add(a, b); }
uint64_t fields_subtract(uint64_t a, uint64_t b) { return sp_fields_subtract(a, b); }
uint64_t charge(int lane, uint64_t length) { return sp_charge((enum sp_lane)lane, length); }

bool has_room(uint32_t lane_records, uint64_t lane_bytes, uint32_t lifecycle_records, uint64_t lifecycle_bytes,
              uint64_t reserved, uint64_t done, uint64_t added)
{
    struct sp_geometry g = {.lane_records = lane_records, .lane_bytes = lane_bytes,
                            .lifecycle_records = lifecycle_records, .lifecycle_bytes = lifecycle_bytes};
    return sp_lane_has_room(&g, reserved, done, added);
}

uint64_t siphash(const uint64_t *key, const uint8_t *bytes, size_t length) { return sp_siphash(key, bytes, length); }

/* A node of a supervisor, an acceptor and a shard, without doorbells. */

struct small_node {
    struct sp_node nodes[3];
    uint8_t *memory;
};

struct small_node *node_open(uint32_t permits, uint32_t lane_records, uint64_t infra_bytes)
{
    struct sp_geometry g = {
        .magic = SP_MAGIC, .version = SP_VERSION, .processes = 3, .acceptors = 1, .shards = 1, .slots = 4,
        .permits = permits, .lane_records = lane_records, .lifecycle_records = 4, .directory_entries = 16,
        .lane_bytes = 1 << 20, .lifecycle_bytes = 1 << 20, .link_bytes = 4096, .infra_bytes = infra_bytes,
        .arena_bytes = SP_ARENA_PAGE, .hash_key = {5, 6},
    };
    struct small_node *node = calloc(1, sizeof *node);
    uint64_t size = sp_arena_offset(&g) + g.arena_bytes + sp_directory_size(&g);
    node->memory = aligned_alloc(4096, 3 * sp_align(size, 4096));
    memset(node->memory, 0, 3 * sp_align(size, 4096));
    for (uint32_t self = 0; self < 3; self++) {
        node->nodes[self].self = self;
        node->nodes[self].geometry = g;
        for (uint32_t peer = 0; peer < 3; peer++)
            sp_node_attach_peer(&node->nodes[self], peer, node->memory + peer * sp_align(size, 4096), size, -1);
    }
    for (uint32_t i = 0; i < g.slots; i++)
        node->nodes[0].peers[2].slots[i].word.low = UINT64_C(1) << SP_GENERATION_SHIFT;
    return node;
}

void node_close(struct small_node *node)
{
    free(node->memory);
    free(node);
}

static struct sp_slot *slot_of(struct small_node *node, uint32_t slot) { return &node->nodes[0].peers[2].slots[slot]; }

uint64_t node_word(struct small_node *node, uint32_t slot) { return slot_of(node, slot)->word.low; }
void node_set_word(struct small_node *node, uint32_t slot, uint64_t word) { slot_of(node, slot)->word.low = word; }
uint64_t node_held(struct small_node *node, uint32_t slot)
{
    return sp_fields_subtract(slot_of(node, slot)->word.high, slot_of(node, slot)->done);
}
uint64_t node_permits(struct small_node *node) { return node->nodes[0].peers[2].header->permits & SP_PERMIT_MASK; }
uint64_t node_step(struct small_node *node, uint32_t process) { return node->nodes[0].peers[process].header->intent.step; }
void node_set_intent(struct small_node *node, uint32_t process, uint64_t step, uint64_t address)
{
    struct sp_intent *intent = &node->nodes[0].peers[process].header->intent;
    intent->address = address;
    intent->step = step;
}

/* As far as `until`: 0 begin, 1 commit. The outcome. */
int node_publish(struct small_node *node, uint32_t process, uint64_t address, int lane, int until)
{
    struct sp_admission a = {
        .address = address, .lane = (enum sp_lane)lane,
        .stream = lane == SP_LANE_LIFECYCLE ? SP_STREAM_INFRA : SP_STREAM_DATA, .forced = lane == SP_LANE_LIFECYCLE,
        .charge = sp_charge((enum sp_lane)lane, 8), .bytes = sp_record_size(8), .largest = sp_record_size(8),
    };
    enum sp_outcome outcome = sp_admission_begin(&node->nodes[process], &a);
    if (outcome != SP_ACCEPTED || until == 0)
        return (int)outcome;
    struct sp_record *record = sp_admission_record(&a, 8, SP_KIND_CUSTOM);
    record->a = record->b = 0;
    memset(sp_record_payload(record), 0, 8);
    sp_admission_commit(&node->nodes[process], &a);
    return (int)outcome;
}

/* Fills a link with tokens of nobody; the number written. */
int node_fill(struct small_node *node, uint32_t process, int stream)
{
    struct sp_writer *writer = &node->nodes[process].peers[2].writers[stream];
    int count = 0;
    for (; sp_writer_fits(writer, SP_RECORD_HEAD, SP_RECORD_HEAD, 0); count++)
        sp_token_write(writer, 0);
    return count;
}

/* What the shard finds in a link: the number of records of a kind; all are taken. */
int node_take(struct small_node *node, uint32_t process, int stream, int kind)
{
    struct sp_reader *reader = &node->nodes[2].readers[process][stream];
    struct sp_record *record;
    int count = 0;
    while (sp_reader_next(reader, &record) == SP_READ_RECORD) {
        count += record->kind == kind && record->target != 0;
        sp_reader_advance(reader, record);
    }
    sp_store_relaxed(&reader->ring->linked, reader->position);
    sp_reader_release(reader);
    return count;
}

bool node_start(struct small_node *node, uint32_t slot) { return sp_schedule_start(slot_of(node, slot)); }
int node_end(struct small_node *node, uint32_t slot, bool work)
{
    return (int)sp_schedule_end(&node->nodes[2], slot_of(node, slot), slot, work);
}
void node_wait(struct small_node *node, uint32_t slot) { sp_schedule_wait(&node->nodes[2], slot_of(node, slot), slot); }
void node_resume(struct small_node *node, uint32_t slot) { sp_schedule_resume(&node->nodes[2], slot_of(node, slot), slot); }
bool node_seal(struct small_node *node, uint32_t slot) { return sp_schedule_seal(&node->nodes[2], slot_of(node, slot)); }
void node_vacate(struct small_node *node, uint32_t slot) { sp_schedule_vacate(&node->nodes[2], slot_of(node, slot), slot); }
bool node_settle_producer(struct small_node *node, uint32_t process)
{
    return sp_settle_producer(&node->nodes[0], process);
}
void node_settle_shard(struct small_node *node) { sp_settle_shard(&node->nodes[0], 2); }
