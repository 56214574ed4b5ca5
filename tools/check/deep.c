/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The targets are cut into spans, whole tensors each, and a target whose SHA-256
 * is wanted is one span. Threads claim spans in order. Each keeps reads under way
 * by the engine's storage into buffers of its own, ahead of the one it looks at:
 * so hashing and reading go on at the same time, and memory is bounded.
 */
#include "deep.h"

#include "base/array.h"
#include "base/histogram.h"
#include "base/thread.h"
#include "common/progress.h"
#include "io/storage.h"
#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    BLOCK = 1 << 20, /* bytes of one read; as large as gains anything */
    SPAN = 64 << 20, /* a span has at least so many, if the file does */
    THREADS_MOST = 8,
    DEPTH_ALL = 64, /* reads under way, by all threads together */
    DEPTH_MOST = 32, /* by one */
};

struct span {
    size_t target;
    uint64_t begin, end; /* of the file */
    uint32_t tensor; /* the first that begins in it */
};

struct deep {
    struct tree *tree;
    struct storage *storage;
    struct span *spans;
    size_t span_count;
    atomic_size_t next; /* the first span that nobody has claimed */
    atomic_uint running; /* threads */
    unsigned depth; /* of one thread */
    _Atomic uint64_t *done; /* bytes looked at */
    _Atomic uint64_t hub_files;
    _Atomic errint_t error;
};

/* ---- spans ---- */

static errint_t
add_span(struct deep *deep, struct span span)
{
    struct span *spans = array_room(deep->spans, deep->span_count, sizeof(*spans));

    if (!spans)
        return -ENOMEM;
    deep->spans = spans;
    deep->spans[deep->span_count++] = span;
    return 0;
}

static bool
wants_hub_hash(const struct target *target)
{
    return target->hub_sha256[0] && sha256_can();
}

static errint_t
cut_target(struct deep *deep, size_t number)
{
    const struct target *target = &deep->tree->targets[number];
    const struct st_table *table = target->table;
    struct span span = {.target = number};
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < table->count && !wants_hub_hash(target); i++) {
        uint64_t end = table->data_start + table->tensors[i].end;

        if (end - span.begin < SPAN || i + 1 == table->count)
            continue;
        span.end = end;
        error = add_span(deep, span);
        span.begin = end;
        span.tensor = i + 1;
    }
    span.end = table->data_start + table->data_length;
    return error ? error : add_span(deep, span);
}

/* ---- reading a span ---- */

struct stream;

struct slot {
    struct storage_read read;
    struct stream *stream;
    bool ended; /* guarded by the stream's lock, as is `result` */
    errint_t result;
};

/* What one thread reads and looks at. */
struct stream {
    struct deep *deep;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct slot slots[DEPTH_MOST]; /* used in turn */
    char *buffers;
    /* Of the span it is at: */
    const struct span *span;
    const struct target *target;
    uint64_t next; /* where the next read begins */
    unsigned first, under_way; /* the slots in use: `under_way` of them from `first` on */
    uint32_t tensor; /* the one being looked at */
    struct sha256 *whole, *one; /* hashes of the file, and of that tensor; or NULL */
    bool looks; /* for values that are no numbers, in that tensor */
    struct values values;
};

static void
read_ended(struct storage_read *read, errint_t result)
{
    struct slot *slot = (struct slot *)read;
    struct stream *stream = slot->stream;

    pthread_mutex_lock(&stream->lock);
    slot->ended = true;
    slot->result = result;
    pthread_cond_signal(&stream->ended);
    pthread_mutex_unlock(&stream->lock);
}

/* Keeps as many reads under way as it may. */
static void
submit_reads(struct stream *stream)
{
    const uint64_t size = stream->target->backing->identity.size;

    while (stream->under_way < stream->deep->depth && stream->next < stream->span->end) {
        unsigned at = (stream->first + stream->under_way++) % stream->deep->depth;
        uint64_t left = (stream->span->end - stream->next + PAGE - 1) / PAGE * PAGE;
        struct slot *slot = &stream->slots[at];

        slot->ended = false;
        slot->read.backing = stream->target->backing;
        slot->read.offset = stream->next;
        slot->read.length = left < BLOCK ? (size_t)left : BLOCK;
        slot->read.valid = size - stream->next < slot->read.length ? (size_t)(size - stream->next)
                                                                   : slot->read.length;
        slot->read.buffer = stream->buffers + (size_t)at * BLOCK;
        atomic_store(&slot->read.urgent, true);
        slot->read.complete = read_ended;
        stream->next += slot->read.length;
        storage_read(stream->deep->storage, &slot->read);
    }
}

/* The read that was submitted first, when it has ended. */
static struct slot *
await_read(struct stream *stream)
{
    struct slot *slot = &stream->slots[stream->first];

    pthread_mutex_lock(&stream->lock);
    while (!slot->ended)
        pthread_cond_wait(&stream->ended, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    stream->first = (stream->first + 1) % stream->deep->depth;
    stream->under_way--;
    return slot;
}

/* ---- looking ---- */

static void
begin_tensor(struct stream *stream)
{
    const struct st_tensor *tensor = &stream->target->table->tensors[stream->tensor];

    if (stream->one)
        sha256_begin(stream->one);
    stream->looks = stream->deep->tree->options->nan && values_has((enum dtype)tensor->dtype);
    stream->values = (struct values){.dtype = (enum dtype)tensor->dtype};
}

static void
end_tensor(struct stream *stream)
{
    const struct st_table *table = stream->target->table;
    const struct st_tensor *tensor = &table->tensors[stream->tensor];
    char name[QUOTED_SIZE];

    if (stream->one)
        sha256_end(stream->one, stream->target->digests[stream->tensor]);
    if (stream->looks && (stream->values.nan || stream->values.inf))
        findings_add(&stream->deep->tree->findings, strdup(stream->target->path), false,
                     "tensor %s (%s) has %" PRIu64 " NaN and %" PRIu64 " infinite values",
                     quoted(name, table->text + tensor->name, tensor->name_length),
                     dtype_name((enum dtype)tensor->dtype), stream->values.nan, stream->values.inf);
}

/* Bytes [from, from + length) of the file, inside the span; `data` is the first. */
static void
look_at_tensors(struct stream *stream, const char *data, uint64_t from, uint64_t length)
{
    const struct st_table *table = stream->target->table;
    uint64_t to = from + length;

    while (stream->tensor < table->count) {
        const struct st_tensor *tensor = &table->tensors[stream->tensor];
        uint64_t begin = table->data_start + tensor->begin, end = table->data_start + tensor->end;
        uint64_t first = begin > from ? begin : from, last = end < to ? end : to;

        if (begin >= to)
            return;
        if (begin >= from)
            begin_tensor(stream);
        if (stream->one)
            sha256_add(stream->one, data + (first - from), last - first);
        if (stream->looks)
            values_add(&stream->values, data + (first - from), last - first);
        if (end > to)
            return;
        end_tensor(stream);
        stream->tensor++;
    }
}

/* Empty tensors at the end of the file begin in none of its bytes. */
static void
look_at_last_tensors(struct stream *stream)
{
    const struct st_table *table = stream->target->table;

    if (stream->span->end != table->data_start + table->data_length)
        return;
    for (; stream->tensor < table->count; stream->tensor++) {
        begin_tensor(stream);
        end_tensor(stream);
    }
}

static void
look_at_read(struct stream *stream, const struct slot *slot)
{
    const struct storage_read *read = &slot->read;
    uint64_t from = read->offset > stream->span->begin ? read->offset : stream->span->begin;
    uint64_t to = read->offset + read->valid;
    const char *data = read->buffer + (from - read->offset);

    to = to < stream->span->end ? to : stream->span->end;
    if (stream->whole)
        sha256_add(stream->whole, data, to - from);
    if (stream->one || stream->deep->tree->options->nan)
        look_at_tensors(stream, data, from, to - from);
    atomic_fetch_add_explicit(stream->deep->done, to - from, memory_order_relaxed);
}

static void
compare_hub_hash(struct stream *stream)
{
    unsigned char digest[SHA256_SIZE];
    char text[SHA256_TEXT];

    sha256_end(stream->whole, digest);
    sha256_text(digest, text);
    atomic_fetch_add(&stream->deep->hub_files, 1);
    if (strcmp(text, stream->target->hub_sha256) != 0)
        findings_add(&stream->deep->tree->findings, strdup(stream->target->path), false,
                     "its SHA-256 is %s, the hub's is %s: it is not what was published", text,
                     stream->target->hub_sha256);
}

static void
say_unread(struct stream *stream, const struct slot *slot)
{
    findings_add(&stream->deep->tree->findings, strdup(stream->target->path), true,
                 slot->result == -ESTALE
                     ? "IoError: it was changed while it was read, at byte %" PRIu64 "%s"
                     : "IoError: reading at byte %" PRIu64 ": %s",
                 slot->read.offset, slot->result == -ESTALE ? "" : strerror(-slot->result));
}

static errint_t
read_span(struct stream *stream, const struct span *span)
{
    errint_t error = 0;

    stream->span = span;
    stream->target = &stream->deep->tree->targets[span->target];
    stream->next = span->begin / PAGE * PAGE;
    stream->tensor = span->tensor;
    if (wants_hub_hash(stream->target)) {
        stream->whole = sha256_new();
        if (!stream->whole)
            return -ENOMEM;
        sha256_begin(stream->whole);
    }
    submit_reads(stream);
    while (stream->under_way > 0) {
        struct slot *slot = await_read(stream);

        if (!error && slot->result) {
            say_unread(stream, slot);
            error = slot->result;
        }
        if (!error && progress_signal())
            error = -EINTR;
        if (error)
            continue; /* the others are to end */
        look_at_read(stream, slot);
        submit_reads(stream);
    }
    if (!error && (stream->one || stream->deep->tree->options->nan))
        look_at_last_tensors(stream);
    if (!error && stream->whole)
        compare_hub_hash(stream);
    sha256_free(stream->whole);
    stream->whole = NULL;
    return 0;
}

/* ---- threads ---- */

static void *
run_thread(void *arg)
{
    struct deep *deep = arg;
    struct stream *stream = calloc(1, sizeof(*stream));
    char *buffers = aligned_alloc(PAGE, (size_t)deep->depth * BLOCK);
    errint_t error = stream && buffers ? 0 : -ENOMEM;
    size_t next;

    if (!error) {
        stream->deep = deep;
        stream->buffers = buffers;
        pthread_mutex_init(&stream->lock, NULL);
        pthread_cond_init(&stream->ended, NULL);
        for (unsigned i = 0; i < deep->depth; i++)
            stream->slots[i].stream = stream;
        if (deep->tree->options->hashes && !(stream->one = sha256_new()))
            error = -ENOMEM;
    }
    while (!error && !progress_signal() &&
           (next = atomic_fetch_add(&deep->next, 1)) < deep->span_count)
        error = read_span(stream, &deep->spans[next]);
    if (error)
        atomic_store(&deep->error, error);
    if (stream)
        sha256_free(stream->one);
    free(stream);
    free(buffers);
    atomic_fetch_sub(&deep->running, 1);
    return NULL;
}

static unsigned
thread_count(const struct deep *deep)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned count = processors < 1              ? 1
                     : processors > THREADS_MOST ? THREADS_MOST
                                                 : (unsigned)processors;

    return deep->span_count < count ? (unsigned)deep->span_count : count;
}

static errint_t
run_threads(struct deep *deep, struct progress *progress)
{
    const unsigned wanted = thread_count(deep);
    pthread_t threads[THREADS_MOST];
    unsigned made = 0;

    deep->depth = DEPTH_ALL / (wanted ? wanted : 1);
    deep->depth = deep->depth > DEPTH_MOST ? DEPTH_MOST : deep->depth;
    while (made < wanted) {
        atomic_fetch_add(&deep->running, 1);
        if (thread_start(&threads[made], run_thread, deep) != 0) {
            atomic_fetch_sub(&deep->running, 1);
            break;
        }
        made++;
    }
    if (made == 0 && wanted > 0)
        return -EAGAIN;
    while (atomic_load(&deep->running) > 0) {
        progress_tick(progress);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    while (made > 0)
        pthread_join(threads[--made], NULL);
    return progress_signal() ? -EINTR : atomic_load(&deep->error);
}

static errint_t
prepare(struct deep *deep, uint64_t *bytes)
{
    const struct storage_options options = {.ring = true, .direct = true};
    struct tree *tree = deep->tree;
    errint_t error = 0;

    for (size_t i = 0; !error && i < tree->target_count; i++) {
        struct target *target = &tree->targets[i];

        *bytes += target->backing->identity.size;
        if (tree->options->hashes) {
            target->digests = calloc((size_t)target->table->count + 1, SHA256_SIZE);
            if (!target->digests)
                return -ENOMEM;
        }
        error = cut_target(deep, i);
    }
    return error ? error : storage_new(&options, &deep->storage);
}

errint_t
deep_run(struct tree *tree, struct deep_result *result)
{
    struct deep deep = {.tree = tree};
    uint64_t bytes = 0, started = monotonic_ns();
    errint_t error = prepare(&deep, &bytes);
    struct progress progress;

    if (!error) {
        progress_begin(&progress, bytes);
        progress.has_rate = true;
        progress_start(&progress, "reading");
        deep.done = progress.running;
        error = deep.done ? run_threads(&deep, &progress) : -ENOMEM;
        result->bytes = deep.done ? atomic_load(deep.done) : 0;
        progress_end(&progress);
        storage_stop(deep.storage);
        storage_free(deep.storage);
    }
    result->hub_files = atomic_load(&deep.hub_files);
    result->seconds = (double)(monotonic_ns() - started) / 1e9;
    free(deep.spans);
    return error;
}
