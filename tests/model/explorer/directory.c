/* The directory of ids under all interleavings (P-26, M-19): processes claim one id, enter, move and remove it.
 *
 *   directory [--rounds=2] [--die=claimer|stop] [--preemptions=2] [--random=SEED] [--runs=0] [--replay=SCHEDULE]
 *
 * At every step F1 (one owner); at rest no cell is left in use. --die=stop: a claimer stops for ever, and its cell is
 * all that may be left.
 */
#include "world.h"

static struct {
    int rounds;
    bool die, settles;
} config = {.rounds = 2};

static struct {
    int due;
    uint64_t moved;   /* a bit for each address that a successful move replaced */
    uint64_t address; /* last one given */
} ghost;

static const uint8_t id[] = "app\0room\0lobby";

static struct sp_directory_key key_of(const struct sp_node *node) { return sp_directory_key(node, id, sizeof id - 1); }

static unsigned classify(const void *word, bool store)
{
    const uint8_t *first = (const uint8_t *)sp_directory_entry(&world.nodes[0], 0);
    const uint8_t *at = word;
    uint64_t size = sp_directory_size(&world.nodes[0].geometry);
    if (at < first || at >= first + size)
        return 0;
    if (store)
        return EXPLORER_KILL;
    uint64_t offset = (uint64_t)(at - first) % sizeof(struct sp_entry);
    return offset <= offsetof(struct sp_entry, key_length) ? EXPLORER_SWITCH | EXPLORER_KILL : 0;
}

static void check_step(void)
{
    int owners = 0;
    for (uint32_t i = 0; i < world.nodes[0].geometry.directory_entries; i++) {
        const struct sp_entry *entry = sp_directory_entry(&world.nodes[0], i);
        enum sp_entry_state state = sp_entry_state(entry->state);
        owners += state == SP_ENTRY_OWNED || (state == SP_ENTRY_READY && entry->route != 0);
    }
    if (owners > 1)
        explorer_fail("F1: %d processes have the id", owners);
}

static bool awake(int coroutine) { return coroutine == WORLD_SUPERVISOR && ghost.due != 0; }

static void died(int process)
{
    if (config.settles)
        ghost.due = process;
}

static uint64_t next_address(void) { return ghost.address += UINT64_C(1) << 32; }

static bool was_moved(uint64_t address) { return (ghost.moved >> (address >> 32) & 1) != 0; }

static void own(struct sp_node *node, const struct sp_directory_key *key)
{
    uint64_t address = next_address();
    if (!sp_directory_publish(node, key, address, (const uint8_t *)"p", 1))
        explorer_fail("process %u has the id and cannot publish it", node->self);
    while (!sp_directory_remove(node, key, address)) {
        if (!was_moved(address))
            explorer_fail("process %u cannot remove what it has made", node->self);
        address = sp_directory_find(node, key);
    }
    if (was_moved(address))
        explorer_fail("F3: an address was moved away and removed as well");
}

static void claimer(int process)
{
    struct sp_node *node = &world.nodes[process];
    struct sp_directory_key key = key_of(node);
    for (int round = 0; round < config.rounds; round++) {
        uint64_t says = sp_directory_claim(node, &key);
        if (says == SP_DIRECTORY_ABSENT) {
            own(node, &key);
        } else if (says == SP_DIRECTORY_FULL) {
            explorer_fail("full with one id");
        } else if (says != SP_DIRECTORY_CREATING && process == WORLD_ACCEPTORS) {
            if (sp_directory_move(node, &key, says, next_address()))
                ghost.moved |= UINT64_C(1) << (says >> 32);
        }
    }
}

static void supervisor_body(int process)
{
    if (ghost.due == 0)
        explorer_sleep();
    sp_directory_release_dead(&world.nodes[process], (uint32_t)ghost.due);
}

static void check_rest(void)
{
    int used = 0;
    for (uint32_t i = 0; i < world.nodes[0].geometry.directory_entries; i++)
        used += sp_entry_state(sp_directory_entry(&world.nodes[0], i)->state) != SP_ENTRY_FREE;
    /* whoever died between entering the id and removing it leaves it entered: that is its object's business */
    struct sp_directory_key key = key_of(&world.nodes[0]);
    bool entered = sp_directory_find(&world.nodes[0], &key) > SP_DIRECTORY_FULL;
    int allowed = explorer.killed > 0 && (entered || !config.settles) ? 1 : 0;
    if (used > allowed)
        explorer_fail("%d cells are in use at rest", used);
}

int main(int count, char **arguments)
{
    explorer.preemptions = 2;
    for (int i = 1; i < count; i++) {
        const char *v;
        if (explorer_option(arguments[i], "--rounds", &v))
            config.rounds = atoi(v);
        else if (explorer_option(arguments[i], "--die", &v))
            config.die = true, config.settles = v[0] == 'c';
        else
            explorer_parse(arguments[i]);
    }
    explorer.kills = config.die;
    explorer.mortals = config.die ? 1U << 1 : 0;
    explorer.command = explorer_command(count, arguments);
    explorer.classify = classify;
    explorer.check = check_step;
    explorer.died = died;
    explorer.awake = awake;
    world_open(&world_geometry_default, 0);
    world_save();
    do {
        world_reset();
        memset(&ghost, 0, sizeof ghost);
        explorer_begin();
        explorer_spawn(WORLD_SUPERVISOR, supervisor_body);
        for (int process = 1; process <= WORLD_ACCEPTORS; process++)
            explorer_spawn(process, claimer);
        explorer_run();
        if (!explorer.failed)
            check_rest();
    } while (explorer_next());
    return explorer_report(explorer.command);
}
