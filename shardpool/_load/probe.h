/* The placement probe: two threads on two CPUs hand one cache line to and fro, spinning. Its round trip says where the host
 * has put the CPUs (one core, one cache, further apart), and so which figures of two runs may be compared at all. */
#ifndef SHARDPOOL_LOAD_PROBE_H
#define SHARDPOOL_LOAD_PROBE_H

#include "clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { PROBE_BATCHES = 64, PROBE_ROUNDS = 500 };

struct probe {
    _Alignas(128) _Atomic uint32_t ball; /* odd: the echo's turn; even: the server's */
    _Alignas(128) _Atomic bool stop;
    int cpus[2];
    uint64_t batch_ns[PROBE_BATCHES];
    int batches;
};

static void probe_pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *probe_echo(void *argument)
{
    struct probe *probe = argument;
    probe_pin(probe->cpus[1]);
    while (!atomic_load_explicit(&probe->stop, memory_order_relaxed)) {
        uint32_t ball = atomic_load_explicit(&probe->ball, memory_order_acquire);
        if (ball & 1u)
            atomic_store_explicit(&probe->ball, ball + 1, memory_order_release);
    }
    return NULL;
}

static void *probe_serve(void *argument)
{
    struct probe *probe = argument;
    probe_pin(probe->cpus[0]);
    uint64_t limit = now_ns() + SECOND_NS / 2;
    uint32_t ball = 0;
    while (probe->batches < PROBE_BATCHES) {
        uint64_t start = now_ns();
        if (start > limit)
            break;
        for (int round = 0; round < PROBE_ROUNDS; round++) {
            atomic_store_explicit(&probe->ball, ball + 1, memory_order_release);
            ball += 2;
            /* Bounded: the echo may have lost its CPU to somebody else. */
            for (uint32_t spins = 1; atomic_load_explicit(&probe->ball, memory_order_acquire) != ball; spins++)
                if ((spins & 0xfffffu) == 0 && now_ns() > limit)
                    goto out;
        }
        probe->batch_ns[probe->batches++] = now_ns() - start;
    }
out:
    atomic_store(&probe->stop, true);
    return NULL;
}

static int probe_compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Median round trip in nanoseconds between the first two CPUs this process may use; 0 when there are no two. */
static double probe_round_trip(void)
{
    cpu_set_t set;
    struct probe probe = {.batches = 0};
    int found = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0.0;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET((size_t)cpu, &set))
            probe.cpus[found++] = cpu;
    pthread_t server, echo;
    if (found < 2 || pthread_create(&echo, NULL, probe_echo, &probe) != 0)
        return 0.0;
    if (pthread_create(&server, NULL, probe_serve, &probe) != 0)
        atomic_store(&probe.stop, true);
    else
        pthread_join(server, NULL);
    pthread_join(echo, NULL);
    if (probe.batches == 0)
        return 0.0;
    qsort(probe.batch_ns, (size_t)probe.batches, sizeof probe.batch_ns[0], probe_compare);
    return (double)probe.batch_ns[probe.batches / 2] / PROBE_ROUNDS;
}

#endif
