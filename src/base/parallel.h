/* SPDX-License-Identifier: Apache-2.0 */
/* A loop whose calls run in parallel, for work that waits for storage (headers of many shards). */
#ifndef FSTFS_BASE_PARALLEL_H
#define FSTFS_BASE_PARALLEL_H

#include <stddef.h>

/* The maximum number of helper threads of all loops of the process. */
enum { PARALLEL_HELPERS_MOST = 64 };

/* Calls work(arg, i) once for each i < count, in at most `threads` threads including this one, and
 * returns when all calls have returned. If threads cannot be started, or the maximum is reached, it
 * uses fewer. Calls may run loops of their own. */
void parallel_for(size_t count, unsigned threads, void (*work)(void *arg, size_t i), void *arg);

/* Call it in the child of fork(), in which no helper thread exists: resets their number. */
void parallel_after_fork(void);

#endif
