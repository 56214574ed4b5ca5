/* SPDX-License-Identifier: Apache-2.0 */
#include "client/host_read.h"

#include <errno.h>

#define SPAN_BYTES (1024 * 1024) /* larger reads are not faster on any storage */
/* Few bytes are in flight at first, so that they are copied while they are in the processor's
 * cache. The limit rises with the latency of the storage (batch_options.bytes_most). */
#define FIRST_BYTES (16 * SPAN_BYTES)
#define MOST_BYTES (64 * SPAN_BYTES)
#define MOST_SPANS 256
#define LEAST_SHARED (4 * SPAN_BYTES) /* bytes; a smaller read is submitted by one thread */

/* A span in flight. */
struct host_span {
    struct batch_read batch; /* first */
    struct fstfs_read *read;
    struct span span;
};

static bool
host_next_read(void *arg, struct batch_read *batch)
{
    struct host_span *host = (struct host_span *)batch;
    struct fstfs_read *read = host->read = arg;
    struct span *span = &host->span;

    if (read_is_over(read) || !plan_next_span(&read->plan, span))
        return false;
    batch->list = span->source->list;
    batch->offset = span->start;
    batch->length = (size_t)(span->end - span->start);
    batch->buffer = span_memory(&read->plan, span);
    if (batch->buffer)
        batch->backing = source_backing(span->source);
    return true;
}

static void
host_read_completed(struct batch_read *batch, const struct iovec *vectors, int count)
{
    struct host_span *host = (struct host_span *)batch;
    struct fstfs_read *read = host->read;
    uint64_t offset = batch->offset, bytes = 0;

    if (batch->buffer && batch->result == -EFAULT) {
        /* The kernel cannot write to this memory, for example mapped memory of a device. */
        batch->backing = NULL;
        batch->buffer = NULL;
        batch_retry(batch);
        return;
    }
    if (batch->result < 0)
        read_fail(read, batch->result, host->span.source->path, NULL);
    else if (batch->buffer)
        bytes = batch->length;
    for (int i = 0; i < count && !atomic_load(&read->is_cancelled); i++) {
        bytes +=
            span_copy(&read->plan, &host->span, offset, vectors[i].iov_base, vectors[i].iov_len);
        offset += vectors[i].iov_len;
    }
    read_add_done(read, bytes, batch->buffer != NULL);
    batch_release(batch);
}

static void
host_read_ended(void *arg)
{
    struct fstfs_read *read = arg;

    if (batch_error(read->batch, NULL))
        read_fail(read, -ENOMEM, NULL, "out of memory");
    read_end(read);
}

errint_t
host_read_prepare(struct fstfs_read *read)
{
    const struct batch_options options = {
        .io = read->fstfs->io,
        .depth = MOST_SPANS,
        .bytes = FIRST_BYTES,
        .bytes_most = MOST_BYTES,
        .read_bytes = sizeof(struct host_span),
        .arg = read,
        .next = host_next_read,
        .complete = host_read_completed,
        .end = host_read_ended,
        .workers = read->fstfs->workers,
        .worker_count = read->fstfs->worker_count,
    };

    read->plan.span_bytes = SPAN_BYTES;
    return batch_new(&options, &read->batch);
}

void
host_read_start(struct fstfs_read *read, bool here)
{
    unsigned threads = read->total < LEAST_SHARED ? 1 : read->fstfs->worker_count;

    batch_start(read->batch, threads - here, here);
}
