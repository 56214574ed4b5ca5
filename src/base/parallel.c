/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>

#define MOST_THREADS 64

struct loop {
    atomic_size_t next; /* the first turn that nobody has taken */
    size_t count;
    void (*work)(void *arg, size_t i);
    void *arg;
};

static void *
take_turns(void *arg)
{
    struct loop *loop = arg;
    size_t i;

    while ((i = atomic_fetch_add(&loop->next, 1)) < loop->count)
        loop->work(loop->arg, i);
    return NULL;
}

void
parallel_for(size_t count, unsigned threads, void (*work)(void *arg, size_t i), void *arg)
{
    struct loop loop = {.next = 0, .count = count, .work = work, .arg = arg};
    pthread_t others[MOST_THREADS];
    size_t wanted = threads < count ? threads : count;
    size_t made = 0;
    sigset_t all, before;

    if (wanted > MOST_THREADS)
        wanted = MOST_THREADS;
    /* Signals are for the thread that waits for them, not for helpers. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (made + 1 < wanted && pthread_create(&others[made], NULL, take_turns, &loop) == 0)
        made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    take_turns(&loop);
    while (made > 0)
        pthread_join(others[--made], NULL);
}
