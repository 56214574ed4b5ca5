/* SPDX-License-Identifier: Apache-2.0 */
#include "io/reclaim.h"

#include "io/engine.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define TICK_SECONDS 1
#define IDLE_TICKS 5 /* after which a chunk is evicted, and spare buffers are freed */

/* Keeps no more spare buffers than were used since the last call. */
static void
reclaim_spare_buffers(struct memory *memory)
{
    memory_trim(memory, memory->most_used - memory->used);
    memory->most_used = memory->used;
}

static void *
reclaim_run(void *arg)
{
    struct io *io = arg;
    struct chunk_cache *cache = &io->cache;
    unsigned descriptors = 0;
    struct timespec until;

    pthread_setname_np(pthread_self(), "fstfs-reclaim");
    pthread_mutex_lock(&cache->lock);
    while (!io->is_stopping) {
        io->reclaim_sleeps = cache->memory.used == 0 && cache->memory.spare == 0 &&
                             !cache->memory.unneeded && descriptors == 0;
        if (io->reclaim_sleeps) {
            pthread_cond_wait(&io->reclaim, &cache->lock);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += TICK_SECONDS;
        while (!io->is_stopping &&
               pthread_cond_timedwait(&io->reclaim, &cache->lock, &until) != ETIMEDOUT)
            continue;
        chunk_cache_expire(cache, IDLE_TICKS);
        if (cache->ticks % IDLE_TICKS == 0)
            reclaim_spare_buffers(&cache->memory);
        chunk_cache_unlock(cache);
        descriptors = descriptors_tidy(storage_descriptors(io->storage));
        pthread_mutex_lock(&cache->lock);
    }
    chunk_cache_unlock(cache);
    return NULL;
}

errint_t
reclaim_start(struct io *io)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&io->reclaim_thread, NULL, reclaim_run, io);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    io->has_reclaim_thread = error == 0;
    return -error;
}

void
reclaim_stop(struct io *io)
{
    if (!io->has_reclaim_thread)
        return;
    pthread_mutex_lock(&io->cache.lock);
    io->is_stopping = true;
    pthread_cond_signal(&io->reclaim);
    chunk_cache_unlock(&io->cache);
    pthread_join(io->reclaim_thread, NULL);
}
