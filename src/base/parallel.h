/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop whose turns run at the same time, for work that waits on storage
 * (headers of many shards).
 */
#ifndef FSTFS_BASE_PARALLEL_H
#define FSTFS_BASE_PARALLEL_H

#include <stddef.h>

/* Threads that all loops of the process together have at most. */
enum { PARALLEL_HELPERS_MOST = 64 };

/* Calls work(arg, i) once for each i < count, from at most `threads` threads,
 * this one among them, and returns when all calls have returned. Where threads
 * cannot be made, or all loops have too many, it goes on with those it has, this one at
 * least. A call may begin a loop of its own. */
void parallel_for(size_t count, unsigned threads, void (*work)(void *arg, size_t i), void *arg);

#endif
