/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's interface. A read whose bytes are all in memory (blobs) is answered at once; any
 * other becomes a request (io/request.h), which reads by way of the chunk cache (io/chunk_cache.h).
 */
#include "io/io.h"

#include "base/clock.h"
#include "base/thread.h"
#include "io/engine.h"
#include "io/reclaim.h"
#include "io/request.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define KIB 1024ull
#define MIB (1024 * KIB)

#define MEMORY_DEFAULT (256 * MIB)
#define MEMORY_MIN (4 * MIB)
#define WINDOW_MAX (32 * MIB)
#define READAHEAD_DEFAULT (128 * KIB)

/* ---- reads ---- */

static bool
attach_backings(struct io *io, const struct extent_list *list, uint64_t offset, size_t length)
{
    uint32_t last = extent_list_find(list, offset + length - 1);

    for (uint32_t i = extent_list_find(list, offset); i <= last; i++)
        if (list->extents[i].backing && !chunk_cache_attach(&io->cache, list->extents[i].backing))
            return false;
    return true;
}

/* Fills in the iovecs of a range that is in blobs only, and returns their number. 0: it is not, or
 * needs more than `most`. */
static int
gather_blobs(const struct extent_list *list, uint64_t offset, size_t length, struct iovec *vectors,
             int most)
{
    const struct extent *extent = &list->extents[extent_list_find(list, offset)];
    int count = 0;

    for (; length > 0; extent++) {
        struct extent_part part = extent_part_at(extent, offset, length);

        if (!extent->blob || count == most)
            return 0;
        vectors[count++] = (struct iovec){extent->blob->data + part.offset, part.length};
        offset += part.length;
        length -= part.length;
    }
    return count;
}

void
io_read(struct io *io, struct extent_list *list, uint64_t offset, size_t length, io_done done,
        void *arg)
{
    struct request read = {.list = list,
                           .offset = offset,
                           .length = length,
                           .done = done,
                           .arg = arg,
                           .started = monotonic_ns()};
    struct iovec vectors[STACK_IOVECS];
    struct request *request = NULL;
    int count;

    atomic_fetch_add(&io->counters.in_flight, 1);
    atomic_fetch_add(&io->counters.bytes_requested, length);
    extent_list_ref(list);
    count = gather_blobs(list, offset, length, vectors, STACK_IOVECS);
    if (count > 0) {
        request_answer(
            io, &read,
            &(struct io_answer){.vectors = vectors, .count = count, .cached_bytes = length});
        extent_list_unref(list);
        return;
    }
    if (attach_backings(io, list, offset, length))
        request = malloc(sizeof(*request));
    if (!request) {
        request_answer(io, &read, &(struct io_answer){.result = -ENOMEM});
        extent_list_unref(list);
        return;
    }
    *request = read;
    request_start(io, request);
}

/* ---- lifetime ---- */

static uint64_t
default_memory(void)
{
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    return all / 8 < MEMORY_DEFAULT ? all / 8 : MEMORY_DEFAULT;
}

static void
io_init(struct io *io, const struct io_options *options)
{
    uint64_t budget = options->memory ? options->memory : default_memory();

    if (budget < MEMORY_MIN)
        budget = MEMORY_MIN;
    chunk_cache_init(&io->cache, budget);
    io->cache.read_done = request_chunk_read;
    io->cache.owner = io;
    io->limits.readahead = READAHEAD_DEFAULT;
    if (!options->no_prefetch)
        io->limits.window_max = budget / 4 < WINDOW_MAX ? budget / 4 : WINDOW_MAX;
    pthread_cond_init(&io->drained, NULL);
    condition_init(&io->reclaim);
}

errint_t
io_new(const struct io_options *options, struct io **io)
{
    struct io *made = calloc(1, sizeof(*made));
    errint_t result;

    if (!made)
        return -ENOMEM;
    io_init(made, options);
    result = storage_new(options, &made->storage);
    made->cache.storage = made->storage;
    if (result == 0)
        result = reclaim_start(made);
    if (result < 0) {
        io_free(made);
        return result;
    }
    *io = made;
    return 0;
}

void
io_set_readahead(struct io *io, uint64_t bytes)
{
    pthread_mutex_lock(&io->cache.lock);
    io->limits.readahead = bytes;
    chunk_cache_unlock(&io->cache);
}

void
io_free(struct io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->cache.lock);
    while (io->queued > 0 || io->active > 0 || io->cache.reading > 0 || io->is_admitting)
        pthread_cond_wait(&io->drained, &io->cache.lock);
    chunk_cache_unlock(&io->cache);
    reclaim_stop(io);
    if (io->storage) {
        /* Its threads may still be in the last completion. */
        storage_stop(io->storage);
        storage_free(io->storage);
    }
    pthread_cond_destroy(&io->reclaim);
    pthread_cond_destroy(&io->drained);
    chunk_cache_destroy(&io->cache);
    free(io);
}

struct storage *
io_storage(struct io *io)
{
    return io->storage;
}

/* ---- metrics ---- */

static uint64_t
counter_get(atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void
io_counters(struct io *io, struct io_counters *counters)
{
    struct storage_counters *storage = storage_counters(io->storage);
    struct request_counters *requests = &io->counters;
    struct chunk_cache *cache = &io->cache;

    counters->bytes_asked = counter_get(&requests->bytes_requested);
    counters->reads = counter_get(&requests->answered);
    counters->bytes = counter_get(&requests->bytes);
    counters->cached_bytes = counter_get(&requests->cached_bytes);
    counters->errors = counter_get(&requests->errors);
    counters->stale = counter_get(&requests->stale);
    counters->in_flight = counter_get(&requests->in_flight);
    counters->stalls = counter_get(&requests->stalls);
    histogram_read(&requests->duration, &counters->duration);

    counters->prefetched_bytes = counter_get(&cache->prefetched);
    counters->prefetched_used = counter_get(&cache->prefetched_used);
    counters->prefetched_wasted = counter_get(&cache->prefetched_wasted);
    counters->expired = counter_get(&cache->expired);
    pthread_mutex_lock(&cache->lock);
    counters->memory = cache->memory.used;
    counters->memory_budget = cache->memory.budget;
    chunk_cache_unlock(cache);

    counters->storage_reads = counter_get(&storage->reads);
    counters->storage_bytes = counter_get(&storage->bytes);
    counters->page_cache_bytes = counter_get(&storage->cached_bytes);
    counters->retries = counter_get(&storage->retries);
    counters->descriptors = descriptors_state(storage_descriptors(io->storage)).open;
    storage_queue(io->storage, &counters->storage_in_flight, &counters->storage_waiting);
    storage_fallbacks(io->storage, counters->fallbacks);
    histogram_read(&storage->duration, &counters->storage_duration);
}

void
io_family_counters(struct io *io, struct family *family, struct io_family_counters *counters)
{
    const struct access_history *history;

    *counters = (struct io_family_counters){0};
    for (int i = 0; i < FAMILY_COUNTERS; i++)
        counters->bytes[i] = counter_get(&family->counters[i]);
    pthread_mutex_lock(&io->cache.lock);
    history = family->history;
    if (history) {
        counters->pieces_started = history->pieces_started;
        counters->started_in_file_order = history->started_in_file_order;
        counters->started_by_name = history->started_by_name;
    }
    chunk_cache_unlock(&io->cache);
}

void
io_status(struct io *io, struct buffer *out)
{
    buffer_add_char(out, '{');
    storage_status(io->storage, out);
    buffer_addf(out, ",\"prefetch\":{\"on\":%s},\"memory\":%llu}",
                io->limits.window_max > 0 ? "true" : "false",
                (unsigned long long)io->cache.memory.budget);
}
