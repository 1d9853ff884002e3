/* Real threads over the real headers, for ThreadSanitizer (M-19): producers with small lanes and links, one shard.
 *
 *   threads [PRODUCERS=3] [MESSAGES=20000]
 *
 * Every message that was accepted runs once, in its sender's order; at the end nothing is held. Doorbells are eventfds.
 * Claims of one id race in the directory at the same time.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "executor.h"

#include "directory.h"

#define PRODUCERS_MAX 6
#define OBJECTS 4U

static struct sp_geometry geometry = {
    .magic = SP_MAGIC, .version = SP_VERSION, .shards = 1, .slots = OBJECTS + 1, .permits = 3, .lane_records = 8,
    .lifecycle_records = 4, .directory_entries = 16, .lane_bytes = 1 << 16, .lifecycle_bytes = 1 << 16,
    .link_bytes = 4096, .infra_bytes = 4096, .arena_bytes = 4 * SP_ARENA_PAGE, .hash_key = {3, 4},
};
static struct sp_node nodes[PRODUCERS_MAX + 2];
static struct sp_executor ex;
static uint32_t producers = 3;
static uint64_t messages = 20000;
static uint64_t next_expected[PRODUCERS_MAX + 1][OBJECTS + 1]; /* the shard's thread alone */
static uint64_t ran;
static uint64_t accepted[PRODUCERS_MAX + 1];
static uint64_t created; /* owners of the contested id at this moment */
static int ended;

static void fail(const char *what)
{
    printf("FAILED: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void sleep_on(int bell)
{
    struct pollfd wait = {.fd = bell, .events = POLLIN};
    if (poll(&wait, 1, 10000) != 1)
        fail("D1: slept ten seconds");
}

static enum sp_outcome publish(struct sp_node *node, uint32_t target, uint64_t number)
{
    uint64_t size = sp_record_size(16);
    struct sp_admission a = {.address = sp_address(0, 1, target), .lane = SP_LANE_APPLICATION, .stream = SP_STREAM_DATA,
                             .charge = sp_charge(SP_LANE_APPLICATION, 16), .bytes = size, .largest = size};
    bool asked = false;
    for (;;) {
        enum sp_outcome outcome = sp_admission_begin(node, &a);
        if (outcome == SP_ACCEPTED)
            break;
        if (outcome != SP_LANE_FULL && outcome != SP_LINK_FULL)
            return outcome;
        if (asked) {
            uint64_t rings;
            sleep_on(node->peers[node->self].doorbell);
            if (read(node->peers[node->self].doorbell, &rings, sizeof rings) < 0)
                fail("read");
        } else if (outcome == SP_LANE_FULL) {
            sp_waiters_join(node, a.slot);
        } else {
            sp_writer_want(a.writer, a.bytes + a.largest + 2 * SP_RECORD_HEAD);
        }
        asked = !asked;
    }
    struct sp_record *record = sp_admission_record(&a, 16, SP_KIND_FRAME);
    record->a = node->self;
    record->b = number;
    memset(sp_record_payload(record), (int)number, 16);
    sp_admission_commit(node, &a);
    sp_node_ring_due(node);
    return SP_ACCEPTED;
}

static void contest(struct sp_node *node)
{
    struct sp_directory_key key = sp_directory_key(node, (const uint8_t *)"app\0room\0x", 10);
    uint64_t address = sp_address(0, 1, node->self);
    if (sp_directory_claim(node, &key) != SP_DIRECTORY_ABSENT)
        return;
    if (__atomic_add_fetch(&created, 1, __ATOMIC_SEQ_CST) != 1)
        fail("F1: two owners of one id");
    if (!sp_directory_publish(node, &key, address, (const uint8_t *)"players", 7))
        fail("cannot publish");
    struct sp_directory_found found;
    for (uint32_t place = 0; place < geometry.directory_entries; place++)
        if (sp_directory_read(node, place, (const uint8_t *)"app", 3, &found) && found.address != address)
            fail("found what somebody else entered");
    __atomic_sub_fetch(&created, 1, __ATOMIC_SEQ_CST);
    if (!sp_directory_remove(node, &key, address))
        fail("cannot remove");
}

static void *producer(void *argument)
{
    struct sp_node *node = argument;
    uint64_t numbers[OBJECTS + 1] = {0};
    for (uint64_t i = 0; i < messages; i++) {
        uint32_t target = 1 + (uint32_t)((i * 7 + node->self + i / 13) % OBJECTS);
        enum sp_outcome outcome = publish(node, target, numbers[target] + 1);
        if (outcome == SP_ACCEPTED) {
            numbers[target]++;
            accepted[node->self]++;
        } else if (outcome != SP_SATURATED) {
            fail("an outcome that cannot be");
        }
        if (i % 16 == 0)
            contest(node);
    }
    __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
    sp_doorbell_write(node->peers[producers + 1].doorbell);
    return NULL;
}

static enum sp_turn turn(void *context, uint32_t slot, struct sp_cell *cell)
{
    (void)context;
    if (cell->a > producers || ++next_expected[cell->a][slot] != cell->b)
        fail("S1: a message came twice, late or never");
    for (uint32_t i = 0; i < 16; i++)
        if (sp_cell_payload(cell)[i] != (uint8_t)cell->b)
            fail("a payload is not what was sent");
    ran++;
    return SP_TURN_DONE;
}

static void *shard(void *argument)
{
    struct sp_node *node = argument;
    for (;;) {
        sp_executor_look(&ex);
        while (sp_ready_count(&ex.ready) > 0)
            sp_executor_run_object(&ex, sp_ready_pop(&ex.ready));
        sp_node_ring_due(node);
        if (!sp_executor_park(&ex))
            continue;
        if (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == (int)producers && !sp_ready_count(&ex.ready))
            return NULL;
        sleep_on(node->peers[node->self].doorbell);
        sp_node_wake(node);
    }
}

static uint64_t segment_size(uint32_t process)
{
    if (process == producers + 1)
        return sp_arena_offset(&geometry) + geometry.arena_bytes;
    return sp_align(sp_slots_offset(&geometry) + sp_directory_size(&geometry), SP_PAGE);
}

static void open_node(void)
{
    uint8_t *segments[PRODUCERS_MAX + 2];
    int bells[PRODUCERS_MAX + 2];
    geometry.acceptors = producers;
    geometry.processes = producers + 2;
    for (uint32_t i = 0; i < geometry.processes; i++) {
        segments[i] = mmap(NULL, segment_size(i), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        bells[i] = eventfd(0, EFD_NONBLOCK);
        if (segments[i] == MAP_FAILED || bells[i] < 0)
            fail("no memory or descriptor");
    }
    for (uint32_t process = 0; process < geometry.processes; process++) {
        nodes[process].self = process;
        nodes[process].geometry = geometry;
        for (uint32_t i = 0; i < geometry.processes; i++)
            sp_node_attach_peer(&nodes[process], i, segments[i], segment_size(i), bells[i]);
    }
    for (uint32_t i = 0; i < geometry.slots; i++)
        nodes[0].peers[producers + 1].slots[i].word.low = UINT64_C(1) << SP_GENERATION_SHIFT;
    if (!sp_executor_open(&ex, &nodes[producers + 1], 1000000))
        fail("no memory");
    ex.turn = turn;
    for (uint32_t i = 0; i <= OBJECTS; i++)
        sp_executor_allocate(&ex);
}

int main(int count, char **arguments)
{
    if (count > 1)
        producers = (uint32_t)atoi(arguments[1]);
    if (count > 2)
        messages = strtoull(arguments[2], NULL, 10);
    if (producers < 1 || producers > PRODUCERS_MAX)
        fail("1 to 6 producers");
    open_node();
    pthread_t threads[PRODUCERS_MAX + 2];
    for (uint32_t i = 1; i <= producers; i++)
        pthread_create(&threads[i], NULL, producer, &nodes[i]);
    pthread_create(&threads[0], NULL, shard, &nodes[producers + 1]);
    for (uint32_t i = 0; i <= producers; i++)
        pthread_join(threads[i], NULL);
    uint64_t sent = 0;
    for (uint32_t i = 1; i <= producers; i++)
        sent += accepted[i];
    const struct sp_peer *peer = &nodes[0].peers[producers + 1];
    for (uint32_t i = 1; i <= OBJECTS; i++)
        if (peer->slots[i].done != peer->slots[i].word.high || sp_word_phase(peer->slots[i].word.low) != SP_IDLE)
            fail("an object is not Idle, or keeps reservations");
    if ((peer->header->permits & SP_PERMIT_MASK) != 0)
        fail("a permit is kept");
    if (ran != sent)
        fail("S1: not every accepted message ran");
    printf("%llu of %llu messages accepted and run\n", (unsigned long long)ran,
           (unsigned long long)(messages * producers));
    return 0;
}
