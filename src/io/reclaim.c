/* SPDX-License-Identifier: Apache-2.0 */
#include "io/reclaim.h"

#include "base/thread.h"
#include "io/engine.h"

#include <pthread.h>

#define TICK_SECONDS 1
/* Chunks that were idle for this long are evicted; spare buffers are freed this often. */
#define IDLE_TICKS 5

/* Keeps the spare buffers that were in use at the peak since the last call. */
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
    uint64_t until;

    pthread_setname_np(pthread_self(), "fstfs-reclaim");
    pthread_mutex_lock(&cache->lock);
    while (!io->is_stopping) {
        io->reclaim_sleeps = cache->memory.used == 0 && cache->memory.spare == 0 &&
                             !cache->memory.unneeded && descriptors == 0;
        if (io->reclaim_sleeps) {
            pthread_cond_wait(&io->reclaim, &cache->lock);
            continue;
        }
        until = monotonic_ns() + TICK_SECONDS * UINT64_C(1000000000);
        while (!io->is_stopping && condition_wait(&io->reclaim, &cache->lock, until))
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
    errint_t error = thread_start(&io->reclaim_thread, reclaim_run, io);

    io->has_reclaim_thread = error == 0;
    return error;
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
