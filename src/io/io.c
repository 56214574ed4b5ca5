/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine. A read that lies in memory is answered at once. One that touches
 * backing files becomes a request, which pins the chunks it needs - those that
 * are there or on their way, and new ones for the rest - and is answered, from
 * their buffers, when the last of them is ready. Several requests may wait for
 * one chunk, so what is being read is never read twice.
 *
 * After a read the prefetcher says how far to go on from there; those chunks are
 * fetched without a request and wait, idle, for one.
 *
 * Memory: chunks hold buffers of one budget. A request gets all the buffers it
 * needs or none and then waits its turn, so two can never block each other; one
 * that is alone gets them even over the budget. What was read ahead never takes
 * the last quarter.
 *
 * `lock` guards requests, chunks, cached files, memory and prefetchers. It is held for
 * bookkeeping only: never over a system call that reads, or over `done`.
 */
#include "io/io.h"

#include "io/block.h"
#include "io/chunks.h"
#include "io/memory.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024ull
#define MIB (1024 * KIB)
/* The unit of reading ahead; larger reads bring no more from any storage. */
#define CHUNK MIB
/* A read of up to so many runs, all in memory, is answered from the stack. */
#define MOST_VECTORS_AT_ONCE 16
/* More vectors than this are copied into one: writev() takes 1024. */
#define MOST_VECTORS 1000
/* What has been handed out is kept this far, for its neighbour's first block. */
#define MOST_SERVED_BYTES (8 * MIB)
#define MOST_RANGES_AHEAD 128
#define CRUMBS (64 * KIB)
/* Of a request in the face of errors in chunks that others wanted. */
#define MOST_ATTEMPTS 4

#define DEFAULT_MEMORY (256 * MIB)
#define LEAST_MEMORY (4 * MIB)
#define LARGEST_WINDOW (32 * MIB)
#define DEFAULT_READAHEAD (128 * KIB)
#define TICK_SECONDS 1
#define IDLE_TICKS 5 /* then a chunk that nobody asks for is let go */

/* One run of a read: where it lies and how much of it is asked for. */
struct run {
    const struct extent *extent;
    uint64_t offset; /* in the backing or blob */
    size_t length;
};

struct pin {
    struct chunk *chunk;
    struct request *request;
    struct pin *next; /* of those that wait for the chunk */
    bool first; /* the chunk was made for the request */
    bool waited; /* it was not there yet */
    uint64_t length; /* bytes that were handed out of it */
};

struct request {
    struct request *next; /* of those that wait for memory, or have ended */
    struct extent_list *list;
    uint64_t offset;
    size_t length;
    io_done done;
    void *arg;
    uint64_t started; /* when, by monotonic_ns() */
    unsigned pending; /* chunks that are not there yet */
    unsigned attempts; /* that failed for what others wanted */
    errint_t result;
    struct pin *pins; /* in the order of the bytes */
    unsigned count, capacity;
};

struct counters {
    atomic_uint_fast64_t asked, reads, bytes, cached, errors, stale, in_flight, stalls;
    atomic_uint_fast64_t prefetched, used, wasted;
    struct histogram duration;
};

struct io {
    struct storage *storage;
    struct counters counters;
    struct prefetch_limits limits;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended; /* a request or the read of a chunk; for io_free */
    pthread_cond_t house; /* for the housekeeper: stopping, or it sleeps and need not */
    struct memory memory;
    struct request *waiting, **last_waiting; /* for memory, in order */
    bool admitting; /* a thread is at it */
    unsigned active; /* requests that have pins */
    unsigned reading; /* chunks the storage has */
    struct idle_list served; /* idle chunks that were handed out whole */
    struct idle_list unserved; /* those that were not */
    uint64_t ticks;
    bool stopping;
    bool house_sleeps; /* the housekeeper has nothing to look after */
    bool has_housekeeper;
    pthread_t housekeeper;
};

static void
add(atomic_uint_fast64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static uint64_t
get(atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* The run at byte `offset` of the list, at most `length` bytes of it. */
static struct run
run_at(const struct extent *extent, uint64_t offset, size_t length)
{
    uint64_t skipped = offset - extent->start;
    uint64_t rest = extent->length - skipped;

    return (struct run){extent, extent->offset + skipped, rest < length ? (size_t)rest : length};
}

static void
answer(struct io *io, const struct request *request, errint_t result, const struct iovec *vectors,
       int count)
{
    struct counters *counters = &io->counters;

    /* Before the reader can know: what it has read it finds counted. */
    histogram_add_since(&counters->duration, request->started);
    add(&counters->reads, 1);
    if (result == 0)
        add(&counters->bytes, request->length);
    else
        add(&counters->errors, 1);
    if (result == -ESTALE)
        add(&counters->stale, 1);
    request->done(request->arg, result, vectors, result == 0 ? count : 0);
    atomic_fetch_sub(&counters->in_flight, 1);
}

/* ---- Chunks. All with the lock held. ---- */

static struct idle_list *
idle_list_of(struct io *io, const struct chunk *chunk)
{
    /* But for a block at each end, which the neighbours may want. */
    bool whole = chunk->served > 0 && chunk->served + 2 * BLOCK_SIZE > chunk->read.valid;

    return whole ? &io->served : &io->unserved;
}

static void
chunk_dispose(struct io *io, struct chunk *chunk)
{
    if (chunk->read.buffer)
        memory_put(&io->memory, chunk->read.buffer, chunk->read.length);
    free(chunk);
}

/* Lets an idle chunk go. */
static void
chunk_drop(struct io *io, struct chunk *chunk)
{
    if (idle_list_of(io, chunk) == &io->served)
        cached_file_took(chunk->file, chunk->read.offset, chunk_end(chunk));
    idle_remove(idle_list_of(io, chunk), chunk);
    cached_file_remove(chunk->file, chunk);
    if (chunk->is_ahead && chunk->served == 0) {
        add(&io->counters.wasted, chunk->read.valid);
        /* Crumbs between what is asked for say nothing of the reader. */
        if (chunk->read.valid >= CRUMBS)
            prefetch_unused(&chunk->file->prefetch, &chunk->ahead);
    }
    chunk_dispose(io, chunk);
}

static void
chunk_becomes_idle(struct io *io, struct chunk *chunk)
{
    struct idle_list *list = idle_list_of(io, chunk);

    chunk->touched = io->ticks;
    idle_add(list, chunk);
    /* The page cache of its file keeps it already; the buffer is warm for the next. */
    if (chunk->read.was_cached && chunk->served > 0)
        chunk_drop(io, chunk);
    while (io->served.bytes > MOST_SERVED_BYTES)
        chunk_drop(io, io->served.first);
}

static void
chunk_pin(struct io *io, struct chunk *chunk)
{
    if (chunk->pins++ == 0 && chunk->state == CHUNK_READY)
        idle_remove(idle_list_of(io, chunk), chunk);
}

static void
chunk_unpin(struct io *io, struct chunk *chunk, uint64_t served)
{
    if (served > 0 && chunk->is_ahead && chunk->served == 0)
        add(&io->counters.used, chunk->read.valid);
    chunk->served += served;
    if (--chunk->pins > 0)
        return;
    if (chunk->state == CHUNK_READY)
        chunk_becomes_idle(io, chunk);
    else if (chunk->state == CHUNK_FAILED)
        chunk_dispose(io, chunk);
}

static void chunk_ended(struct storage_read *read, errint_t result);

/* A new chunk in the index, without a buffer yet. */
static struct chunk *
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
    chunk->read.complete = chunk_ended;
    if (!cached_file_insert(file, chunk)) {
        free(chunk);
        return NULL;
    }
    return chunk;
}

/* Lets idle chunks go until `cost` more bytes fit into `budget`; first those
 * that have been handed out, then, if `all`, what was read ahead. */
static bool
make_room(struct io *io, uint64_t cost, uint64_t budget, bool all)
{
    while (io->memory.used + cost > budget && io->served.first)
        chunk_drop(io, io->served.first);
    while (all && io->memory.used + cost > budget && io->unserved.first)
        chunk_drop(io, io->unserved.first);
    return io->memory.used + cost <= budget;
}

/* ---- Requests: what they need. With the lock held. ---- */

static struct pin *
request_pin(struct io *io, struct request *request, struct chunk *chunk, bool first)
{
    if (request->count == request->capacity) {
        unsigned capacity = request->capacity ? request->capacity * 2 : 4;
        struct pin *pins = realloc(request->pins, capacity * sizeof(*pins));

        if (!pins)
            return NULL;
        request->pins = pins;
        request->capacity = capacity;
    }
    chunk_pin(io, chunk);
    request->pins[request->count] =
        (struct pin){.chunk = chunk, .request = request, .first = first};
    return &request->pins[request->count++];
}

/* Pins what lies under bytes [offset, end) of the file; `cost` grows by what
 * the new chunks will take. */
static errint_t
pin_range(struct io *io, struct request *request, struct cached_file *file, uint64_t offset,
          uint64_t end, uint64_t *cost)
{
    uint64_t position = block_down(offset);
    uint64_t stop = block_up(end);
    uint32_t i = cached_file_find(file, position);

    while (position < stop) {
        struct chunk *chunk = i < file->count ? file->chunks[i] : NULL;

        if (!chunk || chunk->read.offset > position) {
            uint64_t gap = chunk && chunk->read.offset < stop ? chunk->read.offset : stop;

            if (gap - position > MEMORY_LARGEST)
                gap = position + CHUNK;
            chunk = chunk_new(file, position, gap, true);
            if (!chunk)
                return -ENOMEM;
            if (!request_pin(io, request, chunk, true)) {
                cached_file_remove(file, chunk);
                free(chunk);
                return -ENOMEM;
            }
            *cost += memory_cost(chunk->read.length);
            cached_file_asked(file, position, gap);
        } else if (!request_pin(io, request, chunk, false)) {
            return -ENOMEM;
        }
        position = chunk_end(chunk);
        i++;
    }
    return 0;
}

/* Undoes what pin_range did. */
static void
unpin_all(struct io *io, struct request *request)
{
    for (unsigned i = 0; i < request->count; i++) {
        struct chunk *chunk = request->pins[i].chunk;

        if (chunk->state == CHUNK_READING && !chunk->read.buffer && chunk->pins == 1) {
            cached_file_remove(chunk->file, chunk);
            free(chunk);
        } else {
            chunk_unpin(io, chunk, 0);
        }
    }
    request->count = 0;
}

static struct cached_file *
file_of(struct io *io, struct backing *backing)
{
    return descriptors_attachment(storage_descriptors(io->storage), backing)->data;
}

static errint_t
pin_runs(struct io *io, struct request *request, uint64_t *cost)
{
    const struct extent_list *list = request->list;
    const struct extent *extent = &list->extents[extent_list_find(list, request->offset)];
    uint64_t offset = request->offset;
    size_t left = request->length;
    errint_t result = 0;

    for (; left > 0 && result == 0; extent++) {
        struct run run = run_at(extent, offset, left);

        if (extent->backing && atomic_load(&extent->backing->stale))
            result = -ESTALE;
        else if (extent->backing)
            result = pin_range(io, request, file_of(io, extent->backing), run.offset,
                               run.offset + run.length, cost);
        offset += run.length;
        left -= run.length;
    }
    return result;
}

/* Gives the new chunks of a request their buffers; the budget has been seen to. */
static errint_t
furnish(struct io *io, struct request *request, struct chunk **fresh)
{
    for (unsigned i = 0; i < request->count; i++) {
        struct chunk *chunk = request->pins[i].chunk;

        if (chunk->state != CHUNK_READING || chunk->read.buffer)
            continue;
        chunk->read.buffer = memory_get(&io->memory, chunk->read.length);
        if (!chunk->read.buffer)
            return -ENOMEM;
        chunk->fresh = *fresh;
        *fresh = chunk;
        io->reading++;
        backing_ref(chunk->read.backing);
    }
    return 0;
}

static void
unfurnish(struct io *io, struct chunk **fresh)
{
    while (*fresh) {
        struct chunk *chunk = *fresh;

        *fresh = chunk->fresh;
        memory_put(&io->memory, chunk->read.buffer, chunk->read.length);
        chunk->read.buffer = NULL;
        io->reading--;
        /* Not the last: the list of the request has it, too. */
        backing_unref(chunk->read.backing);
    }
}

static void
wait_for_chunks(struct request *request)
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
}

/*
 * Pins all that the request needs; chunks in `fresh` must then be given to the
 * storage. -EAGAIN: there is no memory for it now, and nothing was done.
 */
static errint_t
plan(struct io *io, struct request *request, bool may_allocate, struct chunk **fresh)
{
    uint64_t cost = 0;
    errint_t result = pin_runs(io, request, &cost);

    if (result == 0 && cost > 0 && !may_allocate)
        result = -EAGAIN;
    if (result == 0 && cost > 0 && !make_room(io, cost, io->memory.budget, true) && io->active > 0)
        result = -EAGAIN;
    if (result == 0) {
        result = furnish(io, request, fresh);
        if (result < 0)
            unfurnish(io, fresh);
    }
    if (result < 0) {
        unpin_all(io, request);
        return result;
    }
    wait_for_chunks(request);
    io->active++;
    return 0;
}

static void
give_to_storage(struct io *io, struct chunk *fresh)
{
    /* The first to be made is the last in the list, and the first to be wanted. */
    struct chunk *ordered = NULL;

    while (fresh) {
        struct chunk *next = fresh->fresh;

        fresh->fresh = ordered;
        ordered = fresh;
        fresh = next;
    }
    while (ordered) {
        struct chunk *next = ordered->fresh;

        storage_read(io->storage, &ordered->read);
        ordered = next;
    }
}

/* ---- Requests: how they end. ---- */

static void
/* NOLINTNEXTLINE(readability-non-const-parameter): an iovec has no const */
append(struct iovec *vectors, int *count, char *base, size_t length)
{
    struct iovec *last = *count ? &vectors[*count - 1] : NULL;

    if (last && (char *)last->iov_base + last->iov_len == base)
        last->iov_len += length;
    else
        vectors[(*count)++] = (struct iovec){base, length};
}

/* A way over the runs of a request, each with its pins. */
struct walk {
    const struct request *request;
    const struct extent *extent; /* of the run */
    uint64_t offset; /* of the run in the list */
    struct run run;
    struct pin *pins; /* those of the run */
    unsigned count;
};

/* On to the next run, at first to the first; false past the last. */
static bool
walk_on(struct walk *walk)
{
    const struct request *request = walk->request;
    uint64_t end = request->offset + request->length;

    if (!walk->extent) {
        walk->offset = request->offset;
        walk->extent = &request->list->extents[extent_list_find(request->list, walk->offset)];
        walk->pins = request->pins;
    } else {
        walk->offset += walk->run.length;
        walk->extent++;
        walk->pins += walk->count;
    }
    walk->count = 0;
    if (walk->offset == end)
        return false;
    walk->run = run_at(walk->extent, walk->offset, (size_t)(end - walk->offset));
    end = walk->run.offset + walk->run.length;
    for (bool more = walk->extent->backing != NULL; more; walk->count++)
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a run of a backing has pins */
        more = chunk_end(walk->pins[walk->count].chunk) < end;
    return true;
}

/* The vectors of a request whose chunks are all there; at most one for each
 * extent and one for each pin. */
static int
gather(const struct request *request, struct iovec *vectors)
{
    struct walk walk = {.request = request};
    int count = 0;

    while (walk_on(&walk)) {
        uint64_t position = walk.run.offset;
        uint64_t end = walk.run.offset + walk.run.length;

        if (walk.extent->blob)
            append(vectors, &count, walk.extent->blob->data + position, walk.run.length);
        for (unsigned i = 0; i < walk.count; i++) {
            struct chunk *chunk = walk.pins[i].chunk;
            uint64_t upto = chunk_end(chunk) < end ? chunk_end(chunk) : end;

            walk.pins[i].length = upto - position;
            append(vectors, &count, chunk->read.buffer + (position - chunk->read.offset),
                   upto - position);
            position = upto;
        }
    }
    return count;
}

/* Counts where the bytes came from; after gather(). What lay in the page cache of
 * its file was neither fetched nor waited for. */
static void
count_sources(struct io *io, const struct request *request)
{
    uint64_t cached = request->length;
    bool stalled = false;

    for (unsigned i = 0; i < request->count; i++) {
        const struct pin *pin = &request->pins[i];

        if (pin->chunk->read.copied)
            continue;
        if (pin->first)
            cached -= pin->length;
        stalled |= pin->waited;
    }
    add(&io->counters.cached, cached);
    if (stalled)
        add(&io->counters.stalls, 1);
}

static char *
flatten(const struct iovec *vectors, int count, size_t length)
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
most_vectors(const struct request *request)
{
    uint32_t first = extent_list_find(request->list, request->offset);
    uint32_t last = extent_list_find(request->list, request->offset + request->length - 1);

    return last - first + 1 + request->count;
}

static void
answer_from_chunks(struct io *io, struct request *request)
{
    struct iovec few[MOST_VECTORS_AT_ONCE];
    size_t most = most_vectors(request);
    struct iovec *vectors = most <= MOST_VECTORS_AT_ONCE ? few : malloc(most * sizeof(*vectors));
    char *copy = NULL;
    int count;

    if (!vectors) {
        answer(io, request, -ENOMEM, NULL, 0);
        return;
    }
    count = gather(request, vectors);
    if (count > MOST_VECTORS) {
        copy = flatten(vectors, count, request->length);
        vectors[0] = (struct iovec){copy, request->length};
        count = 1;
    }
    if (count == 1 && !vectors[0].iov_base) {
        answer(io, request, -ENOMEM, NULL, 0);
    } else {
        count_sources(io, request);
        answer(io, request, 0, vectors, count);
    }
    free(copy);
    if (vectors != few)
        free(vectors);
}

static void
request_free(struct request *request)
{
    extent_list_unref(request->list);
    free(request->pins);
    free(request);
}

static void admit(struct io *io);

static void
enqueue(struct io *io, struct request *request)
{
    request->next = NULL;
    *io->last_waiting = request;
    io->last_waiting = &request->next;
}

/* With the lock held: whether a chunk failed that is more than the request asked
 * for, so that the bad bytes may not be its own. */
static bool
failed_for_others(const struct request *request)
{
    struct walk walk = {.request = request};

    while (walk_on(&walk)) {
        uint64_t start = block_down(walk.run.offset);
        uint64_t end = block_up(walk.run.offset + walk.run.length);

        for (unsigned i = 0; i < walk.count; i++) {
            const struct chunk *chunk = walk.pins[i].chunk;

            if (chunk->state == CHUNK_FAILED &&
                (chunk->read.offset < start || chunk_end(chunk) > end))
                return true;
        }
    }
    return false;
}

/* Has a request that failed read for itself alone what failed; false when that
 * has been done, or cannot help. */
static bool
try_again(struct io *io, struct request *request)
{
    bool again;

    if (request->result == -ESTALE || request->attempts == MOST_ATTEMPTS)
        return false;
    pthread_mutex_lock(&io->lock);
    again = failed_for_others(request);
    if (again) {
        unpin_all(io, request);
        request->attempts++;
        request->result = 0;
        io->active--;
        enqueue(io, request);
    }
    pthread_mutex_unlock(&io->lock);
    if (again)
        admit(io);
    return again;
}

/* Logs what a reader is about to see. */
static void
say_failed(struct io *io, const struct request *request)
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

/* All chunks are there, or one has failed and none is still read. */
static void
finish(struct io *io, struct request *request)
{
    if (request->result < 0) {
        if (try_again(io, request))
            return;
        say_failed(io, request);
    }
    if (request->result == 0)
        answer_from_chunks(io, request);
    else
        answer(io, request, request->result, NULL, 0);
    pthread_mutex_lock(&io->lock);
    for (unsigned i = 0; i < request->count; i++)
        chunk_unpin(io, request->pins[i].chunk, request->pins[i].length);
    io->active--;
    pthread_cond_signal(&io->ended);
    pthread_mutex_unlock(&io->lock);
    request_free(request);
    admit(io);
}

/* A request was planned (or could not be): starts what it needs, and answers it
 * if it needs nothing. */
static void
proceed(struct io *io, struct request *request, errint_t result, bool ready, struct chunk *fresh)
{
    if (result < 0) {
        answer(io, request, result, NULL, 0);
        request_free(request);
        return;
    }
    /* Unless it is ready, it may be gone from here on. */
    give_to_storage(io, fresh);
    if (ready)
        finish(io, request);
}

/*
 * Gives memory to those who wait for it, in their order. One thread at a time:
 * what it starts may end at once and come here again, and would go ever deeper.
 */
static void
admit(struct io *io)
{
    pthread_mutex_lock(&io->lock);
    if (io->admitting) {
        pthread_mutex_unlock(&io->lock);
        return;
    }
    io->admitting = true;
    while (io->waiting) {
        struct request *request = io->waiting;
        struct chunk *fresh = NULL;
        errint_t result = plan(io, request, true, &fresh);
        bool ready = request->pending == 0;

        if (result == -EAGAIN)
            break;
        io->waiting = request->next;
        if (!io->waiting)
            io->last_waiting = &io->waiting;
        pthread_mutex_unlock(&io->lock);
        proceed(io, request, result, ready, fresh);
        pthread_mutex_lock(&io->lock);
    }
    io->admitting = false;
    pthread_mutex_unlock(&io->lock);
}

/* With the lock held: tells those who wait for the chunk, and returns those for
 * whom it was the last. */
static struct request *
end_waiting(struct chunk *chunk, errint_t result)
{
    struct request *ended = NULL;
    struct pin *pin;

    while ((pin = chunk->waiters)) {
        struct request *request = pin->request;

        chunk->waiters = pin->next;
        if (result < 0 && request->result == 0)
            request->result = result;
        if (--request->pending == 0) {
            request->next = ended;
            ended = request;
        }
    }
    return ended;
}

/* With the lock held: the chunk need not be read ahead, for its file's page cache
 * has it. Believed for a tick: to ask anew at each request costs as much as a read. */
static void
note_resident(struct io *io, const struct chunk *chunk)
{
    struct cached_file *file = chunk->file;
    uint64_t start = chunk->read.offset, end = chunk_end(chunk);

    if (file->resident_at == io->ticks && start <= file->resident_end &&
        end >= file->resident_start) {
        if (start > file->resident_start)
            start = file->resident_start;
        if (end < file->resident_end)
            end = file->resident_end;
    }
    file->resident_start = start;
    file->resident_end = end;
    file->resident_at = io->ticks;
}

static bool
is_resident(const struct io *io, const struct cached_file *file, uint64_t offset)
{
    return file->resident_at == io->ticks && offset >= file->resident_start &&
           offset < file->resident_end;
}

/* From the storage: the chunk has been read, or has not. */
static void
chunk_ended(struct storage_read *read, errint_t result)
{
    struct chunk *chunk = (struct chunk *)((char *)read - offsetof(struct chunk, read));
    struct io *io = chunk->file->io;
    struct backing *backing = read->backing;
    struct request *ended;

    pthread_mutex_lock(&io->lock);
    if (result == -ECANCELED && chunk->waiters) {
        /* Somebody came to wait for what was only to be fetched ahead. */
        pthread_mutex_unlock(&io->lock);
        storage_read(io->storage, read);
        return;
    }
    if (result == -ECANCELED)
        note_resident(io, chunk);
    ended = end_waiting(chunk, result);
    chunk->result = result;
    chunk->state = result < 0 ? CHUNK_FAILED : CHUNK_READY;
    if (result < 0)
        cached_file_remove(chunk->file, chunk);
    else if (chunk->is_ahead)
        add(&io->counters.prefetched, read->valid);
    if (result < 0 && chunk->pins == 0)
        chunk_dispose(io, chunk);
    else if (chunk->pins == 0)
        chunk_becomes_idle(io, chunk);
    pthread_mutex_unlock(&io->lock);

    while (ended) {
        struct request *next = ended->next;

        finish(io, ended);
        ended = next;
    }
    admit(io);
    /* Perhaps the last reference, and with it goes the file. */
    backing_unref(backing);
    pthread_mutex_lock(&io->lock);
    io->reading--;
    pthread_cond_signal(&io->ended);
    pthread_mutex_unlock(&io->lock);
}

/* ---- Reading ahead. ---- */

/* A range to be fetched of one backing. */
struct range {
    struct cached_file *file;
    uint64_t start, end;
    bool cut; /* it ends where the window does, and would go on */
};

struct ranges {
    struct range ranges[MOST_RANGES_AHEAD];
    unsigned count;
    uint64_t left; /* bytes of the window */
};

static enum prefetch_from
range_from(const struct extent_list *list, const struct extent *extent, const struct run *run,
           bool carried)
{
    bool first = extent == list->extents || (extent == list->extents + 1 && list->extents[0].blob);

    if (carried)
        return PREFETCH_BEFORE;
    return first && run->offset == extent->offset ? PREFETCH_TOP : PREFETCH_HERE;
}

/* With the lock held: tells the prefetchers of what was asked for. What they say
 * of the last run is what counts: false when there is nothing to fetch. */
static bool
observe(struct io *io, const struct request *request, struct ahead *ahead)
{
    struct walk walk = {.request = request};
    /* A page fault gets what lies around it: then it is not the first run that is
     * wanted, but the one that begins in the middle. */
    uint64_t fault =
        prefetch_fault(&io->limits, request->offset, request->offset + request->length);
    bool carried = false;

    *ahead = (struct ahead){0};
    while (walk_on(&walk)) {
        const struct chunk *first = walk.count > 0 ? walk.pins[0].chunk : NULL;
        enum prefetch_from from;

        if (!first)
            continue;
        from = range_from(request->list, walk.extent, &walk.run,
                          carried &&
                              (ahead->follows || walk.offset / BLOCK_SIZE != fault / BLOCK_SIZE));
        prefetch_note(&first->file->prefetch, &io->limits, walk.extent->backing->layout,
                      request->list, walk.run.offset, walk.run.offset + walk.run.length, from,
                      request->pending > 0,
                      first->is_ahead && first->served == 0 ? &first->ahead : NULL, ahead);
        carried = true;
    }
    return ahead->window > 0;
}

/* Without the lock. False when there is no more to be had. */
static bool
add_range(struct io *io, struct ranges *ranges, struct backing *backing, uint64_t start,
          uint64_t end)
{
    struct attachment *attachment;
    bool cut = false;

    if (end > backing->identity.size)
        end = backing->identity.size;
    if (start >= end)
        return true;
    if (end - start > ranges->left) {
        end = start + ranges->left;
        cut = true;
    }
    attachment = descriptors_attachment(storage_descriptors(io->storage), backing);
    if (!attachment || !attachment->data || ranges->count == MOST_RANGES_AHEAD)
        return false;
    ranges->ranges[ranges->count++] = (struct range){attachment->data, start, end, cut};
    ranges->left -= end - start;
    return ranges->left > 0;
}

static bool attach_file(struct io *io, struct backing *backing);

/* The same for a range of the list, wherever it lies. */
static bool
add_list_range(struct io *io, struct ranges *ranges, const struct extent_list *list, uint64_t start,
               uint64_t end)
{
    const struct extent *extent = &list->extents[extent_list_find(list, start)];

    for (; start < end; extent++) {
        struct run run = run_at(extent, start, end - start);

        if (extent->backing &&
            (!attach_file(io, extent->backing) ||
             !add_range(io, ranges, extent->backing, run.offset, run.offset + run.length)))
            return false;
        start += run.length;
    }
    return true;
}

static uint64_t
start_before(const struct piece *piece, const struct ahead *ahead)
{
    return piece->start > ahead->before ? piece->start - ahead->before : 0;
}

/* What follows by name the piece that ends before byte `offset` of the list: in the
 * whole list where its order is known, else in the backing. */
static void
add_by_name(struct io *io, struct ranges *ranges, const struct extent_list *list, uint64_t offset,
            struct backing *backing, const struct ahead *ahead)
{
    const struct layout *layout = list->layout ? list->layout : backing->layout;
    uint32_t piece = list->layout ? layout_find(layout, offset - 1) : ahead->piece;
    bool more = true;

    while (more && piece < layout->count && (piece = layout->pieces[piece].next) < layout->count) {
        const struct piece *next = &layout->pieces[piece];
        uint64_t start = start_before(next, ahead);
        uint64_t end = ahead->glance ? start + ahead->glance : next->end;

        if (list->layout && end > list->size)
            end = list->size;
        more = list->layout ? add_list_range(io, ranges, list, start, end)
                            : add_range(io, ranges, backing, start, end);
    }
}

/* The starts of the pieces of the backing that follow. */
static void
add_glances(struct io *io, struct ranges *ranges, struct backing *backing,
            const struct ahead *ahead)
{
    const struct layout *layout = backing->layout;
    uint64_t end = 0;
    bool more = true;

    for (uint32_t i = ahead->piece + 1; more && i < layout->count; i++) {
        uint64_t start = start_before(&layout->pieces[i], ahead);

        if (start < end)
            continue;
        end = start + ahead->glance;
        more = add_range(io, ranges, backing, start, end);
    }
}

/* Without the lock: the ranges that `ahead` means, from byte `offset` of the
 * list, which lies behind the last one asked for. */
static void
find_ranges(struct io *io, const struct extent_list *list, uint64_t offset,
            const struct ahead *ahead, struct ranges *ranges)
{
    const struct extent *extent = &list->extents[extent_list_find(list, offset - 1)];
    const struct extent *end = &list->extents[list->count];
    struct backing *backing = extent->backing;
    struct run run = run_at(extent, offset - 1, 1);
    uint64_t position = run.offset + 1;
    uint64_t rest = extent->start + extent->length - offset;

    ranges->count = 0;
    ranges->left = ahead->window;
    if (!backing)
        return;
    if (ahead->glance) {
        if (ahead->by_name)
            add_by_name(io, ranges, list, offset, backing, ahead);
        else
            add_glances(io, ranges, backing, ahead);
        return;
    }
    if (!ahead->onward) {
        uint64_t stop = position + rest < ahead->stop ? position + rest : ahead->stop;

        if (add_range(io, ranges, backing, position, stop) && ahead->by_name)
            add_by_name(io, ranges, list, offset, backing, ahead);
        return;
    }
    if (!add_range(io, ranges, backing, position, position + rest))
        return;
    position += rest;
    for (extent++; extent < end; extent++) {
        if (!extent->backing)
            continue;
        if (!attach_file(io, extent->backing))
            return;
        backing = extent->backing;
        position = extent->offset + extent->length;
        if (!add_range(io, ranges, backing, extent->offset, position))
            return;
    }
    /* The file of the mount ends here; its backing may go on with what the next
     * file is. */
    add_range(io, ranges, backing, position, UINT64_MAX);
}

/* With the lock held: a chunk fetched ahead; false when there is no memory. */
static bool
fetch_chunk(struct io *io, struct cached_file *file, uint64_t start, uint64_t end,
            const struct ahead *ahead, struct chunk **fresh)
{
    size_t cost = memory_cost(end - start);
    struct chunk *chunk;

    if (io->waiting || !make_room(io, cost, io->memory.budget / 4 * 3, false))
        return false;
    chunk = chunk_new(file, start, end, false);
    if (!chunk)
        return false;
    chunk->read.buffer = memory_get(&io->memory, chunk->read.length);
    if (!chunk->read.buffer) {
        cached_file_remove(file, chunk);
        free(chunk);
        return false;
    }
    chunk->is_ahead = true;
    chunk->ahead = *ahead;
    chunk->fresh = *fresh;
    *fresh = chunk;
    io->reading++;
    backing_ref(file->backing);
    return true;
}

/* With the lock held: fetches what is not there of the range. What the window
 * cuts waits until it is worth a read. */
static bool
fetch_range(struct io *io, const struct range *range, const struct ahead *ahead,
            struct chunk **fresh)
{
    uint64_t least = ahead->window / 2 < CHUNK ? ahead->window / 2 : CHUNK;
    uint64_t position = block_down(range->start);
    uint64_t stop = block_up(range->end);
    /* What is smaller may be what was left out between what was handed out. */
    bool may_be_taken = stop - position >= CRUMBS;

    while (position < stop) {
        uint32_t i = cached_file_find(range->file, position);
        struct chunk *chunk = i < range->file->count ? range->file->chunks[i] : NULL;
        uint64_t gap = chunk && chunk->read.offset < stop ? chunk->read.offset : stop;
        uint64_t taken = may_be_taken ? cached_file_taken(range->file, position, &gap) : position;

        if (gap <= position) {
            position = chunk_end(chunk);
            continue;
        }
        if (taken > position) {
            position = taken;
            continue;
        }
        if (is_resident(io, range->file, position)) {
            position = range->file->resident_end;
            continue;
        }
        if (gap == stop && range->cut && position + least > gap)
            return true;
        if (gap - position > CHUNK)
            gap = position + CHUNK;
        if (!fetch_chunk(io, range->file, position, gap, ahead, fresh))
            return false;
        position = gap;
    }
    return true;
}

static void
read_ahead(struct io *io, const struct extent_list *list, uint64_t offset,
           const struct ahead *ahead)
{
    struct ranges ranges;
    struct chunk *fresh = NULL;

    find_ranges(io, list, offset, ahead, &ranges);
    if (ranges.count == 0)
        return;
    pthread_mutex_lock(&io->lock);
    for (unsigned i = 0; i < ranges.count; i++) {
        if (!fetch_range(io, &ranges.ranges[i], ahead, &fresh)) {
            prefetch_short(&ranges.ranges[0].file->prefetch, ranges.ranges[0].start);
            break;
        }
    }
    pthread_mutex_unlock(&io->lock);
    give_to_storage(io, fresh);
}

/* ---- The interface. ---- */

/* The backing or the engine goes: so does what is here of it. Nobody has it
 * pinned, for a request has the list, and the list the backing. */
static void
forget_file(void *data)
{
    struct cached_file *file = data;
    struct io *io = file->io;

    pthread_mutex_lock(&io->lock);
    while (file->count > 0)
        chunk_drop(io, file->chunks[file->count - 1]);
    pthread_mutex_unlock(&io->lock);
    free(file->chunks);
    free(file);
}

/* With the lock held: NULL when the backing has no family, or for want of memory. */
static struct habits *
habits_of(const struct backing *backing)
{
    if (backing->family && !backing->family->habits)
        backing->family->habits = calloc(1, sizeof(struct habits));
    return backing->family ? backing->family->habits : NULL;
}

/* Without the lock: makes the backing known to the engine. */
static bool
attach_file(struct io *io, struct backing *backing)
{
    struct attachment *attachment =
        descriptors_attachment(storage_descriptors(io->storage), backing);
    struct cached_file *file;

    if (!attachment)
        return false;
    pthread_mutex_lock(&io->lock);
    if (!attachment->data) {
        file = calloc(1, sizeof(*file));
        if (file) {
            file->io = io;
            file->backing = backing;
            prefetch_init(&file->prefetch, habits_of(backing));
            attachment->forget = forget_file;
            attachment->data = file;
        }
    }
    file = attachment->data;
    pthread_mutex_unlock(&io->lock);
    return file != NULL;
}

static bool
attach_files(struct io *io, const struct extent_list *list, uint64_t offset, size_t length)
{
    uint32_t last = extent_list_find(list, offset + length - 1);

    for (uint32_t i = extent_list_find(list, offset); i <= last; i++)
        if (list->extents[i].backing && !attach_file(io, list->extents[i].backing))
            return false;
    return true;
}

/* Vectors for a range that is all in memory; 0 when it is not, or in too many
 * pieces for `most`. */
static int
vectors_in_memory(const struct extent_list *list, uint64_t offset, size_t length,
                  struct iovec *vectors, int most)
{
    const struct extent *extent = &list->extents[extent_list_find(list, offset)];
    int count = 0;

    for (; length > 0; extent++) {
        struct run run = run_at(extent, offset, length);

        if (!extent->blob || count == most)
            return 0;
        vectors[count++] = (struct iovec){extent->blob->data + run.offset, run.length};
        offset += run.length;
        length -= run.length;
    }
    return count;
}

static void
read_backings(struct io *io, struct request *request)
{
    struct extent_list *list = request->list;
    uint64_t end = request->offset + request->length;
    struct chunk *fresh = NULL;
    struct ahead ahead = {0};
    bool go_on = false;
    errint_t result;
    bool ready;

    pthread_mutex_lock(&io->lock);
    result = plan(io, request, io->waiting == NULL, &fresh);
    if (result == -EAGAIN)
        enqueue(io, request);
    if (result == 0 && io->limits.most > 0)
        go_on = observe(io, request, &ahead);
    ready = request->pending == 0;
    /* Once the lock is free it may be answered, and the file be closed. */
    if (go_on)
        extent_list_ref(list);
    if (io->house_sleeps)
        pthread_cond_signal(&io->house);
    pthread_mutex_unlock(&io->lock);
    if (result == -EAGAIN)
        return;
    /* First what is waited for, then what is not; an answer last of all. */
    if (result == 0 && !ready)
        give_to_storage(io, fresh);
    if (go_on)
        read_ahead(io, list, end, &ahead);
    if (result < 0 || ready)
        proceed(io, request, result, ready, fresh);
    if (go_on)
        extent_list_unref(list);
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
    struct iovec vectors[MOST_VECTORS_AT_ONCE];
    struct request *request = NULL;
    int count;

    atomic_fetch_add(&io->counters.in_flight, 1);
    add(&io->counters.asked, length);
    extent_list_ref(list);
    count = vectors_in_memory(list, offset, length, vectors, MOST_VECTORS_AT_ONCE);
    if (count > 0) {
        add(&io->counters.cached, length);
        answer(io, &read, 0, vectors, count);
        extent_list_unref(list);
        return;
    }
    if (attach_files(io, list, offset, length))
        request = malloc(sizeof(*request));
    if (!request) {
        answer(io, &read, -ENOMEM, NULL, 0);
        extent_list_unref(list);
        return;
    }
    *request = read;
    read_backings(io, request);
}

/* ---- Its life. ---- */

/* With the lock held: lets go what nobody has asked for in a while. */
static void
drop_old(struct io *io, struct idle_list *list)
{
    while (list->first && list->first->touched + IDLE_TICKS < io->ticks)
        chunk_drop(io, list->first);
}

/* Keeps no more spare memory than was used since the last time. */
static void
trim(struct io *io)
{
    memory_trim(&io->memory, io->memory.most_used - io->memory.used);
    io->memory.most_used = io->memory.used;
}

/* Gives back memory and descriptors that nobody uses. Sleeps as long as there are
 * none; no descriptor is opened but for a read, which uses memory. */
static void *
keep_house(void *arg)
{
    struct io *io = arg;
    unsigned descriptors = 0;
    struct timespec until;

    pthread_setname_np(pthread_self(), "fstfs-house");
    pthread_mutex_lock(&io->lock);
    while (!io->stopping) {
        io->house_sleeps = io->memory.used == 0 && io->memory.spare == 0 && descriptors == 0;
        if (io->house_sleeps) {
            pthread_cond_wait(&io->house, &io->lock);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += TICK_SECONDS;
        while (!io->stopping && pthread_cond_timedwait(&io->house, &io->lock, &until) != ETIMEDOUT)
            continue;
        io->ticks++;
        drop_old(io, &io->served);
        drop_old(io, &io->unserved);
        if (io->ticks % IDLE_TICKS == 0)
            trim(io);
        pthread_mutex_unlock(&io->lock);
        descriptors = descriptors_tidy(storage_descriptors(io->storage));
        pthread_mutex_lock(&io->lock);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static uint64_t
default_memory(void)
{
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    return all / 8 < DEFAULT_MEMORY ? all / 8 : DEFAULT_MEMORY;
}

static void
init_limits(struct io *io, const struct io_options *options)
{
    uint64_t budget = options->memory ? options->memory : default_memory();

    if (budget < LEAST_MEMORY)
        budget = LEAST_MEMORY;
    memory_init(&io->memory, budget);
    io->limits.overshoot = DEFAULT_READAHEAD;
    if (!options->no_prefetch)
        io->limits.most = budget / 4 < LARGEST_WINDOW ? budget / 4 : LARGEST_WINDOW;
}

static void
init_locks(struct io *io)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->ended, NULL);
    pthread_cond_init(&io->house, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static errint_t
start_housekeeper(struct io *io)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&io->housekeeper, NULL, keep_house, io);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    io->has_housekeeper = error == 0;
    return -error;
}

errint_t
io_new(const struct io_options *options, struct io **io)
{
    struct storage_options storage = {
        .ring = !options->no_ring,
        .direct = !options->no_direct,
        .rings = options->rings,
        .depth = options->queue_depth,
        .threads = options->threads,
        .descriptors = options->descriptors,
    };
    struct io *made = calloc(1, sizeof(*made));
    errint_t result;

    if (!made)
        return -ENOMEM;
    init_locks(made);
    init_limits(made, options);
    made->last_waiting = &made->waiting;
    result = storage_new(&storage, &made->storage);
    if (result == 0)
        result = start_housekeeper(made);
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
    pthread_mutex_lock(&io->lock);
    io->limits.overshoot = bytes;
    pthread_mutex_unlock(&io->lock);
}

static void
stop_housekeeper(struct io *io)
{
    pthread_mutex_lock(&io->lock);
    io->stopping = true;
    pthread_cond_signal(&io->house);
    pthread_mutex_unlock(&io->lock);
    pthread_join(io->housekeeper, NULL);
}

void
io_free(struct io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->lock);
    while (io->waiting || io->active > 0 || io->reading > 0)
        pthread_cond_wait(&io->ended, &io->lock);
    pthread_mutex_unlock(&io->lock);
    if (io->has_housekeeper)
        stop_housekeeper(io);
    if (io->storage) {
        /* Its threads may still be on their way back from the last answer. */
        storage_stop(io->storage);
        storage_free(io->storage);
    }
    memory_trim(&io->memory, 0);
    pthread_cond_destroy(&io->house);
    pthread_cond_destroy(&io->ended);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

struct storage *
io_storage(struct io *io)
{
    return io->storage;
}

void
io_counters(struct io *io, struct io_counters *counters)
{
    struct storage_counters *storage = storage_counters(io->storage);

    counters->bytes_asked = get(&io->counters.asked);
    counters->reads = get(&io->counters.reads);
    counters->bytes = get(&io->counters.bytes);
    counters->cached_bytes = get(&io->counters.cached);
    counters->storage_reads = get(&storage->reads);
    counters->storage_bytes = get(&storage->bytes);
    counters->page_cache_bytes = get(&storage->cached_bytes);
    counters->retries = get(&storage->retries);
    counters->errors = get(&io->counters.errors);
    counters->stale = get(&io->counters.stale);
    counters->descriptors = descriptors_open(storage_descriptors(io->storage));
    counters->in_flight = get(&io->counters.in_flight);
    counters->stalls = get(&io->counters.stalls);
    counters->prefetched_bytes = get(&io->counters.prefetched);
    counters->prefetched_used = get(&io->counters.used);
    counters->prefetched_wasted = get(&io->counters.wasted);
    storage_queue(io->storage, &counters->storage_in_flight, &counters->storage_waiting);
    storage_fallbacks(io->storage, counters->fallbacks);
    histogram_read(&io->counters.duration, &counters->duration);
    histogram_read(&storage->duration, &counters->storage_duration);
    pthread_mutex_lock(&io->lock);
    counters->memory = io->memory.used;
    counters->memory_budget = io->memory.budget;
    pthread_mutex_unlock(&io->lock);
}

void
io_status(struct io *io, struct buffer *out)
{
    buffer_add_char(out, '{');
    storage_status(io->storage, out);
    buffer_addf(out, ",\"prefetch\":{\"on\":%s},\"memory\":%llu}",
                io->limits.most > 0 ? "true" : "false", (unsigned long long)io->memory.budget);
}
