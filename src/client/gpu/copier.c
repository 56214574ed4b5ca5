/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/copier.h"

#include "base/fifo.h"
#include "base/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct copier {
    struct fstfs_device *device;
    const struct gpu_ring *host;
    struct copier_ops ops;
    CUstream stream;
    pthread_t thread;
    bool has_thread;
    /* Used by the copy thread only. */
    struct fifo copying; /* slots whose copies are in the stream, oldest first */
    unsigned scratch; /* index of the scratch slot to use next */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    struct fifo filled; /* slots */
    bool is_stopping;
};

/* The copies from one slot. Adjacent copies are joined. */
struct copy_run {
    struct copier *copier;
    struct gpu_slot *slot;
    bool at_once; /* synchronously, without the stream */
    uintptr_t from; /* in the slot or a scratch slot */
    CUdeviceptr to;
    uint64_t length; /* bytes joined so far */
    uint64_t room; /* from `to` to the end of its allocation */
    errint_t error;
    struct reason reason;
};

/* ---- copies of a slot ---- */

static void
copy_run_flush(struct copy_run *run)
{
    const struct copier *copier = run->copier;
    const struct cuda *cuda = &copier->device->cuda;

    if (run->length == 0 || run->error < 0)
        return;
    if (run->at_once)
        run->error = CUDA_CALL(cuda, &run->reason, cuMemcpyHtoD_v2, run->to,
                               (const void *)run->from, run->length);
    else if (run->slot->ring->in_device)
        run->error = CUDA_CALL(cuda, &run->reason, cuMemcpyDtoDAsync_v2, run->to, run->from,
                               run->length, copier->stream);
    else
        run->error = CUDA_CALL(cuda, &run->reason, cuMemcpyHtoDAsync_v2, run->to,
                               (const void *)run->from, run->length, copier->stream);
    run->slot->copied += run->length;
    run->length = 0;
}

static void
copy_run_add(struct copy_run *run, CUdeviceptr to, uint64_t room, uintptr_t from, uint64_t length)
{
    if (run->to + run->length != to || run->from + run->length != from ||
        run->length + length > run->room)
        copy_run_flush(run);
    if (run->length == 0) {
        run->to = to;
        run->room = room;
        run->from = from;
    }
    run->length += length;
}

/* Packs a slice of several runs in a scratch slot first, which takes one copy instead of one for
 * each run. */
static void
copy_run_add_packed(struct copy_run *run, const struct plan_item *item, CUdeviceptr to,
                    uint64_t before, uint64_t from, const char *bytes, uint64_t length)
{
    struct copier *copier = run->copier;
    const struct cuda *cuda = &copier->device->cuda;
    unsigned scratch = copier->host->count + copier->scratch;
    uintptr_t memory = gpu_ring_memory(copier->host, scratch);
    CUevent event = copier->host->events[scratch];
    uint64_t packed;

    copy_run_flush(run);
    copier->scratch = (copier->scratch + 1) % RING_SCRATCHES;
    if (!run->at_once && run->error == 0)
        run->error = CUDA_CALL(cuda, &run->reason, cuEventSynchronize, event);
    if (run->error < 0)
        return;
    /* Packed offsets count from the start of the slice: the first byte here, at `before`, is copied
     * to `memory`. */
    packed = strided_slice_copy(&item->slice, from, bytes, length, (char *)(memory - before));
    copy_run_add(run, to, packed, memory, packed);
    copy_run_flush(run);
    if (!run->at_once && run->error == 0)
        run->error = CUDA_CALL(cuda, &run->reason, cuEventRecord, event, copier->stream);
}

static void
copy_run_add_item(struct copy_run *run, const struct plan_item *item)
{
    const struct span *span = &run->slot->span;
    uintptr_t memory = slot_memory(run->slot) - span_base(span);
    uint64_t start = item->offset > span->start ? item->offset : span->start;
    uint64_t end = item->end < span->end ? item->end : span->end;
    uint64_t before = start < end ? strided_slice_before(&item->slice, start - item->offset) : 0;
    uint64_t after = start < end ? strided_slice_before(&item->slice, end - item->offset) : 0;
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)item->to + before;

    if (before == after)
        return;
    if (item->slice.level_count > 0) {
        copy_run_add_packed(run, item, to, before, start - item->offset,
                            (const char *)(memory + start), end - start);
        return;
    }
    if (start < item->offset + item->slice.start)
        start = item->offset + item->slice.start;
    copy_run_add(run, to, item->room - before, memory + start, after - before);
}

/* Submits the slot's copies to the stream, or makes them synchronously. */
static errint_t
copier_copy_slot(struct copier *copier, struct gpu_slot *slot, bool at_once, struct reason *reason)
{
    const struct cuda *cuda = &copier->device->cuda;
    struct copy_run run = {.copier = copier, .slot = slot, .at_once = at_once};
    errint_t error = 0;

    slot->copied = 0;
    for (size_t i = slot->span.first; i < slot->span.last && run.error == 0; i++)
        copy_run_add_item(&run, &slot->read->plan.items[i]);
    copy_run_flush(&run);
    if (run.error == 0 && !at_once)
        run.error = CUDA_CALL(cuda, &run.reason, cuEventRecord, slot_event(slot), copier->stream);
    /* The driver may still be copying from memory that is not pinned. */
    if (at_once)
        error = CUDA_CALL(cuda, reason, cuStreamSynchronize, NULL);
    if (run.error < 0) {
        *reason = run.reason;
        error = run.error;
    }
    return error;
}

/* ---- the thread ---- */

static void
copier_done(struct copier *copier, struct gpu_slot *slot, enum gpu_backend backend)
{
    fallback_used(&copier->device->fallback, source_storage(slot->span.source), backend);
    copier->ops.done(copier->ops.arg, slot);
}

/* GPU_PAGEABLE, the last backend: if it fails, the read fails. */
static void
copier_copy_at_once(struct copier *copier, struct gpu_slot *slot)
{
    struct reason reason;
    char text[600];

    if (copier_copy_slot(copier, slot, true, &reason) == 0) {
        copier_done(copier, slot, GPU_PAGEABLE);
        return;
    }
    snprintf(text, sizeof(text), "cuda:%d: %s", copier->device->ordinal, reason.text);
    slot->batch.result = -EIO;
    read_fail(slot->read, -EIO, NULL, text);
    copier->ops.done(copier->ops.arg, slot);
}

/* The stream has failed. Some of the slot's copies may be missing; all are made again. */
static void
copier_leave_stream(struct copier *copier, struct gpu_slot *slot, const struct reason *reason)
{
    copier->device->cuda.cuStreamSynchronize(copier->stream);
    if (slot->ring->in_device) {
        copier->ops.retry(copier->ops.arg, slot, reason->text);
        return;
    }
    fallback_disable(&copier->device->fallback, ALL_STORAGE, GPU_RING, reason->text);
    copier_copy_at_once(copier, slot);
}

static void
copier_start_slot(struct copier *copier, struct gpu_slot *slot)
{
    struct fallback_chain *chain = &copier->device->fallback;
    struct reason reason;

    if (slot->batch.result < 0 || read_is_over(slot->read)) {
        slot->copied = 0;
        copier->ops.done(copier->ops.arg, slot);
    } else if (!slot->ring->in_device && !fallback_is_enabled(chain, ALL_STORAGE, GPU_RING)) {
        copier_copy_at_once(copier, slot);
    } else if (copier_copy_slot(copier, slot, false, &reason) < 0) {
        copier_leave_stream(copier, slot, &reason);
    } else {
        fifo_add(&copier->copying, &slot->batch.node);
    }
}

/* Completes the oldest slot in the stream. False: its copies are not done (only without `wait`). */
static bool
copier_end_slot(struct copier *copier, bool wait)
{
    const struct cuda *cuda = &copier->device->cuda;
    struct gpu_slot *slot = (struct gpu_slot *)copier->copying.first;
    CUevent event = slot_event(slot);
    CUresult result = wait ? cuda->cuEventSynchronize(event) : cuda->cuEventQuery(event);
    struct reason reason;

    if (result == CUDA_ERROR_NOT_READY)
        return false;
    fifo_take(&copier->copying);
    if (cuda_check(cuda, result, wait ? "cuEventSynchronize" : "cuEventQuery", &reason) < 0)
        copier_leave_stream(copier, slot, &reason);
    else
        copier_done(copier, slot, slot->ring->in_device ? GPU_CUFILE : GPU_RING);
    return true;
}

static void *
copier_run(void *arg)
{
    struct copier *copier = arg;
    const struct cuda *cuda = &copier->device->cuda;
    struct gpu_slot *slot;
    CUcontext context;

    /* If this fails, every copy fails and reports it. */
    cuda->cuCtxPushCurrent_v2(copier->device->context);
    pthread_mutex_lock(&copier->lock);
    while (!copier->is_stopping || copier->filled.first || copier->copying.first) {
        slot = fifo_take(&copier->filled);
        if (!slot && !copier->copying.first) {
            pthread_cond_wait(&copier->work, &copier->lock);
            continue;
        }
        pthread_mutex_unlock(&copier->lock);
        if (slot)
            copier_start_slot(copier, slot);
        else
            copier_end_slot(copier, true);
        while (copier->copying.first && copier_end_slot(copier, false))
            continue;
        pthread_mutex_lock(&copier->lock);
    }
    pthread_mutex_unlock(&copier->lock);
    cuda->cuCtxPopCurrent_v2(&context);
    return NULL;
}

void
copier_add(struct copier *copier, struct gpu_slot *slot)
{
    pthread_mutex_lock(&copier->lock);
    fifo_add(&copier->filled, &slot->batch.node);
    pthread_cond_signal(&copier->work);
    pthread_mutex_unlock(&copier->lock);
}

errint_t
copier_new(struct fstfs_device *device, const struct gpu_ring *host, const struct copier_ops *ops,
           struct copier **out)
{
    struct copier *copier = calloc(1, sizeof(*copier));
    struct reason reason;
    errint_t error;

    if (!copier)
        return -ENOMEM;
    copier->device = device;
    copier->host = host;
    copier->ops = *ops;
    pthread_mutex_init(&copier->lock, NULL);
    pthread_cond_init(&copier->work, NULL);
    if (CUDA_CALL(&device->cuda, &reason, cuStreamCreate, &copier->stream, CU_STREAM_NON_BLOCKING) <
        0)
        fallback_disable(&device->fallback, ALL_STORAGE, GPU_RING, reason.text);
    error = thread_start(&copier->thread, copier_run, copier);
    copier->has_thread = !error;
    if (error) {
        copier_free(copier);
        return error;
    }
    *out = copier;
    return 0;
}

void
copier_free(struct copier *copier)
{
    if (!copier)
        return;
    pthread_mutex_lock(&copier->lock);
    copier->is_stopping = true;
    pthread_cond_signal(&copier->work);
    pthread_mutex_unlock(&copier->lock);
    if (copier->has_thread)
        pthread_join(copier->thread, NULL);
    if (copier->stream)
        copier->device->cuda.cuStreamDestroy_v2(copier->stream);
    pthread_cond_destroy(&copier->work);
    pthread_mutex_destroy(&copier->lock);
    free(copier);
}
