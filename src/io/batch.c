/* SPDX-License-Identifier: Apache-2.0 */
#include "io/batch.h"

#include "base/clock.h"
#include "base/fifo.h"
#include "base/list.h"
#include "base/thread.h"
#include "io/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LATE_NS = 8000000, /* a read that takes longer raises the limit of bytes in flight */
    TURN_READS = 32, /* reads that a worker submits before other jobs get their turn */
};

/* A job that submits reads. */
struct batch_call {
    struct job job;
    struct batch *batch;
    bool is_waiting; /* for a worker */
};

struct batch {
    struct batch_options options;
    struct storage *storage;
    struct batch_call calls[BATCH_WORKERS];
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed; /* for batch_take() */
    struct batch_read **reads; /* `made` of them */
    struct fifo idle;
    struct fifo ready; /* completed reads; if is_ordered, all submitted ones. For batch_take() */
    unsigned made; /* reads allocated */
    unsigned in_flight;
    unsigned reading; /* of these: not completed */
    unsigned submitting; /* threads */
    unsigned calling; /* calls that wait for a worker */
    uint64_t bytes; /* in flight */
    uint64_t bytes_limit;
    bool is_exhausted; /* next() has returned false */
    errint_t error;
    uint64_t error_offset;
};

errint_t
batch_new(const struct batch_options *options, struct batch **out)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    if (!batch)
        return -ENOMEM;
    batch->options = *options;
    if (options->read_bytes == 0)
        batch->options.read_bytes = sizeof(struct batch_read);
    batch->storage = options->storage || !options->io ? options->storage : io_storage(options->io);
    batch->bytes_limit = options->bytes ? options->bytes : UINT64_MAX;
    batch->reads = calloc(options->depth, sizeof(struct batch_read *));
    if (!batch->reads) {
        free(batch);
        return -ENOMEM;
    }
    pthread_mutex_init(&batch->lock, NULL);
    pthread_cond_init(&batch->changed, NULL);
    *out = batch;
    return 0;
}

void
batch_free(struct batch *batch)
{
    if (!batch)
        return;
    for (unsigned i = 0; i < batch->made; i++)
        free(batch->reads[i]);
    free(batch->reads);
    pthread_cond_destroy(&batch->changed);
    pthread_mutex_destroy(&batch->lock);
    free(batch);
}

/* ---- with the lock held ---- */

/* The first read of `ready`, which need not have completed; or NULL. */
static const struct batch_read *
batch_first_ready(const struct batch *batch)
{
    return (const struct batch_read *)batch->ready.first;
}

/* NULL: out of memory. */
static struct batch_read *
batch_idle_read(struct batch *batch)
{
    const struct batch_options *options = &batch->options;
    struct batch_read *read = fifo_take(&batch->idle);

    if (!read) {
        read = calloc(1, options->read_bytes);
        if (!read)
            return NULL;
        read->batch = batch;
        read->index = batch->made;
        batch->reads[batch->made++] = read;
    }
    read->backing = NULL;
    read->list = NULL;
    read->buffer =
        options->buffers ? options->buffers + (size_t)read->index * options->buffer_bytes : NULL;
    read->is_completed = false;
    return read;
}

static void
batch_remove(struct batch *batch, struct batch_read *read)
{
    batch->in_flight--;
    batch->bytes -= read->length;
    fifo_add(&batch->idle, &read->node);
}

static bool
batch_is_over(const struct batch *batch)
{
    return batch->is_exhausted || batch->error;
}

static void
batch_set_error(struct batch *batch, errint_t error, uint64_t offset)
{
    if (batch->error)
        return;
    batch->error = error;
    batch->error_offset = offset;
    pthread_cond_broadcast(&batch->changed);
}

/* The next read, in flight now; NULL: none, or the limit is reached. */
static struct batch_read *
batch_next_read(struct batch *batch)
{
    struct batch_read *read;

    if (batch->error || batch->in_flight == batch->options.depth ||
        batch->bytes >= batch->bytes_limit)
        return NULL;
    read = batch_idle_read(batch);
    if (!read) {
        batch_set_error(batch, -ENOMEM, 0);
        return NULL;
    }
    if (!batch->options.next(batch->options.arg, read)) {
        fifo_add(&batch->idle, &read->node);
        batch->is_exhausted = true;
        return NULL;
    }
    batch->in_flight++;
    batch->reading++;
    batch->bytes += read->length;
    if (batch->options.is_ordered)
        fifo_add(&batch->ready, &read->node);
    return read;
}

/* ---- reading; without the lock ---- */

static void
batch_hand_over(struct batch_read *read, errint_t result, const struct iovec *vectors, int count)
{
    struct batch *batch = read->batch;
    void (*complete)(struct batch_read *, const struct iovec *, int) = batch->options.complete;

    read->result = result;
    pthread_mutex_lock(&batch->lock);
    if (batch->bytes_limit < batch->options.bytes_most &&
        monotonic_ns() - read->submitted > LATE_NS)
        batch->bytes_limit += read->length;
    batch->reading--;
    read->is_completed = true;
    if (!complete) {
        if (!batch->options.is_ordered)
            fifo_add(&batch->ready, &read->node);
        if (batch->reading == 0 && batch_is_over(batch))
            pthread_cond_broadcast(&batch->changed);
        else if (batch_first_ready(batch)->is_completed)
            pthread_cond_signal(&batch->changed);
    }
    pthread_mutex_unlock(&batch->lock);
    /* Without complete() the batch may have been freed here. */
    if (complete)
        complete(read, vectors, count);
}

static void
batch_engine_done(void *arg, const struct io_answer *answer)
{
    struct batch_read *read = arg;
    char *to = read->buffer;

    for (int i = 0; to && i < answer->count; i++) {
        memcpy(to, answer->vectors[i].iov_base, answer->vectors[i].iov_len);
        to += answer->vectors[i].iov_len;
    }
    batch_hand_over(read, answer->result, answer->vectors, answer->count);
}

static void
batch_storage_done(struct storage_read *storage, errint_t result)
{
    batch_hand_over(container_of(storage, struct batch_read, storage), result, NULL, 0);
}

void
batch_completed(struct batch_read *read, errint_t result)
{
    batch_hand_over(read, result, NULL, 0);
}

static void
batch_start_read(struct batch_read *read)
{
    struct batch *batch = read->batch;

    read->submitted = monotonic_ns();
    if (batch->options.read) {
        batch->options.read(read);
    } else if (read->backing) {
        read->storage.backing = read->backing;
        read->storage.offset = read->offset;
        read->storage.valid = read->length;
        read->storage.length = block_up(read->length);
        read->storage.buffer = read->buffer;
        atomic_store(&read->storage.urgent, true);
        read->storage.complete = batch_storage_done;
        storage_read(batch->storage, &read->storage);
    } else {
        io_read(batch->options.io, read->list, read->offset, read->length, batch_engine_done, read);
    }
}

void
batch_retry(struct batch_read *read)
{
    struct batch *batch = read->batch;

    pthread_mutex_lock(&batch->lock);
    batch->reading++;
    read->is_completed = false;
    pthread_mutex_unlock(&batch->lock);
    batch_start_read(read);
}

/* With the lock held, which is released around each read. Stops after `most` reads; false: there
 * may be more. */
static bool
batch_submit_locked(struct batch *batch, unsigned most)
{
    struct batch_read *read = NULL;

    while (most-- > 0 && (read = batch_next_read(batch))) {
        pthread_mutex_unlock(&batch->lock);
        batch_start_read(read);
        pthread_mutex_lock(&batch->lock);
    }
    return !read;
}

/* ---- with batch_take() ---- */

/* With the lock held. NULL: the first read has not completed, or there is none. */
static struct batch_read *
batch_ready_take(struct batch *batch)
{
    const struct batch_read *first = batch_first_ready(batch);

    return first && first->is_completed ? fifo_take(&batch->ready) : NULL;
}

struct batch_read *
batch_take(struct batch *batch)
{
    struct batch_read *read = NULL;

    pthread_mutex_lock(&batch->lock);
    for (;;) {
        if (!batch_is_over(batch))
            batch_submit_locked(batch, UINT32_MAX);
        read = batch_ready_take(batch);
        if (read && read->result)
            batch_set_error(batch, read->result, read->offset);
        if (read && batch->error) {
            batch_remove(batch, read);
            continue;
        }
        if (read)
            break;
        if (batch->reading == 0 && batch_is_over(batch)) {
            pthread_cond_broadcast(&batch->changed);
            break;
        }
        pthread_cond_wait(&batch->changed, &batch->lock);
    }
    pthread_mutex_unlock(&batch->lock);
    return read;
}

/* ---- with complete() ---- */

/* The batch whose reads this thread is submitting. A read may complete during its submission; its
 * release must not submit the next one, or it would recurse without bound. */
static THREAD_LOCAL const struct batch *submitting_here;

static void batch_answer_call(struct job *job);

static void
batch_call_workers(struct batch *batch, unsigned most)
{
    for (unsigned i = 0; i < most && i < batch->options.worker_count; i++) {
        struct batch_call *call = &batch->calls[i];

        if (call->is_waiting)
            continue;
        *call =
            (struct batch_call){.job.run = batch_answer_call, .batch = batch, .is_waiting = true};
        batch->calling++;
        workers_add(batch->options.workers, &call->job, true);
    }
}

/* Releases the lock, which is held. end() may free the batch. */
static void
batch_submit_and_unlock(struct batch *batch)
{
    bool is_last;

    if (submitting_here) {
        /* A worker does it, so that this batch does not wait for the other one. */
        if (submitting_here != batch)
            batch_call_workers(batch, 1);
        pthread_mutex_unlock(&batch->lock);
        return;
    }
    submitting_here = batch;
    batch->submitting++;
    if (!batch_submit_locked(batch, batch->options.workers ? TURN_READS : UINT32_MAX))
        batch_call_workers(batch, batch->options.worker_count);
    batch->submitting--;
    submitting_here = NULL;
    is_last = batch->in_flight + batch->submitting + batch->calling == 0;
    pthread_mutex_unlock(&batch->lock);
    if (is_last && batch->options.end)
        batch->options.end(batch->options.arg);
}

static void
batch_answer_call(struct job *job)
{
    struct batch_call *call = container_of(job, struct batch_call, job);
    struct batch *batch = call->batch;

    pthread_mutex_lock(&batch->lock);
    call->is_waiting = false;
    batch->calling--;
    batch_submit_and_unlock(batch);
}

void
batch_start(struct batch *batch, unsigned threads, bool here)
{
    pthread_mutex_lock(&batch->lock);
    batch_call_workers(batch, threads);
    if (here)
        batch_submit_and_unlock(batch);
    else
        pthread_mutex_unlock(&batch->lock);
}

void
batch_release(struct batch_read *read)
{
    struct batch *batch = read->batch;

    pthread_mutex_lock(&batch->lock);
    batch_remove(batch, read);
    if (!batch->options.complete) {
        pthread_cond_signal(&batch->changed);
        pthread_mutex_unlock(&batch->lock);
    } else if (batch->options.submits_by_workers) {
        batch_call_workers(batch, 1);
        pthread_mutex_unlock(&batch->lock);
    } else {
        batch_submit_and_unlock(batch);
    }
}

bool
batch_stop(struct batch *batch, errint_t error, uint64_t offset)
{
    bool is_first;

    pthread_mutex_lock(&batch->lock);
    is_first = !batch->error;
    batch_set_error(batch, error, offset);
    pthread_mutex_unlock(&batch->lock);
    return is_first;
}

errint_t
batch_error(struct batch *batch, uint64_t *offset)
{
    errint_t error;

    pthread_mutex_lock(&batch->lock);
    error = batch->error;
    if (offset)
        *offset = batch->error_offset;
    pthread_mutex_unlock(&batch->lock);
    return error;
}
