/* A node in one address space: segments, doorbells and each process's own view, put back as they were before each run. */
#ifndef WORLD_H
#define WORLD_H

#include "explorer.h"

static int world_bells[EXPLORER_COROUTINES];

static ssize_t world_write(int bell, const void *from, size_t length)
{
    (void)from;
    explorer_point(&world_bells[bell], false);
    world_bells[bell]++;
    return (ssize_t)length;
}

static ssize_t world_read(int bell, void *to, size_t length)
{
    (void)to;
    explorer_point(&world_bells[bell], false);
    world_bells[bell] = 0;
    return (ssize_t)length;
}

/* Private memory of the processes; given back all at once by the next run. */
#define WORLD_HEAP 65536
static uint8_t world_heap[WORLD_HEAP] __attribute__((aligned(64)));
static size_t world_heap_used;

static void *world_allocate(size_t count, size_t size)
{
    size_t bytes = (count * size + 63) & ~(size_t)63;
    if (world_heap_used + bytes > WORLD_HEAP)
        abort();
    void *memory = world_heap + world_heap_used;
    memset(memory, 0, bytes);
    world_heap_used += bytes;
    return memory;
}

static int world_clock(int id, struct timespec *now)
{
    static time_t seconds;
    (void)id;
    *now = (struct timespec){.tv_sec = ++seconds};
    return 0;
}

#define write(bell, from, length) world_write(bell, from, length)
#define read(bell, to, length) world_read(bell, to, length)
#define calloc(count, size) world_allocate(count, size)
#define malloc(size) world_allocate(1, size)
#define free(memory) ((void)(memory))
#define clock_gettime(id, now) world_clock(id, now)

#include "executor.h"

#include "adopt.h"
#include "directory.h"
#include "settle.h"

#undef write
#undef read
#undef calloc
#undef malloc
#undef free
#undef clock_gettime

#define WORLD_SUPERVISOR 0
#define WORLD_ACCEPTORS 3
#define WORLD_SHARD (1 + WORLD_ACCEPTORS)
#define WORLD_PROCESSES (2 + WORLD_ACCEPTORS)
#define WORLD_SEGMENTS (256 * 1024)
#define WORLD_ARENA (2 * SP_ARENA_PAGE)

/* Everything that a run may change, except the arena's cells, which nobody reads before they were written. */
static struct world {
    struct sp_node nodes[WORLD_PROCESSES];
    struct sp_executor ex;
    uint8_t segments[WORLD_SEGMENTS] __attribute__((aligned(4096)));
} world, world_at_start;

static uint8_t world_heap_at_start[WORLD_HEAP];
static size_t world_heap_used_at_start;
static size_t world_changing; /* bytes of struct world before the arena */

static const struct sp_geometry world_geometry_default = {
    .magic = SP_MAGIC, .version = SP_VERSION, .processes = WORLD_PROCESSES, .acceptors = WORLD_ACCEPTORS, .shards = 1,
    .slots = 3, .permits = 1, .lane_records = 100, .lifecycle_records = 4, .directory_entries = 4, .lane_bytes = 1 << 20,
    .lifecycle_bytes = 1 << 20, .link_bytes = 512, .infra_bytes = 512, .arena_bytes = WORLD_ARENA,
    .hash_key = {1, 2},
};

static uint64_t world_segment_size(const struct sp_geometry *g, uint32_t process)
{
    if (process == WORLD_SHARD)
        return sp_arena_offset(g) + g->arena_bytes;
    return sp_align(sp_slots_offset(g) + (process == 0 ? sp_directory_size(g) : 0), SP_PAGE);
}

/* A process's own view of the segments, as after its start. */
static void world_attach(uint32_t process)
{
    struct sp_node *node = &world.nodes[process];
    uint8_t *base = world.segments;
    memset(node, 0, sizeof *node);
    node->self = process;
    node->geometry = world_at_start.nodes[0].geometry;
    for (uint32_t i = 0; i < WORLD_PROCESSES; i++) {
        sp_node_attach_peer(node, i, base, world_segment_size(&node->geometry, i), (int)i);
        base += world_segment_size(&node->geometry, i);
    }
}

/* Makes the node; all rings begin at `position`, so that a run can meet their end. */
static void world_open(const struct sp_geometry *geometry, uint64_t position)
{
    world_at_start.nodes[0].geometry = *geometry;
    for (uint32_t process = 0; process < WORLD_PROCESSES; process++)
        world_attach(process);
    struct sp_node *node = &world.nodes[0];
    for (uint32_t consumer = 0; consumer < WORLD_PROCESSES; consumer++) {
        for (uint32_t producer = 0; producer < WORLD_PROCESSES; producer++) {
            for (int stream = 0; stream < 2; stream++) {
                struct sp_ring *ring = sp_link_ring(&node->peers[consumer], geometry, producer, (enum sp_stream)stream);
                ring->producer = ring->consumer = ring->linked = position;
            }
        }
    }
    for (uint32_t i = 0; i < geometry->slots; i++)
        node->peers[WORLD_SHARD].slots[i].word.low = UINT64_C(1) << SP_GENERATION_SHIFT;
    for (uint32_t process = 0; process < WORLD_PROCESSES; process++)
        world_attach(process);
    world_changing = (size_t)(node->peers[WORLD_SHARD].base + sp_arena_offset(geometry) - (uint8_t *)&world);
}

/* What there is now is what every run begins with. */
static void world_save(void)
{
    memcpy(&world_at_start, &world, world_changing);
    memcpy(world_heap_at_start, world_heap, world_heap_used);
    world_heap_used_at_start = world_heap_used;
}

static void world_reset(void)
{
    memcpy(&world, &world_at_start, world_changing);
    memcpy(world_heap, world_heap_at_start, world_heap_used_at_start);
    world_heap_used = world_heap_used_at_start;
    memset(world_bells, 0, sizeof world_bells);
}

static struct sp_slot *world_slot(uint32_t index) { return &world.nodes[0].peers[WORLD_SHARD].slots[index]; }
static struct sp_header *world_header(uint32_t process) { return world.nodes[0].peers[process].header; }
static struct sp_ring *world_ring(uint32_t producer, enum sp_stream stream)
{
    return sp_link_ring(&world.nodes[0].peers[WORLD_SHARD], &world.nodes[0].geometry, producer, stream);
}

#endif
