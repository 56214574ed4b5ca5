/* SPDX-License-Identifier: Apache-2.0 */
#include "io/request.h"

#include "base/array.h"
#include "base/clock.h"
#include "io/block.h"
#include "io/prefetch_submit.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* An answer with more iovecs is copied into one buffer, since writev(2) takes at most 1024. */
#define ANSWER_IOVECS_MAX 1000
/* Retries after errors in blocks that only other requests need. */
#define ATTEMPTS_MAX 4

/* ---- pinning: with the lock held ---- */

static struct pin *
request_pin(struct request *request, struct chunk *chunk, bool is_first)
{
    const struct pin pin = {.chunk = chunk, .request = request, .is_first = is_first};

    if (!array_add(request->pins, request->count, pin))
        return NULL;
    chunk_pin(chunk, request->lane);
    return &request->pins[request->count - 1];
}

/* Pins the chunks of bytes [offset, end) of the file, and creates missing ones. Adds the memory
 * that the new ones need to *cost. */
static errint_t
request_pin_range(struct request *request, struct cached_file *file, uint64_t offset, uint64_t end,
                  uint64_t *cost)
{
    uint64_t position = block_down(offset);
    uint64_t stop = block_up(end);
    uint32_t i = cached_file_find(file, position);

    while (position < stop) {
        struct chunk *chunk = i < file->count ? file->chunks[i] : NULL;

        if (!chunk || chunk->read.offset > position) {
            uint64_t gap_end = chunk && chunk->read.offset < stop ? chunk->read.offset : stop;

            if (gap_end - position > MEMORY_LARGEST)
                gap_end = position + CHUNK_BYTES;
            chunk = chunk_new(file, position, gap_end, true);
            if (!chunk)
                return -ENOMEM;
            if (!request_pin(request, chunk, true)) {
                chunk_discard(chunk);
                return -ENOMEM;
            }
            *cost += memory_cost(chunk->read.length);
        } else if (!request_pin(request, chunk, false)) {
            return -ENOMEM;
        }
        position = chunk_end(chunk);
        i++;
    }
    return 0;
}

static errint_t
request_pin_all(struct io *io, struct request *request, uint64_t *cost)
{
    const struct extent_list *list = request->list;
    const struct extent *extent = &list->extents[extent_list_find(list, request->offset)];
    uint64_t offset = request->offset;
    size_t left = request->length;
    errint_t result = 0;

    for (; left > 0 && result == 0; extent++) {
        struct extent_part part = extent_part_at(extent, offset, left);

        if (extent->backing && atomic_load(&extent->backing->stale))
            result = -ESTALE;
        else if (extent->backing)
            result = request_pin_range(request, chunk_cache_file(&io->cache, extent->backing),
                                       part.offset, part.offset + part.length, cost);
        offset += part.length;
        left -= part.length;
    }
    return result;
}

static void
request_unpin_all(struct request *request)
{
    for (unsigned i = 0; i < request->count; i++) {
        struct chunk *chunk = request->pins[i].chunk;

        if (chunk->state == CHUNK_READING && !chunk->is_charged && chunk->pins == 1)
            chunk_discard(chunk);
        else
            chunk_unpin(chunk, 0);
    }
    request->count = 0;
}

/* Charges the new chunks of a request. */
static void
request_charge(struct request *request, struct list *batch)
{
    for (unsigned i = 0; i < request->count; i++) {
        struct chunk *chunk = request->pins[i].chunk;

        if (chunk->state == CHUNK_READING && !chunk->is_charged) {
            chunk_charge(chunk, request->lane, batch);
            cached_file_note_request(chunk->file, chunk->read.offset, chunk_end(chunk));
        }
    }
}

static void
request_wait_for_chunks(struct request *request)
{
    for (unsigned i = 0; i < request->count; i++) {
        struct pin *pin = &request->pins[i];

        if (pin->chunk->state != CHUNK_READING)
            continue;
        pin->next = pin->chunk->waiters;
        pin->chunk->waiters = pin;
        pin->waited = true;
        pin->chunk->read.urgent = true;
        request->pending++;
    }
    if (request->pending > 0)
        request->waiting_since = monotonic_ns();
}

/* Pins all chunks of the request. Those in *batch must then be submitted. On an error the request
 * holds no pins. -EAGAIN: memory is short. */
static errint_t
request_plan(struct io *io, struct request *request, bool may_allocate, struct list *batch)
{
    struct chunk_cache *cache = &io->cache;
    struct memory_lane *lane = request->lane;
    uint64_t cost = 0;
    errint_t result = request_pin_all(io, request, &cost);

    if (result == 0 && cost > 0 && !may_allocate)
        result = -EAGAIN;
    if (result == 0 && cost > 0 && lane->active > 0 && !memory_lane_allows(cache, lane, cost))
        result = -EAGAIN;
    if (result == 0 && cost > 0 &&
        !chunk_cache_make_room(cache, cost, cache->memory.budget, true) && lane->active > 0)
        result = -EAGAIN;
    if (result < 0) {
        request_unpin_all(request);
        return result;
    }
    request_charge(request, batch);
    request_wait_for_chunks(request);
    io->active++;
    lane->active++;
    return 0;
}

static void
request_enqueue(struct io *io, struct request *request)
{
    fifo_add(&request->lane->queued, &request->node);
    io->queued++;
}

/* The request no longer holds pins. */
static void
request_end_active(struct io *io, const struct request *request)
{
    io->active--;
    request->lane->active--;
}

/* Sets the lane of the request, by its file systems. It uses the lane until it is freed. False: out
 * of memory. */
static bool
request_enter_lane(struct io *io, struct request *request)
{
    uint64_t key = extent_list_lane(request->list, request->offset, request->length);

    request->lane = chunk_cache_lane(&io->cache, key);
    if (request->lane)
        atomic_fetch_add(&request->lane->lane.users, 1);
    return request->lane != NULL;
}

/* ---- answers: without the lock ---- */

void
request_answer(struct io *io, const struct request *request, const struct io_answer *answer)
{
    struct request_counters *counters = &io->counters;

    /* Before `done`, so that the counters include a read that was answered. */
    histogram_add_since(&counters->duration, request->started);
    atomic_fetch_add(&counters->answered, 1);
    atomic_fetch_add(&counters->cached_bytes, answer->cached_bytes);
    if (answer->result == 0)
        atomic_fetch_add(&counters->bytes, request->length);
    else
        atomic_fetch_add(&counters->errors, 1);
    if (answer->result == -ESTALE)
        atomic_fetch_add(&counters->stale, 1);
    if (answer->waited)
        atomic_fetch_add(&counters->stalls, 1);
    request->done(request->arg, answer);
    atomic_fetch_sub(&counters->in_flight, 1);
}

static void
request_fail(struct io *io, const struct request *request, errint_t error)
{
    request_answer(io, request, &(struct io_answer){.result = error, .waited = request->waited});
}

static void
/* NOLINTNEXTLINE(readability-non-const-parameter): an iovec has no const */
iovec_append(struct iovec *vectors, int *count, char *base, size_t length)
{
    if (*count > 0) {
        struct iovec *last = &vectors[*count - 1];

        if ((char *)last->iov_base + last->iov_len == base) {
            last->iov_len += length;
            return;
        }
    }
    vectors[(*count)++] = (struct iovec){base, length};
}

/* Fills in the iovecs of a request whose chunks are ready: at most one for each extent and pin. */
static int
request_gather(const struct request *request, struct iovec *vectors)
{
    struct request_cursor cursor = {.request = request};
    int count = 0;

    while (request_cursor_next(&cursor)) {
        const struct extent_part *part = &cursor.part;
        uint64_t position = part->offset;
        uint64_t end = part->offset + part->length;

        if (part->extent->blob)
            iovec_append(vectors, &count, part->extent->blob->data + position, part->length);
        for (unsigned i = 0; i < cursor.count; i++) {
            struct chunk *chunk = cursor.pins[i].chunk;
            uint64_t stop = chunk_end(chunk) < end ? chunk_end(chunk) : end;

            cursor.pins[i].delivered = stop - position;
            iovec_append(vectors, &count, chunk->read.buffer + (position - chunk->read.offset),
                         stop - position);
            position = stop;
        }
    }
    return count;
}

/* The bytes of an answer that were cached, after request_gather(). Bytes copied from the page cache
 * count as cached. */
static uint64_t
request_cached_bytes(const struct request *request)
{
    uint64_t bytes = request->length;

    for (unsigned i = 0; i < request->count; i++) {
        const struct pin *pin = &request->pins[i];

        if (pin->is_first && !pin->chunk->read.copied)
            bytes -= pin->delivered;
    }
    return bytes;
}

static char *
iovec_join(const struct iovec *vectors, int count, size_t length)
{
    char *bytes = malloc(length);
    char *to = bytes;

    for (int i = 0; bytes && i < count; i++) {
        memcpy(to, vectors[i].iov_base, vectors[i].iov_len);
        to += vectors[i].iov_len;
    }
    return bytes;
}

static size_t
request_iovecs_max(const struct request *request)
{
    uint32_t first = extent_list_find(request->list, request->offset);
    uint32_t last = extent_list_find(request->list, request->offset + request->length - 1);

    return last - first + 1 + request->count;
}

static void
request_answer_from_chunks(struct io *io, struct request *request)
{
    struct iovec on_stack[STACK_IOVECS];
    size_t most = request_iovecs_max(request);
    struct iovec *vectors = most <= STACK_IOVECS ? on_stack : malloc(most * sizeof(*vectors));
    struct io_answer answer = {.vectors = vectors};
    char *copy = NULL;

    if (!vectors) {
        request_fail(io, request, -ENOMEM);
        return;
    }
    answer.count = request_gather(request, vectors);
    if (answer.count > ANSWER_IOVECS_MAX) {
        copy = iovec_join(vectors, answer.count, request->length);
        vectors[0] = (struct iovec){copy, request->length};
        answer.count = 1;
    }
    if (answer.count == 1 && !vectors[0].iov_base) {
        request_fail(io, request, -ENOMEM);
    } else {
        answer.cached_bytes = request_cached_bytes(request);
        answer.waited = request->waited;
        request_answer(io, request, &answer);
    }
    free(copy);
    if (vectors != on_stack)
        free(vectors);
}

/* ---- completion ---- */

static void requests_admit(struct io *io);

/* Adds to request->waited the time since it began to wait for its chunks, if one of them was not
 * ready and was then read from storage. */
static void
request_end_wait(struct request *request)
{
    bool waited = false;

    for (unsigned i = 0; i < request->count; i++)
        waited |= request->pins[i].waited && !request->pins[i].chunk->read.copied;
    if (waited)
        request->waited += monotonic_ns() - request->waiting_since;
}

static void
request_free(struct request *request)
{
    if (request->lane)
        atomic_fetch_sub(&request->lane->lane.users, 1);
    extent_list_unref(request->list);
    free(request->pins);
    free(request);
}

/* With the lock held: whether a failed chunk has blocks that the request does not need. The error
 * may be in those. */
static bool
request_failed_for_others(const struct request *request)
{
    struct request_cursor cursor = {.request = request};

    while (request_cursor_next(&cursor)) {
        uint64_t start = block_down(cursor.part.offset);
        uint64_t end = block_up(cursor.part.offset + cursor.part.length);

        for (unsigned i = 0; i < cursor.count; i++) {
            const struct chunk *chunk = cursor.pins[i].chunk;

            if (chunk->state == CHUNK_FAILED &&
                (chunk->read.offset < start || chunk_end(chunk) > end))
                return true;
        }
    }
    return false;
}

/* Queues a failed request again, to read only the blocks that it needs. False: this was tried
 * already or cannot help. */
static bool
request_retry(struct io *io, struct request *request)
{
    bool again;

    if (request->result == -ESTALE || request->attempts == ATTEMPTS_MAX)
        return false;
    pthread_mutex_lock(&io->cache.lock);
    again = request_failed_for_others(request);
    if (again) {
        request_unpin_all(request);
        request->attempts++;
        request->result = 0;
        request_end_active(io, request);
        request_enqueue(io, request);
    }
    chunk_cache_unlock(&io->cache);
    if (again)
        requests_admit(io);
    return again;
}

static void
request_log_failure(struct io *io, const struct request *request)
{
    for (unsigned i = 0; i < request->count && request->result != -ESTALE; i++) {
        const struct chunk *chunk = request->pins[i].chunk;

        if (chunk->state == CHUNK_FAILED) {
            descriptors_failed(storage_descriptors(io->storage), chunk->file->backing,
                               chunk->read.offset, chunk->result);
            return;
        }
    }
}

/* Answers and frees a request that has no pending chunks. */
static void
request_complete(struct io *io, struct request *request)
{
    request_end_wait(request);
    if (request->result < 0) {
        if (request_retry(io, request))
            return;
        request_log_failure(io, request);
    }
    if (request->result == 0)
        request_answer_from_chunks(io, request);
    else
        request_fail(io, request, request->result);
    pthread_mutex_lock(&io->cache.lock);
    for (unsigned i = 0; i < request->count; i++)
        chunk_unpin(request->pins[i].chunk, request->pins[i].delivered);
    request_end_active(io, request);
    pthread_cond_signal(&io->drained);
    chunk_cache_unlock(&io->cache);
    request_free(request);
    requests_admit(io);
}

/* Logs the first of the request's files that is stale. Without the lock. */
static void
request_log_stale(const struct request *request)
{
    const struct extent_list *list = request->list;
    const struct extent *extent = &list->extents[extent_list_find(list, request->offset)];
    uint64_t offset = request->offset;
    size_t left = request->length;

    for (; left > 0; extent++) {
        struct extent_part part = extent_part_at(extent, offset, left);

        if (extent->backing && atomic_load(&extent->backing->stale)) {
            descriptors_stale(extent->backing);
            return;
        }
        offset += part.length;
        left -= part.length;
    }
}

/* After request_plan(), which returned `result`: submits the reads, or completes a request that
 * needs none (`is_ready`). */
static void
request_proceed(struct io *io, struct request *request, errint_t result, bool is_ready,
                struct list *batch)
{
    if (result < 0) {
        if (result == -ESTALE)
            request_log_stale(request);
        request_fail(io, request, result);
        request_free(request);
        return;
    }
    /* From here on the request may have been freed, unless it is ready. */
    chunk_cache_submit_batch(&io->cache, batch);
    if (is_ready)
        request_complete(io, request);
}

/* With the lock held: removes the next queued request for which there is memory, with the result of
 * request_plan(). The lanes take turns. NULL: there is none. */
static struct request *
requests_take(struct io *io, errint_t *result, struct list *batch)
{
    if (io->queued == 0)
        return NULL;
    list_for_each(node, &io->cache.lanes)
    {
        struct memory_lane *lane = container_of(node, struct memory_lane, lane.node);
        struct request *request = (struct request *)lane->queued.first;

        if (request)
            *result = request_plan(io, request, true, batch);
        if (request && *result != -EAGAIN) {
            fifo_take(&lane->queued);
            io->queued--;
            list_rotate(&io->cache.lanes, node);
            return request;
        }
    }
    return NULL;
}

/*
 * Starts queued requests while there is memory, each lane in order. Only one thread at a time: a
 * started request may complete at once and call this again, which must not recurse without bound.
 */
static void
requests_admit(struct io *io)
{
    struct list batch = LIST_INIT(batch);
    struct request *request;
    errint_t result = 0;

    pthread_mutex_lock(&io->cache.lock);
    if (io->is_admitting) {
        chunk_cache_unlock(&io->cache);
        return;
    }
    io->is_admitting = true;
    while ((request = requests_take(io, &result, &batch))) {
        bool is_ready = request->pending == 0;

        chunk_cache_unlock(&io->cache);
        request_proceed(io, request, result, is_ready, &batch);
        pthread_mutex_lock(&io->cache.lock);
    }
    io->is_admitting = false;
    pthread_cond_signal(&io->drained);
    chunk_cache_unlock(&io->cache);
}

/* With the lock held: removes the waiters of a chunk, and returns the requests that wait for no
 * other chunk. */
static struct request *
chunk_take_waiters(struct chunk *chunk, errint_t result)
{
    struct request *completed = NULL;
    struct pin *pin;

    while ((pin = chunk->waiters)) {
        struct request *request = pin->request;

        chunk->waiters = pin->next;
        if (result < 0 && request->result == 0)
            request->result = result;
        if (--request->pending == 0) {
            request->next = completed;
            completed = request;
        }
    }
    return completed;
}

void
request_chunk_read(struct storage_read *read, errint_t result)
{
    struct chunk *chunk = container_of(read, struct chunk, read);
    struct io *io = chunk->file->cache->owner;
    struct backing *backing = read->backing;
    struct request *completed;

    pthread_mutex_lock(&io->cache.lock);
    if (result == -ECANCELED && chunk->waiters) {
        /* A background read was canceled, but now a request waits for it. */
        chunk_cache_unlock(&io->cache);
        storage_read(io->storage, read);
        return;
    }
    completed = chunk_take_waiters(chunk, result);
    chunk_end_read(chunk, result);
    chunk_cache_unlock(&io->cache);

    while (completed) {
        struct request *next = completed->next;

        request_complete(io, completed);
        completed = next;
    }
    requests_admit(io);
    /* This may be the last reference, and free the cached_file. */
    backing_unref(backing);
    pthread_mutex_lock(&io->cache.lock);
    io->cache.reading--;
    pthread_cond_signal(&io->drained);
    chunk_cache_unlock(&io->cache);
}

/* ---- start ---- */

void
request_start(struct io *io, struct request *request)
{
    struct extent_list *list = request->list;
    uint64_t end = request->offset + request->length;
    struct list batch = LIST_INIT(batch);
    struct prefetch_plan plan = {0};
    bool prefetches = false;
    errint_t result;
    bool is_ready;

    pthread_mutex_lock(&io->cache.lock);
    result = request_enter_lane(io, request) ? 0 : -ENOMEM;
    if (result == 0)
        result = request_plan(io, request, !request->lane->queued.first, &batch);
    if (result == -EAGAIN)
        request_enqueue(io, request);
    if (result == 0)
        prefetches = prefetch_decide(io, request, &plan);
    is_ready = request->pending == 0;
    /* Without the lock the request may be answered, and drop its reference. */
    if (prefetches)
        extent_list_ref(list);
    if (io->reclaim_sleeps)
        pthread_cond_signal(&io->reclaim);
    chunk_cache_unlock(&io->cache);
    if (result == -EAGAIN)
        return;
    /* Submit foreground reads before background reads, and both before a ready answer. */
    if (result == 0 && !is_ready)
        chunk_cache_submit_batch(&io->cache, &batch);
    if (prefetches)
        prefetch_submit(io, list, end, &plan);
    if (result < 0 || is_ready)
        request_proceed(io, request, result, is_ready, &batch);
    if (prefetches)
        extent_list_unref(list);
}
