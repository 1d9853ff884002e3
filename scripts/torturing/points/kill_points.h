/* A build of the core in which a process kills itself at the n-th pass of a step.
 *
 * Every atomic operation, and every call that moves bytes in or out, is a step: it is named by file, function and
 * line. All processes of a pool map one control file (KILL_POINTS in the environment): they count their passes in it,
 * and a driver arms a step of one process there. The process dies in front of the operation.
 *
 * Included before everything else, this file reads atomics.h and then puts a step in front of each use of it.
 */
#ifndef SP_KILL_POINTS_H
#define SP_KILL_POINTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "atomics.h"

struct sp_kill_point {
    const char *file;
    const char *function;
    int64_t line;
    int64_t number; /* the same for one line in all files that include it */
} __attribute__((aligned(32)));

void sp_kill_points_enter(uint32_t process);
void sp_kill_point_pass(const struct sp_kill_point *point);

#define SP_KILL_POINT                                                                              \
    ({                                                                                             \
        static struct sp_kill_point sp_here                                                        \
            __attribute__((section("sp_kill_points"), used)) = {__FILE__, __func__, __LINE__, -1}; \
        sp_kill_point_pass(&sp_here);                                                              \
    })

#define sp_load_acquire(...) (SP_KILL_POINT, sp_load_acquire(__VA_ARGS__))
#define sp_load_seq_cst(...) (SP_KILL_POINT, sp_load_seq_cst(__VA_ARGS__))
#define sp_store_relaxed(...) (SP_KILL_POINT, sp_store_relaxed(__VA_ARGS__))
#define sp_store_release(...) (SP_KILL_POINT, sp_store_release(__VA_ARGS__))
#define sp_store_seq_cst(...) (SP_KILL_POINT, sp_store_seq_cst(__VA_ARGS__))
#define sp_fetch_or(...) (SP_KILL_POINT, sp_fetch_or(__VA_ARGS__))
#define sp_exchange(...) (SP_KILL_POINT, sp_exchange(__VA_ARGS__))
#define sp_compare_exchange(...) (SP_KILL_POINT, sp_compare_exchange(__VA_ARGS__))
#define sp_pair_compare_exchange(...) (SP_KILL_POINT, sp_pair_compare_exchange(__VA_ARGS__))
#define __atomic_store_n(...) (SP_KILL_POINT, __atomic_store_n(__VA_ARGS__))
#define write(...) (SP_KILL_POINT, write(__VA_ARGS__))
#define send(...) (SP_KILL_POINT, send(__VA_ARGS__))
#define recv(...) (SP_KILL_POINT, recv(__VA_ARGS__))

#endif
