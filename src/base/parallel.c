/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parallel.h"

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* Threads that all loops of the process have made. */
static atomic_uint helpers;

/* Loops that this thread is in. */
static _Thread_local unsigned depth;

struct loop {
    unsigned depth; /* of the thread that began it, in it */
    atomic_size_t next; /* the first turn that nobody has taken */
    size_t count;
    void (*work)(void *arg, size_t i);
    void *arg;
};

static void
take_turns(struct loop *loop)
{
    size_t i;

    while ((i = atomic_fetch_add(&loop->next, 1)) < loop->count)
        loop->work(loop->arg, i);
}

static void *
run_helper(void *arg)
{
    struct loop *loop = arg;

    pthread_setname_np(pthread_self(), "fstfs-loop");
    depth = loop->depth;
    take_turns(loop);
    return NULL;
}

/*
 * How many threads a loop may make that wants so many: at most a quarter of those that are left,
 * so that loops that wait for storage that does not answer leave some. Loops inside of loops
 * share the first half, so that one directory of many checkpoints does not take all.
 */
static unsigned
reserve_helpers(unsigned wanted)
{
    unsigned most = depth > 0 ? PARALLEL_HELPERS_MOST / 2 : PARALLEL_HELPERS_MOST;
    unsigned taken = atomic_load(&helpers), share;

    do {
        share = taken < most ? (most - taken + 3) / 4 : 0;
        if (share > wanted)
            share = wanted;
    } while (!atomic_compare_exchange_weak(&helpers, &taken, taken + share));
    return share;
}

void
parallel_for(size_t count, unsigned threads, void (*work)(void *arg, size_t i), void *arg)
{
    struct loop loop = {.depth = depth + 1, .count = count, .work = work, .arg = arg};
    pthread_t others[PARALLEL_HELPERS_MOST];
    size_t wanted = threads < count ? threads : count;
    unsigned reserved, made = 0;

    if (wanted > PARALLEL_HELPERS_MOST)
        wanted = PARALLEL_HELPERS_MOST;
    reserved = wanted > 1 ? reserve_helpers((unsigned)wanted - 1) : 0;
    while (made < reserved && thread_start(&others[made], run_helper, &loop) == 0)
        made++;
    depth++;
    take_turns(&loop);
    depth--;
    while (made > 0)
        pthread_join(others[--made], NULL);
    atomic_fetch_sub(&helpers, reserved);
}
