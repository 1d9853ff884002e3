/* What is behind kill_points.h. Layout of the control file, in u64 words:
 *     0            number of points, once a process of the pool has started
 *     1            deaths so far
 *     64 + 2 p     the point that is armed in process p, plus 1; 0: none
 *     65 + 2 p     passes left
 *     NAMES        96 bytes for each point: file:function:line
 *     COUNTS       for each process MOST words: passes of each point
 */
#include "kill_points.h"

#undef __atomic_store_n

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROCESSES 48
#define MOST 2048
#define NAME 96
#define NAMES 256
#define COUNTS (NAMES + MOST * NAME / 8)
#define WORDS (COUNTS + PROCESSES * MOST)

extern struct sp_kill_point __start_sp_kill_points[], __stop_sp_kill_points[];

static uint64_t *control;
static uint32_t self;

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

__attribute__((constructor)) static void number_points(void)
{
    int64_t count = 0;
    for (struct sp_kill_point *point = __start_sp_kill_points; point < __stop_sp_kill_points; point++) {
        for (struct sp_kill_point *other = __start_sp_kill_points; other < point && point->number < 0; other++)
            if (other->line == point->line && strcmp(other->file, point->file) == 0)
                point->number = other->number;
        if (point->number < 0 && count < MOST)
            point->number = count++;
    }
}

void sp_kill_points_enter(uint32_t process)
{
    const char *path = getenv("KILL_POINTS");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *map = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return;
    control = map;
    self = process;
    uint64_t count = 0;
    for (struct sp_kill_point *point = __start_sp_kill_points; point < __stop_sp_kill_points; point++) {
        if (point->number < (int64_t)count)
            continue;
        snprintf((char *)(control + NAMES) + count * NAME, NAME, "%s:%s:%d", file_name(point->file), point->function,
                 (int)point->line);
        count++;
    }
    __atomic_store_n(control, count, __ATOMIC_RELEASE);
}

void sp_kill_point_pass(const struct sp_kill_point *point)
{
    if (control == NULL || point->number < 0)
        return;
    control[COUNTS + (uint64_t)self * MOST + (uint64_t)point->number]++;
    uint64_t *armed = control + 64 + 2 * (uint64_t)self;
    if (__atomic_load_n(armed, __ATOMIC_ACQUIRE) != (uint64_t)point->number + 1)
        return;
    if (__atomic_sub_fetch(armed + 1, 1, __ATOMIC_SEQ_CST) != 0)
        return;
    __atomic_store_n(armed, 0, __ATOMIC_RELEASE); /* the successor lives */
    __atomic_fetch_add(control + 1, 1, __ATOMIC_SEQ_CST);
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}
