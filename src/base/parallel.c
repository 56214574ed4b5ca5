/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parallel.h"

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>

/* Helper threads of all loops of the process. */
static atomic_uint helpers;

/* The number of nested loops that this thread is in. */
static THREAD_LOCAL unsigned depth;

struct loop {
    unsigned depth; /* of its helpers: the number of loops they are nested in */
    atomic_size_t next; /* the first index that no thread has taken */
    size_t count;
    void (*work)(void *arg, size_t i);
    void *arg;
};

static void
loop_run(struct loop *loop)
{
    size_t i;

    while ((i = atomic_fetch_add(&loop->next, 1)) < loop->count)
        loop->work(loop->arg, i);
}

static void *
loop_help(void *arg)
{
    struct loop *loop = arg;

    pthread_setname_np(pthread_self(), "fstfs-loop");
    depth = loop->depth;
    loop_run(loop);
    return NULL;
}

/*
 * Reserves up to `wanted` helpers, but at most a quarter of the free ones, so that loops that are
 * blocked on storage leave some for others. Nested loops get no more while half of all helpers are
 * reserved, so that one directory with many checkpoints does not use up all of them. Returns the
 * number of reserved helpers.
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
    while (made < reserved && thread_start(&others[made], loop_help, &loop) == 0)
        made++;
    depth++;
    loop_run(&loop);
    depth--;
    while (made > 0)
        pthread_join(others[--made], NULL);
    atomic_fetch_sub(&helpers, reserved);
}

void
parallel_after_fork(void)
{
    atomic_store(&helpers, 0);
    depth = 0;
}
