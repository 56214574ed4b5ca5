/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two batches (io/batch.h) keep the slots of the two rings filled. Both take spans from the same
 * list of reads, round-robin. A span that cuFile fails to read is read again into the host ring.
 *
 * Lock order: batch, pipeline, read. No lock is held during a read, a copy or a callback.
 */
#include "client/gpu/pipeline.h"

#include "base/fifo.h"
#include "base/list.h"
#include "client/gpu/copier.h"

#include <errno.h>
#include <stdlib.h>

/* Smaller copies do not reach the bandwidth of the bus. */
#define SPAN_BYTES (4ul << 20)
/* Memory budget below which spans are smaller. */
#define SMALL_MEMORY (64ul << 20)
#define SMALL_SPAN_BYTES (1ul << 20)

uint64_t pipeline_span_bytes;

/* A span to read again, into the host ring. */
struct retry {
    struct fifo_node node; /* first */
    struct fstfs_read *read;
    struct span span;
};

/* One ring and the batch that fills it. */
struct filler {
    struct pipeline *pipeline;
    struct gpu_ring ring;
    struct batch *batch;
};

struct pipeline {
    struct fstfs_device *device;
    uint64_t span_bytes;
    struct filler host, direct; /* `direct`: cuFile */
    struct copier *copier;
    bool tried_cufile; /* guarded by fstfs->loading_lock */
    atomic_bool has_direct; /* `direct`, `cufile` and `readers` are complete */
    struct cufile cufile;
    struct workers *readers; /* a thread for each slot of `direct` */
    pthread_mutex_t lock; /* guards all below */
    struct list reads; /* those with spans left */
    struct fifo retries;
};

/* ---- reads and their spans; with the lock held ---- */

/* Whether cuFile reads the next span. The host packs slices of several runs. */
static bool
is_direct_span(struct pipeline *pipeline, const struct fstfs_read *read)
{
    const struct span *span = &read->pipeline.span;

    if (!atomic_load(&span->source->cufile))
        return false;
    for (size_t i = span->first; i < span->last; i++)
        if (read->plan.items[i].slice.level_count > 0)
            return false;
    return fallback_is_enabled(&pipeline->device->fallback, source_storage(span->source),
                               GPU_CUFILE);
}

/* Takes the next span of a read into the slot. */
static void
pipeline_take_span(struct pipeline *pipeline, struct fstfs_read *read, struct gpu_slot *slot)
{
    slot->read = read;
    slot->span = read->pipeline.span;
    read->pipeline.in_flight++;
    list_remove(&read->pipeline.node);
    if (plan_next_span(&read->plan, &read->pipeline.span))
        list_add(&pipeline->reads, &read->pipeline.node);
}

/* Assigns the next span for the ring to the slot. False: there is none. */
static bool
pipeline_next_span(struct filler *filler, struct gpu_slot *slot)
{
    struct pipeline *pipeline = filler->pipeline;
    struct retry *retry = filler->ring.in_device ? NULL : fifo_take(&pipeline->retries);

    if (retry) {
        slot->read = retry->read;
        slot->span = retry->span;
        free(retry);
        return true;
    }
    list_for_each(node, &pipeline->reads)
    {
        struct fstfs_read *read = container_of(node, struct fstfs_read, pipeline.node);

        if (read->pipeline.in_flight > 0 && read_is_over(read)) {
            list_remove(node); /* ended when its last slot is done */
        } else if (is_direct_span(pipeline, read) == filler->ring.in_device) {
            pipeline_take_span(pipeline, read, slot);
            return true;
        }
    }
    return false;
}

/* ---- filling slots ---- */

static bool
filler_next_read(void *arg, struct batch_read *batch)
{
    struct filler *filler = arg;
    struct gpu_slot *slot = (struct gpu_slot *)batch;
    bool has_span;

    pthread_mutex_lock(&filler->pipeline->lock);
    has_span = pipeline_next_span(filler, slot);
    pthread_mutex_unlock(&filler->pipeline->lock);
    if (!has_span)
        return false;
    slot->ring = &filler->ring;
    batch->backing = source_backing(slot->span.source);
    batch->offset = span_base(&slot->span);
    batch->length = (size_t)(slot->span.end - batch->offset);
    batch->buffer = (char *)slot_memory(slot);
    return true;
}

static void
filler_completed(struct batch_read *batch, const struct iovec *vectors, int count)
{
    struct gpu_slot *slot = (struct gpu_slot *)batch;

    (void)vectors;
    (void)count;
    copier_add(slot->read->options.device->pipeline->copier, slot);
}

/* Has `threads` workers submit reads into the host ring and one into the device ring. */
static void
pipeline_submit(struct pipeline *pipeline, unsigned threads)
{
    batch_start(pipeline->host.batch, threads, false);
    if (atomic_load(&pipeline->has_direct))
        batch_start(pipeline->direct.batch, 1, false);
}

/* The slot's span has been copied, or has failed. */
static void
pipeline_slot_done(void *arg, struct gpu_slot *slot)
{
    struct pipeline *pipeline = arg;
    struct fstfs_read *read = slot->read;
    bool is_last, has_more;

    if (slot->batch.result < 0)
        read_fail(read, slot->batch.result, slot->span.source->path, NULL);
    else
        read_add_done(read, slot->copied, true);
    batch_release(&slot->batch);
    pthread_mutex_lock(&pipeline->lock);
    if (list_is_linked(&read->pipeline.node) && read_is_over(read))
        list_remove(&read->pipeline.node);
    is_last = --read->pipeline.in_flight == 0 && !list_is_linked(&read->pipeline.node);
    has_more = list_first(&pipeline->reads) || pipeline->retries.first;
    pthread_mutex_unlock(&pipeline->lock);
    if (is_last)
        read_end(read);
    /* Spans are taken in order: a ring may be waiting for the other one to take the span before its
     * own. */
    if (has_more)
        pipeline_submit(pipeline, 1);
}

/* ---- cuFile ---- */

/* Disables cuFile for a storage, or for ALL_STORAGE if the stream failed to copy from its ring, and
 * reads the span into the host ring. */
static void
pipeline_leave_cufile(struct pipeline *pipeline, struct gpu_slot *slot, uint64_t number,
                      const char *why)
{
    struct retry *retry = malloc(sizeof(*retry));

    fallback_disable(&pipeline->device->fallback, number, GPU_CUFILE, why);
    if (!retry) {
        slot->batch.result = -ENOMEM;
        pipeline_slot_done(pipeline, slot);
        return;
    }
    retry->read = slot->read;
    retry->span = slot->span;
    batch_release(&slot->batch);
    pthread_mutex_lock(&pipeline->lock);
    fifo_add(&pipeline->retries, &retry->node);
    pthread_mutex_unlock(&pipeline->lock);
    pipeline_submit(pipeline, 1);
}

/* copier_ops.retry */
static void
pipeline_retry(void *arg, struct gpu_slot *slot, const char *why)
{
    pipeline_leave_cufile(arg, slot, ALL_STORAGE, why);
}

static void
cufile_fill_slot(struct job *job)
{
    struct gpu_slot *slot = container_of(job, struct gpu_slot, job);
    struct fstfs_device *device = slot->ring->device;
    struct pipeline *pipeline = atomic_load(&device->pipeline);
    struct batch_read *batch = &slot->batch;
    struct reason reason;
    CUcontext context;
    errint_t error = CUDA_CALL(&device->cuda, &reason, cuCtxPushCurrent_v2, device->context);

    if (!error) {
        error = cufile_read(atomic_load(&slot->span.source->cufile), batch->backing,
                            slot->ring->memory, slot_memory(slot) - slot->ring->memory,
                            batch->offset, block_up(batch->length), batch->length, &reason);
        device->cuda.cuCtxPopCurrent_v2(&context);
    }
    if (error < 0 && error != -ESTALE) {
        pipeline_leave_cufile(pipeline, slot, source_storage(slot->span.source), reason.text);
        return;
    }
    if (!error) {
        atomic_fetch_add(&device->fstfs->cufile_reads, 1);
        atomic_fetch_add(&device->fstfs->cufile_bytes, batch->length);
    }
    batch_completed(batch, error);
}

static void
cufile_start_read(struct batch_read *batch)
{
    struct gpu_slot *slot = (struct gpu_slot *)batch;

    slot->job.run = cufile_fill_slot;
    workers_add(atomic_load(&slot->ring->device->pipeline)->readers, &slot->job, true);
}

static errint_t
filler_start(struct filler *filler)
{
    struct fstfs *fstfs = filler->pipeline->device->fstfs;
    const struct batch_options options = {
        .io = fstfs->io,
        .depth = filler->ring.count,
        .read_bytes = sizeof(struct gpu_slot),
        .arg = filler,
        .next = filler_next_read,
        .complete = filler_completed,
        .read = filler->ring.in_device ? cufile_start_read : NULL,
        .workers = fstfs->workers,
        .worker_count = fstfs->worker_count,
        .submits_by_workers = true,
    };

    return batch_new(&options, &filler->batch);
}

static errint_t
pipeline_start_cufile(struct pipeline *pipeline, struct reason *reason)
{
    struct filler *direct = &pipeline->direct;
    errint_t error = cufile_load(&pipeline->cufile, reason);

    if (error)
        return error;
    if (!fallback_is_enabled(&pipeline->device->fallback, ALL_STORAGE, GPU_RING))
        return reason_set(reason, -EIO, "Device",
                          "the backend ring, whose stream it copies with, is disabled");
    if (workers_new(RING_DEVICE_SLOTS, &pipeline->readers) < 0)
        return reason_set(reason, -EAGAIN, "Device", "its threads cannot be created");
    error = gpu_ring_make_device(&direct->ring, pipeline->device, pipeline->span_bytes,
                                 &pipeline->cufile, reason);
    if (!error && filler_start(direct) < 0)
        error = reason_set(reason, -ENOMEM, "Device", "out of memory");
    if (error)
        gpu_ring_free(&direct->ring);
    else
        atomic_store(&pipeline->has_direct, true);
    return error;
}

errint_t
pipeline_open_file(struct pipeline *pipeline, struct tensor_source *source, struct reason *reason)
{
    struct cufile_file *file;
    errint_t error;

    if (!pipeline->tried_cufile) {
        pipeline->tried_cufile = true;
        error = pipeline_start_cufile(pipeline, reason);
        if (error) {
            fallback_disable(&pipeline->device->fallback, ALL_STORAGE, GPU_CUFILE, reason->text);
            return error;
        }
    }
    if (atomic_load(&source->cufile))
        return 0;
    error = cufile_open(&pipeline->cufile, source_backing(source), &file, reason);
    if (!error)
        atomic_store(&source->cufile, file);
    return error;
}

/* ---- the pipeline ---- */

errint_t
pipeline_new(struct fstfs_device *device, struct pipeline **out)
{
    struct pipeline *pipeline = calloc(1, sizeof(*pipeline));
    struct io_counters counters;
    errint_t error;

    if (!pipeline)
        return -ENOMEM;
    io_counters(device->fstfs->io, &counters);
    pipeline->device = device;
    pipeline->host.pipeline = pipeline->direct.pipeline = pipeline;
    pipeline->host.ring.device = pipeline->direct.ring.device = device;
    pthread_mutex_init(&pipeline->lock, NULL);
    list_init(&pipeline->reads);
    pipeline->span_bytes = counters.memory_budget < SMALL_MEMORY ? SMALL_SPAN_BYTES : SPAN_BYTES;
    if (pipeline_span_bytes > 0)
        pipeline->span_bytes = pipeline_span_bytes;
    error = gpu_ring_make_host(&pipeline->host.ring, device, pipeline->span_bytes,
                               counters.memory_budget / 4);
    if (!error)
        error = filler_start(&pipeline->host);
    if (!error)
        error = copier_new(device, &pipeline->host.ring,
                           &(struct copier_ops){pipeline_slot_done, pipeline_retry, pipeline},
                           &pipeline->copier);
    if (error) {
        pipeline_free(pipeline);
        return error;
    }
    *out = pipeline;
    return 0;
}

void
pipeline_free(struct pipeline *pipeline)
{
    CUcontext context;

    if (!pipeline)
        return;
    pipeline->device->cuda.cuCtxPushCurrent_v2(pipeline->device->context);
    copier_free(pipeline->copier);
    workers_free(pipeline->readers);
    batch_free(pipeline->host.batch);
    batch_free(pipeline->direct.batch);
    gpu_ring_free(&pipeline->direct.ring);
    gpu_ring_free(&pipeline->host.ring);
    pipeline->device->cuda.cuCtxPopCurrent_v2(&context);
    pthread_mutex_destroy(&pipeline->lock);
    free(pipeline);
}

void
pipeline_memory(const struct pipeline *pipeline, uint64_t *host, uint64_t *device)
{
    *host = gpu_ring_bytes(&pipeline->host.ring);
    *device = atomic_load(&pipeline->has_direct) ? gpu_ring_bytes(&pipeline->direct.ring) : 0;
}

void
pipeline_read(struct pipeline *pipeline, struct fstfs_read *read)
{
    uint64_t spans = read->total / pipeline->span_bytes + 1;
    bool is_empty;

    read->plan.span_bytes = pipeline->span_bytes;
    pthread_mutex_lock(&pipeline->lock);
    is_empty = !plan_next_span(&read->plan, &read->pipeline.span);
    if (!is_empty)
        list_add(&pipeline->reads, &read->pipeline.node);
    pthread_mutex_unlock(&pipeline->lock);
    if (is_empty)
        read_end(read);
    else
        pipeline_submit(pipeline, spans < BATCH_WORKERS ? (unsigned)spans : BATCH_WORKERS);
}
