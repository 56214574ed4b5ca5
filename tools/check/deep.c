/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The targets are cut into spans. They consist of whole records of an archive or, if tensors are
 * checked, of whole tensors; a target whose SHA-256 is compared is one span. Threads claim spans in
 * order. Each reads its span with a batch (io/batch.h) into its own buffers, so hashing overlaps
 * with reading and memory is bounded.
 */
#include "deep.h"

#include "base/array.h"
#include "base/histogram.h"
#include "base/parallel.h"
#include "common/progress.h"
#include "io/batch.h"
#include "io/block.h"
#include "io/storage.h"
#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 20, /* larger reads are not faster */
    SPAN = 64 << 20, /* minimum bytes of a span, except the last one of a file */
    THREADS_MOST = 8,
    DEPTH_ALL = 64, /* limit of reads in flight, of all threads together */
    DEPTH_MOST = 32, /* of one thread */
};

struct span {
    size_t target;
    uint64_t begin, end; /* of the file */
    uint32_t first; /* index of the first tensor or record that begins in it */
};

struct deep {
    struct tree *tree;
    struct storage *storage;
    struct span *spans;
    size_t span_count;
    atomic_size_t next; /* index of the first span that is not claimed */
    unsigned depth; /* reads in flight, of one thread */
    struct progress progress; /* bytes checked */
    _Atomic uint64_t hub_files;
    _Atomic uint64_t records, records_without_crc; /* see struct deep_result */
    _Atomic errint_t error;
};

/* ---- spans ---- */

static errint_t
add_span(struct deep *deep, struct span span)
{
    return array_add(deep->spans, deep->span_count, span) ? 0 : -ENOMEM;
}

static bool
wants_hub_hash(const struct target *target)
{
    return target->hub_sha256[0] && sha256_is_supported();
}

/* The number of units: tensors or records, which are never divided between spans. */
static uint32_t
unit_count(const struct target *target)
{
    return target->table ? target->table->count : target->archive.record_count;
}

static uint64_t
unit_end(const struct target *target, uint32_t i)
{
    const struct st_table *table = target->table;
    const struct archive *archive = &target->archive;

    return table ? table->data_start + table->tensors[i].end
                 : archive->records[i]->data + archive->records[i]->size;
}

static errint_t
cut_target(struct deep *deep, size_t number)
{
    const struct target *target = &deep->tree->targets[number];
    const uint32_t count = unit_count(target);
    const uint64_t size = target->backing->identity.size;
    struct span span = {.target = number};
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < count && !wants_hub_hash(target); i++) {
        uint64_t end = unit_end(target, i);

        if (end - span.begin < SPAN || i + 1 == count)
            continue;
        span.end = end;
        error = add_span(deep, span);
        span.begin = end;
        span.first = i + 1;
    }
    /* Without units, spans end anywhere. */
    while (!error && !count && !wants_hub_hash(target) && size - span.begin > SPAN) {
        span.end = span.begin + SPAN;
        error = add_span(deep, span);
        span.begin = span.end;
    }
    span.end = size;
    return error ? error : add_span(deep, span);
}

/* ---- reading a span ---- */

/* The state of one thread. */
struct stream {
    struct deep *deep;
    char *buffers; /* deep->depth of them */
    struct sha256 *whole, *one; /* hashes of the file and of the current tensor, or NULL */
    /* Of the current span: */
    const struct span *span;
    const struct target *target;
    uint64_t next; /* where the next read begins */
    bool checks_tensors;
    uint32_t tensor; /* the current one */
    bool counts_values; /* NaN and infinity in the current tensor */
    struct values values;
    struct archive_check archive; /* of a target that is an archive */
};

/* Describes the next read; called by the batch. */
static bool
deep_next_read(void *arg, struct batch_read *read)
{
    struct stream *stream = arg;
    uint64_t end = stream->span->end;

    if (stream->next >= end)
        return false;
    read->backing = stream->target->backing;
    read->offset = stream->next;
    read->length = end - stream->next < READ_BYTES ? (size_t)(end - stream->next) : READ_BYTES;
    stream->next += READ_BYTES;
    return true;
}

/* ---- checking ---- */

static void
begin_tensor(struct stream *stream)
{
    const struct st_tensor *tensor = &stream->target->table->tensors[stream->tensor];

    if (stream->one)
        sha256_begin(stream->one);
    stream->counts_values =
        stream->deep->tree->options->nan && values_has((enum dtype)tensor->dtype);
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
    if (stream->counts_values && (stream->values.nan || stream->values.inf))
        findings_add(&stream->deep->tree->findings, strdup(stream->target->path), false,
                     "tensor %s (%s) has %" PRIu64 " NaN and %" PRIu64 " infinite values",
                     quoted(name, table->text + tensor->name, tensor->name_length),
                     dtype_name((enum dtype)tensor->dtype), stream->values.nan, stream->values.inf);
}

/* `data` has bytes [from, from + length) of the file, all in the span. */
static void
check_tensor_bytes(struct stream *stream, const char *data, uint64_t from, uint64_t length)
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
        if (stream->counts_values)
            values_add(&stream->values, data + (first - from), last - first);
        if (end > to)
            return;
        end_tensor(stream);
        stream->tensor++;
    }
}

/* Handles the empty tensors at the end of the file, which check_tensor_bytes() does not reach. */
static void
check_last_tensors(struct stream *stream)
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
check_read(struct stream *stream, const struct batch_read *read)
{
    /* The first read begins at the block in which the span begins. */
    uint64_t from = read->offset > stream->span->begin ? read->offset : stream->span->begin;
    uint64_t to = read->offset + read->length;
    const char *data = read->buffer + (from - read->offset);

    if (stream->whole)
        sha256_add(stream->whole, data, to - from);
    if (stream->checks_tensors)
        check_tensor_bytes(stream, data, from, to - from);
    if (stream->archive.archive)
        archive_check_bytes(&stream->archive, data, from, to - from, stream->target->path,
                            &stream->deep->tree->findings);
    atomic_fetch_add_explicit(stream->deep->progress.running, to - from, memory_order_relaxed);
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
                     "not the published file: wrong SHA-256 (found %s, expected %s, the hub's)",
                     text, stream->target->hub_sha256);
}

static void
report_unread(struct stream *stream, errint_t error, uint64_t offset)
{
    findings_add(&stream->deep->tree->findings, strdup(stream->target->path), true,
                 error == -ESTALE ? "IoError: changed while it was read, at byte %" PRIu64 "%s"
                                  : "IoError: cannot read at byte %" PRIu64 ": %s",
                 offset, error == -ESTALE ? "" : strerror(-error));
}

/* Reads the stream's span. A failed read is a finding; returns only -ENOMEM. */
static errint_t
read_span(struct stream *stream)
{
    const struct batch_options options = {
        .storage = stream->deep->storage,
        .depth = stream->deep->depth,
        .buffers = stream->buffers,
        .buffer_bytes = READ_BYTES,
        .is_ordered = true,
        .next = deep_next_read,
        .arg = stream,
    };
    struct batch_read *read;
    struct batch *batch;
    uint64_t offset;
    errint_t error = batch_new(&options, &batch);

    if (error)
        return error;
    while ((read = batch_take(batch))) {
        if (progress_tick(&stream->deep->progress))
            check_read(stream, read);
        else
            batch_stop(batch, -EINTR, 0);
        batch_release(read);
    }
    error = batch_error(batch, &offset);
    batch_free(batch);
    if (error && error != -EINTR && error != -ENOMEM)
        report_unread(stream, error, offset);
    if (!error && stream->checks_tensors)
        check_last_tensors(stream);
    if (!error && stream->whole)
        compare_hub_hash(stream);
    atomic_fetch_add(&stream->deep->records, stream->archive.compared);
    atomic_fetch_add(&stream->deep->records_without_crc, stream->archive.missing);
    return error == -ENOMEM ? error : 0;
}

static errint_t
check_span(struct stream *stream, const struct span *span)
{
    errint_t error;

    stream->span = span;
    stream->target = &stream->deep->tree->targets[span->target];
    stream->next = block_down(span->begin);
    stream->checks_tensors =
        stream->target->table && (stream->one || stream->deep->tree->options->nan);
    stream->tensor = span->first;
    stream->archive = (struct archive_check){
        .archive = stream->target->archive.records ? &stream->target->archive : NULL,
        .record = span->first};
    if (wants_hub_hash(stream->target)) {
        stream->whole = sha256_new();
        if (!stream->whole)
            return -ENOMEM;
        sha256_begin(stream->whole);
    }
    error = read_span(stream);
    sha256_free(stream->whole);
    stream->whole = NULL;
    return error;
}

/* ---- threads ---- */

static void
check_spans(void *arg, size_t thread)
{
    struct deep *deep = arg;
    struct stream stream = {
        .deep = deep,
        .buffers = aligned_alloc(BLOCK_SIZE, (size_t)deep->depth * READ_BYTES),
        .one = deep->tree->options->hashes ? sha256_new() : NULL,
    };
    errint_t error = 0;
    size_t next;

    (void)thread;
    if (!stream.buffers || (deep->tree->options->hashes && !stream.one))
        error = -ENOMEM;
    while (!error && !progress_signal() &&
           (next = atomic_fetch_add(&deep->next, 1)) < deep->span_count)
        error = check_span(&stream, &deep->spans[next]);
    if (error)
        atomic_store(&deep->error, error);
    sha256_free(stream.one);
    free(stream.buffers);
}

static errint_t
run_deep_threads(struct deep *deep)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = processors > THREADS_MOST ? THREADS_MOST : (unsigned)processors;

    if (processors < 1)
        threads = 1;
    if (deep->span_count < threads)
        threads = (unsigned)deep->span_count;
    deep->depth = DEPTH_ALL / (threads ? threads : 1);
    deep->depth = deep->depth > DEPTH_MOST ? DEPTH_MOST : deep->depth;
    parallel_for(threads, threads, check_spans, deep);
    return progress_signal() ? -EINTR : atomic_load(&deep->error);
}

static errint_t
prepare_targets(struct deep *deep, uint64_t *bytes)
{
    const struct io_options options = {0};
    struct tree *tree = deep->tree;
    errint_t error = 0;

    for (size_t i = 0; !error && i < tree->target_count; i++) {
        struct target *target = &tree->targets[i];

        *bytes += target->backing->identity.size;
        if (tree->options->hashes && target->table) {
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
    errint_t error = prepare_targets(&deep, &bytes);

    if (!error) {
        progress_begin(&deep.progress, bytes);
        deep.progress.has_rate = true;
        progress_start(&deep.progress, "reading");
        error = deep.progress.running ? run_deep_threads(&deep) : -ENOMEM;
        result->bytes = deep.progress.running ? atomic_load(deep.progress.running) : 0;
        progress_end(&deep.progress);
        storage_stop(deep.storage);
        storage_free(deep.storage);
    }
    result->hub_files = atomic_load(&deep.hub_files);
    result->records = atomic_load(&deep.records);
    result->records_without_crc = atomic_load(&deep.records_without_crc);
    result->seconds = (double)(monotonic_ns() - started) / 1e9;
    free(deep.spans);
    return error;
}
