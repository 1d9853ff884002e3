/* Runs coroutines through interleavings of the real code; included before the headers under test.
 *
 * A coroutine stands for a process. At every operation on a shared word (SP_SCHEDULING_POINT, and every atomic store)
 * the explorer decides who goes on: the same process, another one (a preemption), or nobody any more because the
 * process dies there. A run is the list of its decisions, so it can be replayed.
 *
 *   exhaustive   depth first through all decisions with at most `preemptions` preemptions; leaving a process that
 *                sleeps or has ended is no preemption
 *   random       `runs` runs from a seed
 *   replay       one run; decisions as "number:choice", those not named are 0 (go on)
 *
 * What is explored is sequentially consistent; orderings are left to ThreadSanitizer and to the comments.
 */
#ifndef EXPLORER_H
#define EXPLORER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define EXPLORER_COROUTINES 8
#define EXPLORER_STACK 65536
#define EXPLORER_DECISIONS 100000
#define EXPLORER_STEPS 100000 /* of one run; more is a livelock */

enum explorer_state { EXPLORER_ABSENT, EXPLORER_ABLE, EXPLORER_ASLEEP, EXPLORER_ENDED, EXPLORER_DEAD };
enum explorer_mode { EXPLORER_EXHAUSTIVE, EXPLORER_RANDOM, EXPLORER_REPLAY };

/* What may happen at an operation on a word. */
#define EXPLORER_SWITCH 1U
#define EXPLORER_KILL 2U

struct explorer_decision {
    uint8_t choice;
    uint8_t choices;
};

static struct {
    /* set by the scenario */
    const char *command;
    enum explorer_mode mode;
    int preemptions;
    int kills;
    uint64_t seed;
    uint64_t runs_max;
    const char *replay;
    unsigned mortals; /* a bit for each coroutine that may die */
    unsigned (*classify)(const void *word, bool store);
    void (*check)(void);      /* at every decision */
    void (*died)(int coroutine);
    bool (*awake)(int coroutine); /* whether a sleeping one may go on */
    /* of the run */
    ucontext_t home;
    ucontext_t contexts[EXPLORER_COROUTINES];
    enum explorer_state states[EXPLORER_COROUTINES];
    int current;
    int preempted;
    int killed;
    uint32_t steps;
    bool inside;   /* in a coroutine, not in setup */
    bool checking; /* the checks use the code under test as well */
    bool failed;
    struct explorer_decision decisions[EXPLORER_DECISIONS];
    uint32_t used;   /* decisions made in this run */
    uint32_t forced; /* of them given by the search */
    uint64_t random;
    uint64_t runs;
    uint64_t points;
} explorer;

static char explorer_stacks[EXPLORER_COROUTINES][EXPLORER_STACK] __attribute__((aligned(64)));

static void explorer_print_schedule(void)
{
    bool first = true;
    for (uint32_t i = 0; i < explorer.used; i++) {
        if (explorer.decisions[i].choice == 0)
            continue;
        printf("%s%u:%u", first ? "" : ",", i, explorer.decisions[i].choice);
        first = false;
    }
}

/* Reports what is wrong and ends the run. */
static void __attribute__((format(printf, 1, 2))) explorer_fail(const char *format, ...)
{
    va_list arguments;
    if (explorer.failed)
        return;
    explorer.failed = true;
    printf("FAILED after %llu runs: ", (unsigned long long)explorer.runs);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\nreplay: %s --replay=", explorer.command);
    explorer_print_schedule();
    printf("\n");
    fflush(stdout);
    if (explorer.inside) {
        explorer.inside = false;
        setcontext(&explorer.home);
    }
}

static uint64_t explorer_random(void)
{
    explorer.random ^= explorer.random << 13;
    explorer.random ^= explorer.random >> 7;
    explorer.random ^= explorer.random << 17;
    return explorer.random;
}

static unsigned explorer_replayed(uint32_t number)
{
    const char *at = explorer.replay;
    while (at != NULL && *at != '\0') {
        char *end;
        unsigned long named = strtoul(at, &end, 10);
        unsigned long choice = strtoul(end + 1, &end, 10);
        if (named == number)
            return (unsigned)choice;
        at = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

/* One of `choices`; 0 is the ordinary one. */
static unsigned explorer_decide(unsigned choices, bool forced_switch)
{
    if (choices <= 1)
        return 0;
    uint32_t number = explorer.used;
    if (number == EXPLORER_DECISIONS) {
        explorer_fail("more than %d decisions in one run", EXPLORER_DECISIONS);
        return 0;
    }
    unsigned choice = 0;
    if (explorer.mode == EXPLORER_REPLAY)
        choice = explorer_replayed(number);
    else if (explorer.mode == EXPLORER_RANDOM)
        choice = forced_switch || explorer_random() % 8 == 0 ? (unsigned)(explorer_random() % choices) : 0;
    else if (number < explorer.forced)
        choice = explorer.decisions[number].choice;
    if (choice >= choices) {
        explorer_fail("decision %u has only %u choices: the run is not the one that was recorded", number, choices);
        return 0;
    }
    explorer.decisions[number] = (struct explorer_decision){(uint8_t)choice, (uint8_t)choices};
    explorer.used++;
    return choice;
}

static bool explorer_able(int coroutine)
{
    return explorer.states[coroutine] == EXPLORER_ABLE
        || (explorer.states[coroutine] == EXPLORER_ASLEEP && explorer.awake(coroutine));
}

/* The n-th of the others that can go on, or -1. */
static int explorer_other(unsigned n)
{
    for (int i = 1; i < EXPLORER_COROUTINES; i++) {
        int other = (explorer.current + i) % EXPLORER_COROUTINES;
        if (explorer_able(other) && n-- == 0)
            return other;
    }
    return -1;
}

static unsigned explorer_others(void)
{
    unsigned count = 0;
    while (explorer_other(count) >= 0)
        count++;
    return count;
}

static void explorer_switch(int to)
{
    int from = explorer.current;
    explorer.current = to;
    explorer.states[to] = EXPLORER_ABLE;
    if (to != from)
        swapcontext(&explorer.contexts[from], &explorer.contexts[to]);
}

/* The current coroutine cannot go on: another does, or the run is at rest. */
static void explorer_leave(enum explorer_state state)
{
    explorer.states[explorer.current] = state;
    if (state == EXPLORER_ASLEEP && explorer.awake(explorer.current)) {
        explorer.states[explorer.current] = EXPLORER_ABLE;
        return;
    }
    unsigned others = explorer_others();
    if (others == 0) {
        int from = explorer.current;
        explorer.inside = false;
        swapcontext(&explorer.contexts[from], &explorer.home);
        return;
    }
    explorer_switch(explorer_other(explorer_decide(others, true)));
}

/* Sleeps until `awake` says otherwise. */
static void explorer_sleep(void) { explorer_leave(EXPLORER_ASLEEP); }

static void explorer_point(const void *word, bool store)
{
    if (!explorer.inside || explorer.checking)
        return;
    explorer.points++;
    if (++explorer.steps > EXPLORER_STEPS)
        explorer_fail("no end after %d steps", EXPLORER_STEPS);
    explorer.checking = true;
    explorer.check();
    explorer.checking = false;
    unsigned kind = explorer.classify(word, store);
    bool kill = (kind & EXPLORER_KILL) != 0 && (explorer.mortals >> explorer.current & 1) != 0
        && explorer.killed < explorer.kills;
    unsigned others = (kind & EXPLORER_SWITCH) != 0
        && (explorer.preempted < explorer.preemptions || explorer.mode == EXPLORER_RANDOM) ? explorer_others() : 0;
    unsigned choice = explorer_decide(1 + others + kill, false);
    if (choice == 0)
        return;
    if (choice <= others) {
        explorer.preempted++;
        explorer_switch(explorer_other(choice - 1));
        return;
    }
    explorer.killed++;
    int victim = explorer.current;
    explorer.states[victim] = EXPLORER_DEAD;
    explorer.died(victim);
    explorer_leave(EXPLORER_DEAD);
}

static void (*explorer_bodies[EXPLORER_COROUTINES])(int);

static void explorer_body(int coroutine)
{
    explorer_bodies[coroutine](coroutine);
    explorer_leave(EXPLORER_ENDED);
}

/* Makes a coroutine; also in place of one that has died. */
static void explorer_spawn(int coroutine, void (*body)(int))
{
    explorer_bodies[coroutine] = body;
    ucontext_t *context = &explorer.contexts[coroutine];
    getcontext(context);
    context->uc_stack.ss_sp = explorer_stacks[coroutine];
    context->uc_stack.ss_size = EXPLORER_STACK;
    context->uc_link = NULL;
    makecontext(context, (void (*)(void))explorer_body, 1, coroutine);
    explorer.states[coroutine] = EXPLORER_ABLE;
}

static void explorer_begin(void)
{
    memset(explorer.states, 0, sizeof explorer.states);
    explorer.used = explorer.steps = 0;
    explorer.preempted = explorer.killed = 0;
    explorer.runs++;
    explorer.random = (explorer.seed + explorer.runs) * UINT64_C(0x9E3779B97F4A7C15) | 1;
}

/* Runs the spawned coroutines until all are at rest. */
static void explorer_run(void)
{
    explorer.current = EXPLORER_COROUTINES - 1; /* the search begins behind it */
    int first = explorer_other(explorer_decide(explorer_others(), true));
    explorer.inside = true;
    explorer.current = first;
    swapcontext(&explorer.home, &explorer.contexts[first]);
    explorer.inside = false;
}

/* Whether there is another run. */
static bool explorer_next(void)
{
    if (explorer.failed || explorer.mode == EXPLORER_REPLAY || explorer.runs == explorer.runs_max)
        return false;
    if (explorer.mode == EXPLORER_RANDOM)
        return true;
    uint32_t last = explorer.used;
    while (last > 0 && explorer.decisions[last - 1].choice + 1 == explorer.decisions[last - 1].choices)
        last--;
    if (last == 0)
        return false;
    explorer.decisions[last - 1].choice++;
    explorer.forced = last;
    return true;
}

/* 0, or 1 after a failure; says what was done. */
static int explorer_report(const char *scenario)
{
    if (explorer.failed)
        return 1;
    bool all = explorer.mode == EXPLORER_EXHAUSTIVE && explorer.runs != explorer.runs_max;
    printf("%s: %llu runs, %llu points, %s, no error\n", scenario, (unsigned long long)explorer.runs,
           (unsigned long long)explorer.points, all ? "all schedules" : "not all schedules");
    return 0;
}

static bool explorer_option(const char *argument, const char *name, const char **value)
{
    size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0 || (argument[length] != '=' && argument[length] != '\0'))
        return false;
    *value = argument[length] == '=' ? argument + length + 1 : "";
    return true;
}

static void __attribute__((noreturn)) explorer_usage(const char *argument)
{
    fprintf(stderr, "%s is no option of this program; they are at the head of its source\n", argument);
    exit(2);
}

static void explorer_parse(const char *argument)
{
    const char *v;
    if (explorer_option(argument, "--preemptions", &v))
        explorer.preemptions = atoi(v);
    else if (explorer_option(argument, "--deaths", &v))
        explorer.kills = atoi(v);
    else if (explorer_option(argument, "--random", &v))
        explorer.mode = EXPLORER_RANDOM, explorer.seed = strtoull(v, NULL, 10);
    else if (explorer_option(argument, "--runs", &v))
        explorer.runs_max = strtoull(v, NULL, 10);
    else if (explorer_option(argument, "--replay", &v))
        explorer.mode = EXPLORER_REPLAY, explorer.replay = v;
    else
        explorer_usage(argument);
}

/* All arguments but the search's own as one line: with --replay= behind it the command that shows a failure again. */
static char *explorer_command(int count, char **arguments)
{
    static char line[1024];
    for (int i = 0; i < count; i++) {
        const char *v;
        if (i > 0 && (explorer_option(arguments[i], "--random", &v) || explorer_option(arguments[i], "--runs", &v)))
            continue;
        size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, "%s%s", i > 0 ? " " : "", arguments[i]);
    }
    return line;
}

#define SP_SCHEDULING_POINT(word) explorer_point((const void *)(word), false)
/* every store, also those to words that only the owner and its repairer see: places to die */
#define __atomic_store_n(word, value, order) \
    (explorer_point((const void *)(word), true), __atomic_store_n(word, value, order))

#endif
