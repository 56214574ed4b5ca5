/* SPDX-License-Identifier: Apache-2.0 */
#include "io/chunk_cache.h"

#include "base/array.h"
#include "io/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Limit of idle delivered chunks. They are kept for requests of their first and last block. */
#define DELIVERED_BYTES_MAX (8 * 1024 * 1024)
/* Requesting this many bytes again counts as a second pass. The blocks that adjacent tensors share
 * stay below it. */
#define SECOND_PASS_BYTES (256 * 1024)

/* ---- index of a file ---- */

uint32_t
cached_file_find(const struct cached_file *file, uint64_t offset)
{
    uint32_t low = 0, high = file->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (chunk_end(file->chunks[middle]) > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool
cached_file_insert(struct cached_file *file, struct chunk *chunk)
{
    uint32_t place = cached_file_find(file, chunk->read.offset);
    struct chunk **chunks = array_room(file->chunks, file->count, sizeof(struct chunk *));

    if (!chunks)
        return false;
    file->chunks = chunks;
    memmove(&file->chunks[place + 1], &file->chunks[place],
            (file->count - place) * sizeof(struct chunk *));
    file->chunks[place] = chunk;
    file->count++;
    return true;
}

static void
cached_file_remove(struct cached_file *file, struct chunk *chunk)
{
    uint32_t place = cached_file_find(file, chunk->read.offset);

    file->count--;
    memmove(&file->chunks[place], &file->chunks[place + 1],
            (file->count - place) * sizeof(struct chunk *));
}

/* ---- delivered and resident bytes ---- */

static void
cached_file_note_delivered(struct cached_file *file, uint64_t start, uint64_t end)
{
    for (unsigned i = 0; i < file->delivered_count; i++) {
        struct byte_range *range = &file->delivered[i];

        if (start > range->end || end < range->start)
            continue;
        range->start = start < range->start ? start : range->start;
        range->end = end > range->end ? end : range->end;
        return;
    }
    if (file->delivered_count < DELIVERED_RANGES) {
        file->delivered[file->delivered_count++] = (struct byte_range){start, end};
    } else {
        file->delivered[file->oldest_delivered] = (struct byte_range){start, end};
        file->oldest_delivered = (file->oldest_delivered + 1) % DELIVERED_RANGES;
    }
}

void
cached_file_note_request(struct cached_file *file, uint64_t start, uint64_t end)
{
    for (unsigned i = 0; i < file->delivered_count; i++) {
        const struct byte_range *range = &file->delivered[i];

        if (start >= range->start && end <= range->end)
            file->delivered_again += end - start;
    }
    if (file->delivered_again < SECOND_PASS_BYTES)
        return;
    file->delivered_again = 0;
    file->delivered_count = 0;
    file->oldest_delivered = 0;
}

uint64_t
cached_file_skip_delivered(const struct cached_file *file, uint64_t offset, uint64_t *end)
{
    uint64_t skipped = offset;

    for (unsigned i = 0; i < file->delivered_count; i++) {
        const struct byte_range *range = &file->delivered[i];

        /* The block at each end may have been delivered in part only. */
        uint64_t start = range->start + BLOCK_SIZE, stop = range->end - BLOCK_SIZE;

        if (start <= offset && stop > skipped)
            skipped = stop;
        else if (start > offset && start < *end && stop > start)
            *end = start;
    }
    return skipped;
}

/* A background read was canceled, since the page cache holds the bytes. They are assumed to stay
 * there for one tick, since asking the kernel each time costs as much as a read. */
static void
cached_file_note_resident(struct cached_file *file, uint64_t start, uint64_t end)
{
    struct byte_range *resident = &file->resident;

    if (file->resident_tick == file->cache->ticks && start <= resident->end &&
        end >= resident->start) {
        if (start > resident->start)
            start = resident->start;
        if (end < resident->end)
            end = resident->end;
    }
    *resident = (struct byte_range){start, end};
    file->resident_tick = file->cache->ticks;
}

uint64_t
cached_file_skip_resident(const struct cached_file *file, uint64_t offset)
{
    bool is_resident = file->resident_tick == file->cache->ticks &&
                       offset >= file->resident.start && offset < file->resident.end;

    return is_resident ? file->resident.end : offset;
}

/* ---- idle chunks ---- */

static void
idle_list_add(struct idle_list *list, struct chunk *chunk)
{
    list_add(&list->chunks, &chunk->node);
    list->bytes += chunk->read.length;
}

static void
idle_list_remove(struct idle_list *list, struct chunk *chunk)
{
    list_remove(&chunk->node);
    list->bytes -= chunk->read.length;
}

/* The chunk that has been idle longest, or NULL. */
static struct chunk *
idle_list_first(const struct idle_list *list)
{
    struct list *first = list_first(&list->chunks);

    return first ? container_of(first, struct chunk, node) : NULL;
}

static struct idle_list *
idle_list_of(struct chunk_cache *cache, const struct chunk *chunk)
{
    /* Except a block at each end, which neighboring tensors may share. */
    bool all = chunk->delivered > 0 && chunk->delivered + 2 * BLOCK_SIZE > chunk->read.valid;

    return all ? &cache->delivered : &cache->undelivered;
}

struct memory_lane *
chunk_cache_lane(struct chunk_cache *cache, uint64_t key)
{
    return (struct memory_lane *)lanes_find(&cache->lanes, key, sizeof(struct memory_lane));
}

bool
memory_lane_allows(const struct chunk_cache *cache, const struct memory_lane *lane, uint64_t cost)
{
    uint64_t others = cache->held - lane->bytes;
    uint64_t left = cache->memory.budget > others ? cache->memory.budget - others : 0;

    return lane->bytes + cost <= left / 4 * 3;
}

static void
chunk_charge_lane(struct chunk *chunk, struct memory_lane *lane)
{
    uint64_t cost = memory_cost(chunk->read.length);

    chunk->lane = lane;
    lane->bytes += cost;
    chunk->file->cache->held += cost;
    atomic_fetch_add(&lane->lane.users, 1);
}

static void
chunk_uncharge_lane(struct chunk_cache *cache, struct chunk *chunk)
{
    uint64_t cost = memory_cost(chunk->read.length);

    if (!chunk->lane)
        return;
    chunk->lane->bytes -= cost;
    cache->held -= cost;
    atomic_fetch_sub(&chunk->lane->lane.users, 1);
    chunk->lane = NULL;
}

static void
chunk_free(struct chunk_cache *cache, struct chunk *chunk)
{
    chunk_uncharge_lane(cache, chunk);
    if (chunk->is_charged)
        memory_put(&cache->memory, chunk->read.buffer, chunk->read.length);
    free(chunk);
}

/* Counts a chunk for the engine and for its checkpoint. */
static void
count_prefetched(const struct chunk *chunk, atomic_uint_fast64_t *all, enum family_counter counter)
{
    atomic_fetch_add(all, chunk->read.valid);
    family_count(chunk->file->backing->family, counter, chunk->read.valid);
}

/* Frees an idle chunk. */
static void
chunk_evict(struct chunk_cache *cache, struct chunk *chunk)
{
    struct idle_list *list = idle_list_of(cache, chunk);

    if (list == &cache->delivered)
        cached_file_note_delivered(chunk->file, chunk->read.offset, chunk_end(chunk));
    idle_list_remove(list, chunk);
    cached_file_remove(chunk->file, chunk);
    if (chunk->is_prefetched && chunk->delivered == 0) {
        count_prefetched(chunk, &cache->prefetched_wasted, FAMILY_PREFETCHED_WASTED);
        if (chunk->read.valid >= SMALL_GAP_BYTES)
            prefetch_note_waste(&chunk->file->prefetch, &chunk->plan);
    }
    chunk_free(cache, chunk);
}

static void
chunk_become_idle(struct chunk_cache *cache, struct chunk *chunk)
{
    chunk_uncharge_lane(cache, chunk);
    chunk->idle_since = cache->ticks;
    idle_list_add(idle_list_of(cache, chunk), chunk);
    /* The page cache has a copy, and a buffer that is reused soon is still in the CPU's cache. */
    if (chunk->read.was_cached && chunk->delivered > 0)
        chunk_evict(cache, chunk);
    while (cache->delivered.bytes > DELIVERED_BYTES_MAX)
        chunk_evict(cache, idle_list_first(&cache->delivered));
}

bool
chunk_cache_make_room(struct chunk_cache *cache, uint64_t cost, uint64_t budget, bool undelivered)
{
    struct chunk *chunk;

    while (cache->memory.used + cost > budget && (chunk = idle_list_first(&cache->delivered)))
        chunk_evict(cache, chunk);
    while (undelivered && cache->memory.used + cost > budget &&
           (chunk = idle_list_first(&cache->undelivered)))
        chunk_evict(cache, chunk);
    return cache->memory.used + cost <= budget;
}

static void
idle_list_expire(struct chunk_cache *cache, struct idle_list *list, uint64_t ticks)
{
    struct chunk *chunk;

    while ((chunk = idle_list_first(list)) && chunk->idle_since + ticks < cache->ticks) {
        atomic_fetch_add(&cache->expired, chunk->read.valid);
        chunk_evict(cache, chunk);
    }
}

void
chunk_cache_expire(struct chunk_cache *cache, uint64_t ticks)
{
    cache->ticks++;
    idle_list_expire(cache, &cache->delivered, ticks);
    idle_list_expire(cache, &cache->undelivered, ticks);
}

/* ---- chunks ---- */

struct chunk *
chunk_new(struct cached_file *file, uint64_t start, uint64_t end, bool urgent)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    uint64_t size = file->backing->identity.size;

    if (!chunk)
        return NULL;
    chunk->file = file;
    chunk->state = CHUNK_READING;
    chunk->read.backing = file->backing;
    chunk->read.offset = start;
    chunk->read.length = end - start;
    chunk->read.valid = (size_t)((end < size ? end : size) - start);
    chunk->read.urgent = urgent;
    chunk->read.complete = file->cache->read_done;
    if (!cached_file_insert(file, chunk)) {
        free(chunk);
        return NULL;
    }
    return chunk;
}

void
chunk_discard(struct chunk *chunk)
{
    cached_file_remove(chunk->file, chunk);
    free(chunk);
}

void
chunk_charge(struct chunk *chunk, struct memory_lane *lane, struct list *batch)
{
    struct chunk_cache *cache = chunk->file->cache;

    chunk_charge_lane(chunk, lane);
    chunk->is_charged = true;
    chunk->read.buffer = memory_get(&cache->memory, chunk->read.length);
    list_add(batch, &chunk->node);
    cache->reading++;
    backing_ref(chunk->read.backing);
}

static bool
chunk_lacks_large_buffer(const struct chunk *chunk)
{
    return !chunk->read.buffer && memory_cost(chunk->read.length) == MEMORY_LARGEST;
}

/* Maps *count large buffers, for `wanted` chunks. NULL: out of memory. */
static char *
map_large_buffers(struct chunk_cache *cache, unsigned wanted, unsigned *count)
{
    char *buffers;

    pthread_mutex_lock(&cache->lock);
    *count = memory_at_once(&cache->memory, wanted);
    chunk_cache_unlock(cache);
    buffers = memory_map(MEMORY_LARGEST, *count);
    if (buffers || *count == 1)
        return buffers;
    *count = 1;
    return memory_map(MEMORY_LARGEST, 1);
}

static void
keep_spare_buffers(struct chunk_cache *cache, char *buffers, unsigned count)
{
    pthread_mutex_lock(&cache->lock);
    for (; count > 0; count--, buffers += MEMORY_LARGEST)
        memory_add_spare(&cache->memory, buffers, MEMORY_LARGEST);
    chunk_cache_unlock(cache);
}

/* Maps buffers for the chunks that have no spare one. Out of memory: some still have none. */
static void
batch_map_buffers(struct chunk_cache *cache, struct list *batch)
{
    unsigned wanted = 0, count = 0;
    char *buffers = NULL;

    list_for_each(node, batch)
    {
        wanted += chunk_lacks_large_buffer(container_of(node, struct chunk, node));
    }
    list_for_each(node, batch)
    {
        struct chunk *chunk = container_of(node, struct chunk, node);

        if (chunk->read.buffer)
            continue;
        if (!chunk_lacks_large_buffer(chunk)) {
            chunk->read.buffer = memory_map(chunk->read.length, 1);
            continue;
        }
        if (count == 0)
            buffers = map_large_buffers(cache, wanted, &count);
        if (!buffers)
            return;
        chunk->read.buffer = buffers;
        buffers += MEMORY_LARGEST;
        count--;
        wanted--;
    }
    if (count > 0)
        keep_spare_buffers(cache, buffers, count);
}

void
chunk_cache_submit_batch(struct chunk_cache *cache, struct list *batch)
{
    batch_map_buffers(cache, batch);
    list_for_each(node, batch)
    {
        struct chunk *chunk = container_of(node, struct chunk, node);

        list_remove(node); /* the chunk may be freed from here on */
        if (chunk->read.buffer)
            storage_read(cache->storage, &chunk->read);
        else
            cache->read_done(&chunk->read, -ENOMEM);
    }
}

void
chunk_pin(struct chunk *chunk, struct memory_lane *lane)
{
    if (chunk->pins++ > 0 || chunk->state != CHUNK_READY)
        return;
    idle_list_remove(idle_list_of(chunk->file->cache, chunk), chunk);
    chunk_charge_lane(chunk, lane);
}

void
chunk_unpin(struct chunk *chunk, uint64_t delivered)
{
    struct chunk_cache *cache = chunk->file->cache;

    if (delivered > 0 && chunk->is_prefetched && chunk->delivered == 0)
        count_prefetched(chunk, &cache->prefetched_used, FAMILY_PREFETCHED_USED);
    chunk->delivered += delivered;
    if (--chunk->pins > 0)
        return;
    if (chunk->state == CHUNK_READY)
        chunk_become_idle(cache, chunk);
    else if (chunk->state == CHUNK_FAILED)
        chunk_free(cache, chunk);
}

void
chunk_end_read(struct chunk *chunk, errint_t result)
{
    struct chunk_cache *cache = chunk->file->cache;

    if (result == -ECANCELED)
        cached_file_note_resident(chunk->file, chunk->read.offset, chunk_end(chunk));
    chunk->result = result;
    chunk->state = result < 0 ? CHUNK_FAILED : CHUNK_READY;
    if (result < 0)
        cached_file_remove(chunk->file, chunk);
    else if (chunk->is_prefetched)
        count_prefetched(chunk, &cache->prefetched, FAMILY_PREFETCHED);
    if (chunk->pins > 0)
        return;
    if (result < 0)
        chunk_free(cache, chunk);
    else
        chunk_become_idle(cache, chunk);
}

/* ---- files ---- */

/* attachment->forget. No chunk is pinned, since a request holds its extent list and so the backing.
 */
static void
cached_file_free(void *data)
{
    struct cached_file *file = data;
    struct chunk_cache *cache = file->cache;

    pthread_mutex_lock(&cache->lock);
    while (file->count > 0)
        chunk_evict(cache, file->chunks[file->count - 1]);
    /* Not chunk_cache_unlock(), which unmaps memory: the caller holds a lock. */
    pthread_mutex_unlock(&cache->lock);
    free(file->chunks);
    free(file);
}

/* The history that all shards of a checkpoint share. NULL: there is no family, or no memory. */
static struct access_history *
family_history(const struct backing *backing)
{
    if (backing->family && !backing->family->history)
        backing->family->history = calloc(1, sizeof(struct access_history));
    return backing->family ? backing->family->history : NULL;
}

bool
chunk_cache_attach(struct chunk_cache *cache, struct backing *backing)
{
    struct attachment *attachment =
        descriptors_attachment(storage_descriptors(cache->storage), backing);
    struct cached_file *file;

    if (!attachment)
        return false;
    pthread_mutex_lock(&cache->lock);
    if (!attachment->data) {
        file = calloc(1, sizeof(*file));
        if (file) {
            file->cache = cache;
            file->backing = backing;
            prefetch_init(&file->prefetch, family_history(backing));
            attachment->forget = cached_file_free;
            attachment->data = file;
        }
    }
    file = attachment->data;
    chunk_cache_unlock(cache);
    return file != NULL;
}

struct cached_file *
chunk_cache_file(struct chunk_cache *cache, struct backing *backing)
{
    struct attachment *attachment =
        descriptors_attachment(storage_descriptors(cache->storage), backing);

    return attachment ? attachment->data : NULL;
}

void
chunk_cache_init(struct chunk_cache *cache, uint64_t budget)
{
    pthread_mutex_init(&cache->lock, NULL);
    memory_init(&cache->memory, budget);
    list_init(&cache->lanes);
    list_init(&cache->delivered.chunks);
    list_init(&cache->undelivered.chunks);
}

void
chunk_cache_unlock(struct chunk_cache *cache)
{
    void *unneeded = memory_take_unneeded(&cache->memory);

    pthread_mutex_unlock(&cache->lock);
    memory_unmap(unneeded);
}

void
chunk_cache_destroy(struct chunk_cache *cache)
{
    lanes_free(&cache->lanes);
    memory_trim(&cache->memory, 0);
    memory_unmap(memory_take_unneeded(&cache->memory));
    pthread_mutex_destroy(&cache->lock);
}
