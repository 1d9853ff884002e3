/* Admission, executor, doorbell and recovery under all interleavings (M-19): producers publish to the objects of one shard.
 *
 *   admission [--producers=2] [--messages=2] [--objects=1] [--permits=1] [--lane=100] [--position=0]
 *             [--die=producer|shard|both|stop] [--suspend] [--seal=unseal|vacate] [--successor] [--deaths=1]
 *             [--preemptions=2] [--random=SEED] [--runs=0] [--replay=SCHEDULE]
 *
 * --lane: records that a lane holds; a producer that finds it full waits for its doorbell. --position: where all rings
 * begin. --die=both: a producer and the shard, settled in either order. --die=stop: a producer stops for ever without
 * being dead. --successor: another process takes a dead producer's place and publishes once more.
 *
 * At every step S2 (one executor), S3 (what Idle means), S4 (permits), S5 (limits), R1 (ring positions); at rest S1
 * (every real message ran once, in its sender's order), S6, T1, T2, D1 (nobody sleeps over work).
 */
#include "world.h"

#define MESSAGES_MAX 8
#define PRODUCER 1 /* the one that may die */
#define SLOTS 3U /* 0 is the shard's system object, which no message goes to; then the objects */

enum death { DEATH_NONE, DEATH_PRODUCER, DEATH_SHARD, DEATH_BOTH, DEATH_STOP };
enum seal { SEAL_NONE, SEAL_UNSEAL, SEAL_VACATE };
enum fate { FATE_OPEN, FATE_BEGUN, FATE_ACCEPTED, FATE_REFUSED };

static struct {
    int producers, messages;
    uint32_t objects;
    enum death die;
    enum seal seal;
    bool suspend, successor, roomy;
} config = {.producers = 2, .messages = 2, .objects = 1, .roomy = true};

static struct ghost {
    enum fate fate[WORLD_ACCEPTORS + 1][MESSAGES_MAX];
    uint64_t from[WORLD_ACCEPTORS + 1][MESSAGES_MAX]; /* ring position where a message began */
    uint8_t ran[WORLD_ACCEPTORS + 1][MESSAGES_MAX];
    uint8_t lost[WORLD_ACCEPTORS + 1][MESSAGES_MAX]; /* begun and cut by the shard's death */
    int last[WORLD_ACCEPTORS + 1];
    int first[WORLD_ACCEPTORS + 1]; /* message that a producer's present process begins with */
    bool inside[SLOTS];
    bool suspended[SLOTS];
    uint64_t turn[SLOTS];
    bool was_suspended, was_sealed, vacated;
    int successions;
    unsigned due; /* a bit for each process that died and is not settled */
} ghost;

static bool pair_is(const struct sp_slot *slot, const void *word)
{
    return word == &slot->word.low || word == &slot->word.high || word == &slot->done || word == &slot->waiters;
}

/* Only words that two processes look at are worth a switch; counters are worth nothing. */
static unsigned classify(const void *word, bool store)
{
    const uint8_t *at = word;
    if (store) {
        for (uint32_t i = 0; i < WORLD_PROCESSES; i++) {
            const uint8_t *counters = (const uint8_t *)world_header(i)->counters;
            if (at >= counters && at < counters + sizeof world_header(i)->counters)
                return 0;
        }
        return EXPLORER_KILL;
    }
    if (word == &world_bells[WORLD_SHARD] || word == &world_header(WORLD_SHARD)->parked
        || word == &world_header(WORLD_SHARD)->permits)
        return EXPLORER_SWITCH | EXPLORER_KILL;
    for (uint32_t i = 1; i <= config.objects; i++)
        if (pair_is(world_slot(i), word))
            return EXPLORER_SWITCH | EXPLORER_KILL;
    for (uint32_t producer = 0; producer <= (uint32_t)config.producers; producer++) {
        const struct sp_ring *ring = world_ring(producer, producer == 0 ? SP_STREAM_INFRA : SP_STREAM_DATA);
        if (word == &ring->producer || word == &ring->consumer || word == &ring->wanted)
            return EXPLORER_SWITCH;
    }
    return word == &ghost ? EXPLORER_KILL : 0;
}

/* Whether a published record for an object is in no lane yet. */
static bool unlinked(uint32_t producer, uint32_t index)
{
    const struct sp_geometry *g = &world.nodes[0].geometry;
    struct sp_ring *ring = world_ring(producer, SP_STREAM_DATA);
    struct sp_reader reader = {.ring = ring, .bytes = (uint8_t *)(ring + 1), .capacity = g->link_bytes,
                               .position = ring->linked, .producer = ring->producer};
    struct sp_record *record;
    while (sp_reader_next(&reader, &record) == SP_READ_RECORD) {
        if (record->kind == SP_KIND_FRAME && sp_address_index(record->target) == index)
            return true;
        sp_reader_advance(&reader, record);
    }
    return false;
}

static void check_object(uint32_t index, uint64_t *running)
{
    const struct sp_slot *slot = world_slot(index);
    uint64_t word = slot->word.low;
    enum sp_phase phase = sp_word_phase(word);
    uint64_t held = sp_fields_subtract(slot->word.high, slot->done) & 0xFFF;
    if (phase == SP_RUNNABLE || phase == SP_RUNNING || phase == SP_FINALIZING)
        ++*running;
    if (held > world.nodes[0].geometry.lane_records)
        explorer_fail("S5: object %u holds %llu records", index, (unsigned long long)held);
    if (phase != SP_IDLE)
        return;
    if ((word & SP_IN_FLIGHT_MASK) != 0)
        explorer_fail("S3: object %u is Idle with a publication in flight", index);
    for (int producer = 1; producer <= config.producers; producer++)
        if (!ghost.vacated && unlinked((uint32_t)producer, index))
            explorer_fail("S3: object %u is Idle and a record for it lies in a link", index);
    if ((ghost.due >> WORLD_SHARD & 1) == 0 && (slot->lanes[0].first != 0 || slot->lanes[1].first != 0) && !ghost.vacated)
        explorer_fail("S3: object %u is Idle with a record in its lane", index);
}

static void check_step(void)
{
    uint64_t running = 0;
    for (uint32_t i = 1; i <= config.objects; i++)
        check_object(i, &running);
    uint64_t permits = world_header(WORLD_SHARD)->permits & SP_PERMIT_MASK;
    if (permits < running)
        explorer_fail("S4: %llu objects run with %llu permits", (unsigned long long)running, (unsigned long long)permits);
    for (int producer = 1; producer <= config.producers; producer++) {
        const struct sp_ring *ring = world_ring((uint32_t)producer, SP_STREAM_DATA);
        if (ring->producer - ring->consumer > world.nodes[0].geometry.link_bytes)
            explorer_fail("R1: ring of producer %d", producer);
    }
}

static bool awake(int coroutine)
{
    if (coroutine == WORLD_SUPERVISOR)
        return ghost.due != 0;
    return world_bells[coroutine] > 0;
}

static void died(int process)
{
    if (config.die == DEATH_STOP)
        return;
    ghost.due |= 1U << process;
    if (process == WORLD_SHARD) {
        memset(ghost.inside, 0, sizeof ghost.inside);
        memset(ghost.suspended, 0, sizeof ghost.suspended);
    }
}

/* Producers */

static void wait_for_bell(struct sp_node *node)
{
    explorer_sleep();
    explorer_point(&world_bells[node->self], false);
    world_bells[node->self] = 0;
}

static void refused(int process, int message, const struct sp_admission *a)
{
    ghost.fate[process][message] = FATE_REFUSED;
    if (a->slot != NULL && (a->slot->word.low & sp_in_flight((uint32_t)process)) != 0)
        explorer_fail("S6: producer %d was refused and is still in flight", process);
}

/* Asks for a ring, tries once more, and only then sleeps: as an acceptor does. */
static void hold(struct sp_node *node, struct sp_admission *a, enum sp_outcome outcome, bool *asked)
{
    if (*asked)
        wait_for_bell(node);
    else if (outcome == SP_LINK_FULL)
        sp_writer_want(a->writer, a->bytes + a->largest + 2 * SP_RECORD_HEAD);
    else
        sp_waiters_join(node, a->slot);
    *asked = !*asked;
}

static void publish(struct sp_node *node, int message)
{
    int process = (int)node->self;
    uint32_t target = 1 + (uint32_t)(process + message) % config.objects;
    uint64_t size = sp_record_size(8);
    struct sp_admission a = {.address = sp_address(0, 1, target), .lane = SP_LANE_APPLICATION, .stream = SP_STREAM_DATA,
                             .charge = sp_charge(SP_LANE_APPLICATION, 8), .bytes = size, .largest = size};
    bool asked = false;
    for (;;) {
        ghost.from[process][message] = node->peers[WORLD_SHARD].writers[SP_STREAM_DATA].position;
        ghost.fate[process][message] = FATE_BEGUN;
        enum sp_outcome outcome = sp_admission_begin(node, &a);
        if (outcome == SP_ACCEPTED)
            break;
        if (outcome == SP_LANE_FULL && config.roomy)
            explorer_fail("M-7: refused by a lane that never has more than %d records", config.producers * config.messages);
        if (outcome == SP_LANE_FULL || outcome == SP_SEALED || outcome == SP_LINK_FULL) {
            hold(node, &a, outcome, &asked);
            continue;
        }
        refused(process, message, &a);
        return;
    }
    struct sp_record *record = sp_admission_record(&a, 8, SP_KIND_FRAME);
    record->a = (uint64_t)process;
    record->b = (uint64_t)message;
    memset(sp_record_payload(record), 0, 8);
    sp_admission_commit(node, &a);
    ghost.fate[process][message] = FATE_ACCEPTED;
    sp_node_ring_due(node);
}

static void producer_body(int process)
{
    int first = ghost.first[process];
    int end = first == 0 ? config.messages : first + 1;
    for (int message = first; message < end; message++)
        publish(&world.nodes[process], message);
}

/* The shard */

static enum sp_turn turn(void *context, uint32_t slot, struct sp_cell *cell)
{
    (void)context;
    uint64_t process = cell->a, message = cell->b;
    if (process < 1 || process > (uint64_t)config.producers || message >= MESSAGES_MAX)
        explorer_fail("a record that nobody wrote was run");
    if (ghost.inside[slot])
        explorer_fail("S2: two turns of object %u at once", slot);
    ghost.inside[slot] = true;
    if (++ghost.ran[process][message] > 1 || ghost.lost[process][message])
        explorer_fail("S1: message %llu of producer %llu ran twice", (unsigned long long)message,
                      (unsigned long long)process);
    if (config.objects == 1 && ghost.last[process] >= (int)message + 1)
        explorer_fail("order: message %llu of producer %llu came late", (unsigned long long)message,
                      (unsigned long long)process);
    ghost.last[process] = (int)message + 1;
    explorer_point(&ghost, false); /* a place to die in the middle of a turn */
    if (config.suspend && !ghost.was_suspended) {
        ghost.was_suspended = true;
        ghost.suspended[slot] = true;
        ghost.turn[slot] = world_slot(slot)->turn;
        return SP_TURN_SUSPENDED;
    }
    ghost.inside[slot] = false;
    return SP_TURN_DONE;
}

static void infra(void *context, uint32_t process, struct sp_record *record)
{
    (void)context;
    explorer_fail("process %u sent kind %u", process, record->kind);
}

static void sealed(void *context, uint32_t slot)
{
    (void)context;
    if (config.seal == SEAL_VACATE) {
        ghost.vacated = true;
        sp_executor_vacate(&world.ex, slot);
        return;
    }
    sp_schedule_unseal(world_slot(slot));
    sp_executor_queue(&world.ex, slot);
    sp_waiters_ring(world.ex.node, world_slot(slot));
}

static void resumed(void *context, uint32_t slot)
{
    (void)context;
    (void)slot;
}

static void executor_open(void)
{
    memset(&world.ex, 0, sizeof world.ex);
    sp_executor_open(&world.ex, &world.nodes[WORLD_SHARD], 1);
    world.ex.budget_cycles = UINT64_MAX; /* time decides nothing here */
    world.ex.turn = turn;
    world.ex.infra = infra;
    world.ex.sealed = sealed;
    world.ex.resumed = resumed;
}

/* As Shard.adopt and Shard.restore with at-most-once. */
static void take_over(void)
{
    struct sp_executor *ex = &world.ex;
    world_attach(WORLD_SHARD);
    executor_open();
    sp_executor_adopt(ex);
    for (uint32_t i = 1; i <= config.objects; i++) {
        struct sp_slot *slot = world_slot(i);
        if (slot->mark != 0) {
            struct sp_cell *cell = sp_arena_cell(&ex->arena, (uint32_t)slot->mark);
            ghost.lost[cell->a][cell->b] = 1;
            ghost.last[cell->a] = (int)cell->b + 1;
            sp_executor_settle_begun(ex, slot, SP_BEGUN_DROP);
        }
        sp_executor_take_up(ex, i);
    }
}

static bool finish_suspended(struct sp_executor *ex)
{
    for (uint32_t i = 1; i <= config.objects; i++) {
        if (!ghost.suspended[i])
            continue;
        ghost.suspended[i] = false;
        ghost.inside[i] = false;
        if (!sp_executor_finish(ex, i, ghost.turn[i], SP_BOOK_HANDLED))
            explorer_fail("the suspended turn of object %u is not the current one", i);
        return true;
    }
    return false;
}

static bool seal_once(struct sp_executor *ex)
{
    if (config.seal == SEAL_NONE || ghost.was_sealed)
        return false;
    ghost.was_sealed = true;
    ex->objects[1].ending = config.seal == SEAL_VACATE;
    if (sp_schedule_seal(ex->node, world_slot(1)))
        sp_executor_queue(ex, 1);
    return true;
}

static void shard_body(int process)
{
    struct sp_executor *ex = &world.ex;
    (void)process;
    if (ghost.successions > 0)
        take_over();
    for (;;) {
        sp_executor_look(ex);
        while (sp_ready_count(&ex->ready) > 0) {
            sp_executor_run_object(ex, sp_ready_pop(&ex->ready));
            if (sp_ready_count(&ex->ready) == 0)
                sp_executor_look(ex);
        }
        sp_node_ring_due(ex->node);
        if (seal_once(ex) || finish_suspended(ex))
            continue;
        if (!sp_executor_park(ex))
            continue;
        explorer_sleep();
        sp_node_wake(ex->node);
    }
}

/* Whom the supervisor settles next: of two, either. */
static int next_dead(void)
{
    int first = __builtin_ctz(ghost.due);
    unsigned others = ghost.due & (ghost.due - 1);
    return others != 0 && explorer_decide(2, true) == 1 ? __builtin_ctz(others) : first;
}

static void supervisor_body(int process)
{
    struct sp_node *node = &world.nodes[process];
    for (;;) {
        if (ghost.due == 0)
            explorer_sleep();
        int dead = next_dead();
        if (!sp_settle(node, (uint32_t)dead))
            explorer_fail("the supervisor's link has no room for one token");
        ghost.due &= ~(1U << dead);
        if (dead == WORLD_SHARD) {
            ghost.successions++;
            explorer_spawn(dead, shard_body);
        } else if (config.successor && ghost.first[dead] == 0) {
            world_attach((uint32_t)dead);
            ghost.first[dead] = config.messages;
            explorer_spawn(dead, producer_body);
        }
    }
}

/* At rest */

static bool is_real(int process, int message)
{
    if (ghost.fate[process][message] == FATE_ACCEPTED)
        return true;
    /* the process died on it: the ring says whether it is real; the successor's messages lie behind */
    if (ghost.fate[process][message] != FATE_BEGUN)
        return false;
    uint64_t end = world_ring((uint32_t)process, SP_STREAM_DATA)->producer;
    if (ghost.first[process] != 0 && message < config.messages
        && ghost.fate[process][config.messages] != FATE_OPEN)
        end = ghost.from[process][config.messages];
    return end != ghost.from[process][message];
}

static void check_message(int process, int message)
{
    bool real = is_real(process, message);
    int ran = ghost.ran[process][message];
    bool over = ran == 1 || ghost.lost[process][message];
    if (real && !over && !ghost.vacated)
        explorer_fail("S1: message %d of producer %d was accepted and never ran", message, process);
    if (!real && over)
        explorer_fail("T2: message %d of producer %d ran and was not accepted", message, process);
}

static void check_words(void)
{
    for (uint32_t i = 1; i <= config.objects; i++) {
        const struct sp_slot *slot = world_slot(i);
        if ((slot->word.low & ~(SP_GENERATION_MASK << SP_GENERATION_SHIFT)) != 0)
            explorer_fail("T1: word of object %u is %llx at rest", i, (unsigned long long)slot->word.low);
        if (slot->done != slot->word.high)
            explorer_fail("T1: reservation of object %u leaks", i);
        if (slot->mark != 0 || slot->lanes[0].first != 0)
            explorer_fail("S1: object %u has a record at rest", i);
    }
    if ((world_header(WORLD_SHARD)->permits & SP_PERMIT_MASK) != 0)
        explorer_fail("S4: %llu permits in use at rest",
                      (unsigned long long)(world_header(WORLD_SHARD)->permits & SP_PERMIT_MASK));
    if (world_header(WORLD_SHARD)->operation.word != 0)
        explorer_fail("T1: an operation is announced at rest");
    for (int process = 0; process <= config.producers; process++) {
        if (world_header((uint32_t)process)->intent.step != SP_STEP_NONE)
            explorer_fail("T1: process %d has a step announced at rest", process);
        for (int stream = 0; stream < 2; stream++) {
            const struct sp_ring *ring = world_ring((uint32_t)process, (enum sp_stream)stream);
            if (ring->consumer != ring->producer)
                explorer_fail("D1: the shard sleeps and the link of process %d is not empty", process);
        }
    }
}

static void check_rest(void)
{
    int stopped = config.die == DEATH_STOP && explorer.killed > 0 ? PRODUCER : 0;
    for (int process = 1; process <= config.producers; process++) {
        if (process == stopped)
            continue;
        if (explorer.states[process] == EXPLORER_ASLEEP)
            explorer_fail("D1: producer %d waits for ever", process);
        for (int message = 0; message <= config.messages; message++)
            check_message(process, message);
    }
    if (explorer.states[WORLD_SHARD] != EXPLORER_ASLEEP)
        explorer_fail("D1: the shard is not asleep at rest");
    if (stopped == 0)
        check_words();
}

static bool parse_scenario(const char *argument, struct sp_geometry *g, uint64_t *position)
{
    const char *v;
    if (explorer_option(argument, "--producers", &v))
        config.producers = atoi(v);
    else if (explorer_option(argument, "--messages", &v))
        config.messages = atoi(v);
    else if (explorer_option(argument, "--objects", &v))
        config.objects = (uint32_t)atoi(v);
    else if (explorer_option(argument, "--permits", &v))
        g->permits = (uint32_t)atoi(v);
    else if (explorer_option(argument, "--lane", &v))
        g->lane_records = (uint32_t)atoi(v), config.roomy = false;
    else if (explorer_option(argument, "--position", &v))
        *position = strtoul(v, NULL, 10);
    else if (explorer_option(argument, "--die", &v))
        config.die = v[0] == 'p' ? DEATH_PRODUCER : v[0] == 'b' ? DEATH_BOTH : v[1] == 'h' ? DEATH_SHARD : DEATH_STOP;
    else if (explorer_option(argument, "--seal", &v))
        config.seal = v[0] == 'u' ? SEAL_UNSEAL : SEAL_VACATE;
    else if (explorer_option(argument, "--suspend", &v))
        config.suspend = true;
    else if (explorer_option(argument, "--successor", &v))
        config.successor = true;
    else
        return false;
    return true;
}

int main(int count, char **arguments)
{
    struct sp_geometry geometry = world_geometry_default;
    uint64_t position = 0;
    explorer.preemptions = 2;
    explorer.kills = 1;
    for (int i = 1; i < count; i++)
        if (!parse_scenario(arguments[i], &geometry, &position))
            explorer_parse(arguments[i]);
    if (config.producers < 1 || config.producers > WORLD_ACCEPTORS || config.messages >= MESSAGES_MAX
        || config.objects < 1 || config.objects >= SLOTS)
        explorer_usage("that number of producers, messages or objects");
    explorer.command = explorer_command(count, arguments);
    explorer.classify = classify;
    explorer.check = check_step;
    explorer.died = died;
    explorer.awake = awake;
    if (config.die == DEATH_SHARD || config.die == DEATH_BOTH)
        explorer.mortals |= 1U << WORLD_SHARD;
    if (config.die != DEATH_NONE && config.die != DEATH_SHARD)
        explorer.mortals |= 1U << PRODUCER;
    if (config.die == DEATH_BOTH)
        explorer.kills = 2;
    world_open(&geometry, position);
    executor_open();
    for (uint32_t i = 0; i <= config.objects; i++)
        world_slot(sp_executor_allocate(&world.ex))->kind = 1;
    world_save();
    do {
        world_reset();
        memset(&ghost, 0, sizeof ghost);
        explorer_begin();
        explorer_spawn(WORLD_SUPERVISOR, supervisor_body);
        for (int process = 1; process <= config.producers; process++)
            explorer_spawn(process, producer_body);
        explorer_spawn(WORLD_SHARD, shard_body);
        explorer_run();
        if (!explorer.failed)
            check_rest();
    } while (explorer_next());
    return explorer_report(explorer.command);
}
