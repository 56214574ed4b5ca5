/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a slot:
 *
 *   free -> (a filler gives it the next window) the storage -> filled -> (the copier has
 *   the stream copy it) copying -> free
 *
 * A window that cuFile could not read goes into a slot of the other kind.
 *
 * `lock` guards the lists of slots and reads, and the reads' windows. It is never held
 * over a read, a copy or a callback. Fillers are calls to fstfs->workers: what lies in
 * the page cache is copied by the thread that asks for it, so there are several.
 */
#include "client/gpu/pipeline.h"

#include "base/thread.h"
#include "io/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Copies of less do not fill the bus. Where there is little memory, less. */
#define WINDOW (4ul << 20)
#define SMALL_WINDOW (1ul << 20)
#define SMALL_MEMORY (64ul << 20)
#define SLOT_SLACK (64ul << 10) /* for WINDOW_SLACK, and the blocks at the ends */
#define MOST_SLOTS 16
#define LEAST_SLOTS 2
#define DEVICE_SLOTS 8 /* each with a thread that waits for cuFile */
#define SCRATCHES 2 /* slots that boxes are packed in */
#define DEVICE_ALIGNMENT (64ul << 10) /* cuFile asks for 4096; a device may have larger pages */

uint64_t pipeline_window;

struct slot {
    struct storage_read storage;
    struct pipeline *pipeline;
    struct slot *next;
    struct job job; /* of a slot in device memory: reading it */
    bool of_device;
    uintptr_t memory;
    CUevent event;
    struct fstfs_read *read;
    struct window window;
    errint_t result; /* of filling it */
    uint64_t copied; /* bytes that its copies bring */
};

struct slot_queue {
    struct slot *first, **last;
};

struct filler {
    struct job job;
    struct pipeline *pipeline;
    bool waiting; /* for a worker */
};

struct pipeline {
    struct fstfs_device *device;
    struct storage *storage;
    uint64_t window; /* bytes */
    char *memory; /* of all slots */
    void *allocated; /* by the driver; NULL: by mmap() */
    size_t memory_size;
    struct slot slots[MOST_SLOTS + SCRATCHES]; /* the last ones are the copier's own */
    unsigned slot_count; /* without those */
    bool registered; /* with the driver */
    atomic_bool registered_device; /* the device's, with cuFile */
    bool tried_cufile, has_copier;
    CUstream stream;
    /* For cuFile; made once, before any slot of these is used. */
    struct cufile cufile;
    struct workers *readers;
    CUdeviceptr device_memory; /* as allocated; 0: none */
    CUdeviceptr device_ring; /* of all its slots, aligned */
    struct slot device_slots[DEVICE_SLOTS];
    /* The copier's own. */
    struct slot_queue copying; /* in the order of the stream */
    pthread_t copier;
    unsigned scratch; /* the next one */
    bool stopping; /* guarded by `lock` */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work; /* for the copier */
    struct slot *free, *free_of_device;
    struct slot_queue again; /* slots of the device whose windows cuFile could not read */
    struct slot_queue filled;
    struct fstfs_read *reads; /* that have windows left */
    struct filler fillers[CLIENT_WORKERS];
};

static void
queue_init(struct slot_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void
queue_add(struct slot_queue *queue, struct slot *slot)
{
    slot->next = NULL;
    *queue->last = slot;
    queue->last = &slot->next;
}

static struct slot *
queue_take(struct slot_queue *queue)
{
    struct slot *slot = queue->first;

    if (slot && !(queue->first = slot->next))
        queue->last = &queue->first;
    return slot;
}

/* ---- reads and their windows; with the lock held ---- */

static void
unlist_read(struct pipeline *pipeline, struct fstfs_read *read)
{
    struct fstfs_read **link = &pipeline->reads;

    while (*link != read)
        link = &(*link)->pipeline.next;
    *link = read->pipeline.next;
    read->pipeline.listed = false;
}

/* Behind the others. */
static void
list_read(struct pipeline *pipeline, struct fstfs_read *read)
{
    struct fstfs_read **link = &pipeline->reads;

    while (*link)
        link = &(*link)->pipeline.next;
    *link = read;
    read->pipeline.next = NULL;
    read->pipeline.listed = true;
}

/* Makes the read's next window if there is none; false: it wants no more. */
static bool
has_window(struct fstfs_read *read)
{
    if (read_is_over(read))
        return false;
    if (!read->pipeline.has_window)
        read->pipeline.has_window = windows_next(&read->windows, &read->pipeline.window);
    return read->pipeline.has_window;
}

static uint64_t
storage_of(const struct tensor_source *source)
{
    return source->list->extents[0].backing->identity.device;
}

/* Boxes whose runs lie apart are packed by the host. */
static bool
is_for_cufile(struct pipeline *pipeline, const struct fstfs_read *read)
{
    const struct window *window = &read->pipeline.window;

    if (!atomic_load(&window->source->cufile))
        return false;
    for (size_t i = window->first; i < window->last; i++)
        if (read->windows.items[i].box.level_count > 0)
            return false;
    return ladder_may(&pipeline->device->ladder, storage_of(window->source), RUNG_CUFILE);
}

static struct slot *
take_free(struct pipeline *pipeline, bool of_device)
{
    struct slot **list = of_device ? &pipeline->free_of_device : &pipeline->free;
    struct slot *slot = *list;

    if (slot)
        *list = slot->next;
    return slot;
}

static void
put_free(struct slot *slot)
{
    struct pipeline *pipeline = slot->pipeline;
    struct slot **list = slot->of_device ? &pipeline->free_of_device : &pipeline->free;

    slot->next = *list;
    *list = slot;
}

/* A window that cuFile could not read, in another slot; NULL: there is none. */
static struct slot *
next_again(struct pipeline *pipeline)
{
    struct slot *failed, *slot;

    if (!pipeline->again.first || !(slot = take_free(pipeline, false)))
        return NULL;
    failed = queue_take(&pipeline->again);
    slot->read = failed->read;
    slot->window = failed->window;
    put_free(failed);
    return slot;
}

/* A free slot with the next window in it, of each read in its turn; NULL: there is no
 * slot, or no window. A read that has come to its end by that goes into `ended`. */
static struct slot *
next_slot(struct pipeline *pipeline, struct fstfs_read **ended)
{
    struct slot *slot = next_again(pipeline);

    *ended = NULL;
    for (struct fstfs_read *read = pipeline->reads, *next; read && !slot; read = next) {
        next = read->pipeline.next;
        if (!has_window(read)) {
            unlist_read(pipeline, read);
            if (read->pipeline.under_way > 0)
                continue;
            *ended = read;
            return NULL;
        }
        slot = take_free(pipeline, is_for_cufile(pipeline, read));
        if (!slot)
            continue;
        unlist_read(pipeline, read);
        list_read(pipeline, read);
        slot->read = read;
        slot->window = read->pipeline.window;
        read->pipeline.has_window = false;
        read->pipeline.under_way++;
    }
    return slot;
}

/* ---- filling ---- */

static void
slot_filled(struct slot *slot, errint_t result)
{
    struct pipeline *pipeline = slot->pipeline;

    slot->result = result;
    pthread_mutex_lock(&pipeline->lock);
    queue_add(&pipeline->filled, slot);
    pthread_cond_signal(&pipeline->work);
    pthread_mutex_unlock(&pipeline->lock);
}

static void
storage_filled(struct storage_read *storage_read, errint_t result)
{
    slot_filled((struct slot *)((char *)storage_read - offsetof(struct slot, storage)), result);
}

static size_t
bytes_of(const struct window *window)
{
    return (size_t)(window->end - window_base(window));
}

static size_t
blocks_of(const struct window *window)
{
    return block_up(bytes_of(window));
}

static void
fill_slot(struct slot *slot)
{
    const struct window *window = &slot->window;

    if (slot->of_device) {
        workers_add(slot->pipeline->readers, &slot->job, true);
        return;
    }
    slot->storage.backing = window->source->list->extents[0].backing;
    slot->storage.offset = window_base(window);
    slot->storage.valid = bytes_of(window);
    slot->storage.length = blocks_of(window);
    slot->storage.buffer = (char *)slot->memory;
    slot->storage.urgent = true;
    slot->storage.complete = storage_filled;
    storage_read(slot->pipeline->storage, &slot->storage);
}

/* With the lock held, and let go meanwhile. */
static void
fill_slots(struct pipeline *pipeline)
{
    struct fstfs_read *ended;
    struct slot *slot;

    while ((slot = next_slot(pipeline, &ended)) || ended) {
        pthread_mutex_unlock(&pipeline->lock);
        if (slot)
            fill_slot(slot);
        else
            read_ends(ended);
        pthread_mutex_lock(&pipeline->lock);
    }
}

static void
answer_call(struct job *job)
{
    struct filler *filler = (struct filler *)((char *)job - offsetof(struct filler, job));
    struct pipeline *pipeline = filler->pipeline;

    pthread_mutex_lock(&pipeline->lock);
    filler->waiting = false;
    fill_slots(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
}

/* With the lock held: so many more fillers, but no more than there can be. */
static void
call_fillers(struct pipeline *pipeline, unsigned count)
{
    struct fstfs *fstfs = pipeline->device->fstfs;

    for (unsigned i = 0; i < fstfs->worker_count && count > 0; i++) {
        struct filler *filler = &pipeline->fillers[i];

        if (filler->waiting)
            continue;
        *filler = (struct filler){.job.run = answer_call, .pipeline = pipeline, .waiting = true};
        workers_add(fstfs->workers, &filler->job, true);
        count--;
    }
}

/* cuFile is given up for the storage, or (LADDER_ALL) the device. */
static void
leave_cufile(struct slot *slot, uint64_t number, const char *why)
{
    struct pipeline *pipeline = slot->pipeline;

    ladder_give_up(&pipeline->device->ladder, number, RUNG_CUFILE, why);
    pthread_mutex_lock(&pipeline->lock);
    queue_add(&pipeline->again, slot);
    call_fillers(pipeline, 1);
    pthread_mutex_unlock(&pipeline->lock);
}

/* From one of the readers. */
static void
fill_by_cufile(struct job *job)
{
    struct slot *slot = (struct slot *)((char *)job - offsetof(struct slot, job));
    struct pipeline *pipeline = slot->pipeline;
    const struct cuda *cuda = &pipeline->device->cuda;
    const struct window *window = &slot->window;
    struct backing *backing = window->source->list->extents[0].backing;
    struct reason reason;
    CUcontext context;
    errint_t error = CUDA_CALL(cuda, &reason, cuCtxPushCurrent_v2, pipeline->device->context);

    if (!error) {
        error = cufile_read(atomic_load(&window->source->cufile), backing, pipeline->device_ring,
                            slot->memory - pipeline->device_ring, window_base(window),
                            blocks_of(window), bytes_of(window), &reason);
        cuda->cuCtxPopCurrent_v2(&context);
    }
    if (!error) {
        atomic_fetch_add(&pipeline->device->fstfs->cufile_reads, 1);
        atomic_fetch_add(&pipeline->device->fstfs->cufile_bytes, bytes_of(window));
    }
    if (error < 0 && error != -ESTALE)
        leave_cufile(slot, storage_of(window->source), reason.text);
    else
        slot_filled(slot, error);
}

/* ---- copying; by the copier ---- */

/* The window is dealt with: its slot is free for another. */
static void
end_window(struct slot *slot)
{
    struct pipeline *pipeline = slot->pipeline;
    struct fstfs_read *read = slot->read;
    bool last;

    if (slot->result < 0)
        read_fails(read, slot->result, slot->window.source->path, NULL);
    else
        read_came(read, slot->copied);
    pthread_mutex_lock(&pipeline->lock);
    put_free(slot);
    last = --read->pipeline.under_way == 0 && !read->pipeline.listed;
    if (pipeline->reads || pipeline->again.first)
        call_fillers(pipeline, 1);
    pthread_mutex_unlock(&pipeline->lock);
    if (last)
        read_ends(read);
}

static void
used(const struct slot *slot, enum rung rung)
{
    ladder_used(&slot->pipeline->device->ladder, storage_of(slot->window.source), rung);
}

/* Copies that are to follow one another, joined where both ends meet. */
struct copier {
    struct slot *slot;
    bool at_once; /* not by the stream */
    uintptr_t from; /* in the memory of the slot, or a scratch */
    CUdeviceptr to;
    uint64_t length;
    uint64_t room; /* behind `to` in its allocation */
    errint_t error;
    struct reason reason;
};

static void
copy_joined(struct copier *copier)
{
    const struct pipeline *pipeline = copier->slot->pipeline;
    const struct cuda *cuda = &pipeline->device->cuda;

    if (copier->length == 0 || copier->error < 0)
        return;
    if (copier->at_once)
        copier->error = CUDA_CALL(cuda, &copier->reason, cuMemcpyHtoD_v2, copier->to,
                                  (const void *)copier->from, copier->length);
    else if (copier->slot->of_device)
        copier->error = CUDA_CALL(cuda, &copier->reason, cuMemcpyDtoDAsync_v2, copier->to,
                                  copier->from, copier->length, pipeline->stream);
    else
        copier->error = CUDA_CALL(cuda, &copier->reason, cuMemcpyHtoDAsync_v2, copier->to,
                                  (const void *)copier->from, copier->length, pipeline->stream);
    copier->slot->copied += copier->length;
    copier->length = 0;
}

static void
copy(struct copier *copier, CUdeviceptr to, uint64_t room, uintptr_t from, uint64_t length)
{
    if (copier->to + copier->length != to || copier->from + copier->length != from ||
        copier->length + length > copier->room)
        copy_joined(copier);
    if (copier->length == 0) {
        copier->to = to;
        copier->room = room;
        copier->from = from;
    }
    copier->length += length;
}

/* A box whose runs lie apart is packed first: one copy, not one for each. */
static void
copy_packed(struct copier *copier, const struct item *item, CUdeviceptr to, uint64_t from,
            const char *bytes, uint64_t length)
{
    struct pipeline *pipeline = copier->slot->pipeline;
    const struct cuda *cuda = &pipeline->device->cuda;
    struct slot *scratch = &pipeline->slots[pipeline->slot_count + pipeline->scratch];
    uint64_t packed;

    copy_joined(copier);
    pipeline->scratch = (pipeline->scratch + 1) % SCRATCHES;
    if (!copier->at_once && copier->error == 0)
        copier->error = CUDA_CALL(cuda, &copier->reason, cuEventSynchronize, scratch->event);
    if (copier->error < 0)
        return;
    packed = box_pack(&item->box, from, bytes, length, (char *)scratch->memory);
    copy(copier, to, packed, scratch->memory, packed);
    copy_joined(copier);
    if (!copier->at_once && copier->error == 0)
        copier->error =
            CUDA_CALL(cuda, &copier->reason, cuEventRecord, scratch->event, pipeline->stream);
}

static void
copy_item(struct copier *copier, const struct item *item)
{
    const struct slot *slot = copier->slot;
    const struct window *window = &slot->window;
    uint64_t start = item->offset > window->start ? item->offset : window->start;
    uint64_t end = item->end < window->end ? item->end : window->end;
    uint64_t before = start < end ? box_before(&item->box, start - item->offset) : 0;
    uint64_t after = start < end ? box_before(&item->box, end - item->offset) : 0;
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)item->to + before;

    if (before == after)
        return;
    if (item->box.level_count > 0) {
        copy_packed(copier, item, to, start - item->offset,
                    (const char *)slot->memory + (start - window_base(window)), end - start);
        return;
    }
    if (start < item->offset + item->box.start)
        start = item->offset + item->box.start;
    copy(copier, to, item->room - before, slot->memory + (start - window_base(window)),
         after - before);
}

/* Gives the slot's copies to the stream, or makes them. */
static errint_t
copy_slot(struct slot *slot, bool at_once, struct reason *reason)
{
    const struct cuda *cuda = &slot->pipeline->device->cuda;
    struct copier copier = {.slot = slot, .at_once = at_once};
    const struct window *window = &slot->window;
    errint_t error = 0;

    slot->copied = 0;
    for (size_t i = window->first; i < window->last && copier.error == 0; i++)
        copy_item(&copier, &slot->read->windows.items[i]);
    copy_joined(&copier);
    if (copier.error == 0 && !at_once)
        copier.error =
            CUDA_CALL(cuda, &copier.reason, cuEventRecord, slot->event, slot->pipeline->stream);
    /* Of memory that is not pinned the driver may have a copy, and that be under way. */
    if (at_once)
        error = CUDA_CALL(cuda, reason, cuStreamSynchronize, NULL);
    if (copier.error < 0) {
        *reason = copier.reason;
        error = copier.error;
    }
    return error;
}

/* The last way there is: its failure is the read's. */
static void
copy_at_once(struct slot *slot)
{
    struct fstfs_device *device = slot->pipeline->device;
    struct reason reason;
    char text[600];

    if (copy_slot(slot, true, &reason) < 0) {
        snprintf(text, sizeof(text), "cuda:%d: %s", device->ordinal, reason.text);
        slot->result = -EIO;
        read_fails(slot->read, -EIO, NULL, text);
    } else {
        used(slot, RUNG_PAGEABLE);
    }
    end_window(slot);
}

/* The stream has failed: copies that were given to it may or may not have been made,
 * and are made again. */
static void
leave_stream(struct slot *slot, const struct reason *reason)
{
    struct pipeline *pipeline = slot->pipeline;

    pipeline->device->cuda.cuStreamSynchronize(pipeline->stream);
    if (slot->of_device) {
        leave_cufile(slot, LADDER_ALL, reason->text);
        return;
    }
    ladder_give_up(&pipeline->device->ladder, LADDER_ALL, RUNG_RING, reason->text);
    copy_at_once(slot);
}

static void
start_copies(struct slot *slot)
{
    struct pipeline *pipeline = slot->pipeline;
    struct reason reason;

    if (slot->result < 0 || read_is_over(slot->read)) {
        slot->copied = 0;
        end_window(slot);
    } else if (!slot->of_device && !ladder_may(&pipeline->device->ladder, LADDER_ALL, RUNG_RING)) {
        copy_at_once(slot);
    } else if (copy_slot(slot, false, &reason) < 0) {
        leave_stream(slot, &reason);
    } else {
        queue_add(&pipeline->copying, slot);
    }
}

/* Waits for the copies of the slot that was given to the stream first, or only looks;
 * false when they are not made yet. */
static bool
end_copies(struct pipeline *pipeline, bool wait)
{
    const struct cuda *cuda = &pipeline->device->cuda;
    struct slot *slot = pipeline->copying.first;
    CUresult result =
        wait ? cuda->cuEventSynchronize(slot->event) : cuda->cuEventQuery(slot->event);
    struct reason reason;

    if (result == CUDA_ERROR_NOT_READY)
        return false;
    queue_take(&pipeline->copying);
    if (cuda_check(cuda, result, "cuEventSynchronize", &reason) < 0) {
        leave_stream(slot, &reason);
    } else {
        used(slot, slot->of_device ? RUNG_CUFILE : RUNG_RING);
        end_window(slot);
    }
    return true;
}

static void *
run_copier(void *arg)
{
    struct pipeline *pipeline = arg;
    const struct cuda *cuda = &pipeline->device->cuda;
    struct slot *slot;
    CUcontext context;

    /* If that fails every copy will, and says so. */
    cuda->cuCtxPushCurrent_v2(pipeline->device->context);
    pthread_mutex_lock(&pipeline->lock);
    while (!pipeline->stopping || pipeline->filled.first || pipeline->copying.first) {
        slot = queue_take(&pipeline->filled);
        if (!slot && !pipeline->copying.first) {
            pthread_cond_wait(&pipeline->work, &pipeline->lock);
            continue;
        }
        pthread_mutex_unlock(&pipeline->lock);
        if (slot)
            start_copies(slot);
        else
            end_copies(pipeline, true);
        while (pipeline->copying.first && end_copies(pipeline, false))
            continue;
        pthread_mutex_lock(&pipeline->lock);
    }
    pthread_mutex_unlock(&pipeline->lock);
    cuda->cuCtxPopCurrent_v2(&context);
    return NULL;
}

/* ---- its life ---- */

static void
size_ring(struct pipeline *pipeline)
{
    struct io_counters counters;
    uint64_t count;

    io_counters(pipeline->device->fstfs->io, &counters);
    pipeline->window = counters.memory_budget < SMALL_MEMORY ? SMALL_WINDOW : WINDOW;
    if (pipeline_window > 0)
        pipeline->window = pipeline_window;
    count = counters.memory_budget / 4 / (pipeline->window + SLOT_SLACK);
    if (count > MOST_SLOTS)
        count = MOST_SLOTS;
    pipeline->slot_count = count < LEAST_SLOTS ? LEAST_SLOTS : (unsigned)count;
    pipeline->memory_size = (pipeline->slot_count + SCRATCHES) * (pipeline->window + SLOT_SLACK);
}

/* Memory of our own in huge pages, registered with the driver, costs half of what the
 * driver's own does, and is aligned. Present at once, or the driver would fetch it page
 * by page; and of no child's after fork(). */
static errint_t
find_memory(struct pipeline *pipeline)
{
    const struct fstfs_device *device = pipeline->device;
    struct reason reason, first;
    size_t size = pipeline->memory_size;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return -ENOMEM;
    madvise(memory, size, MADV_HUGEPAGE);
    madvise(memory, size, MADV_DONTDUMP);
    madvise(memory, size, MADV_DONTFORK);
    memset(memory, 0, size);
    pipeline->memory = memory;
    pipeline->registered = CUDA_CALL(&device->cuda, &first, cuMemHostRegister_v2, memory, size,
                                     CU_MEMHOSTREGISTER_PORTABLE) == 0;
    if (pipeline->registered)
        return 0;
    if (CUDA_CALL(&device->cuda, &reason, cuMemHostAlloc, &pipeline->allocated, size + BLOCK_SIZE,
                  CU_MEMHOSTALLOC_PORTABLE) < 0) {
        pipeline->allocated = NULL;
        ladder_give_up(&pipeline->device->ladder, LADDER_ALL, RUNG_RING, first.text);
        return 0;
    }
    munmap(memory, size);
    pipeline->memory = (char *)pipeline->allocated + -(uintptr_t)pipeline->allocated % BLOCK_SIZE;
    return 0;
}

static void
make_stream(struct pipeline *pipeline)
{
    const struct cuda *cuda = &pipeline->device->cuda;
    struct reason reason;
    errint_t error =
        CUDA_CALL(cuda, &reason, cuStreamCreate, &pipeline->stream, CU_STREAM_NON_BLOCKING);

    for (unsigned i = 0; i < pipeline->slot_count + SCRATCHES && error == 0; i++)
        error = CUDA_CALL(cuda, &reason, cuEventCreate, &pipeline->slots[i].event,
                          CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (error < 0)
        ladder_give_up(&pipeline->device->ladder, LADDER_ALL, RUNG_RING, reason.text);
}

static void
make_slots(struct pipeline *pipeline)
{
    for (unsigned i = 0; i < pipeline->slot_count + SCRATCHES; i++) {
        struct slot *slot = &pipeline->slots[i];

        slot->pipeline = pipeline;
        slot->memory = (uintptr_t)pipeline->memory + i * (pipeline->window + SLOT_SLACK);
        if (i < pipeline->slot_count) {
            slot->next = pipeline->free;
            pipeline->free = slot;
        }
    }
}

static errint_t
start_copier(struct pipeline *pipeline)
{
    errint_t error = thread_start(&pipeline->copier, run_copier, pipeline);

    pipeline->has_copier = !error;
    return error;
}

errint_t
pipeline_new(struct fstfs_device *device, struct pipeline **out)
{
    struct pipeline *pipeline = calloc(1, sizeof(*pipeline));
    CUcontext context;
    errint_t error;

    if (!pipeline)
        return -ENOMEM;
    pipeline->device = device;
    pipeline->storage = io_storage(device->fstfs->io);
    pthread_mutex_init(&pipeline->lock, NULL);
    pthread_cond_init(&pipeline->work, NULL);
    queue_init(&pipeline->copying);
    queue_init(&pipeline->filled);
    queue_init(&pipeline->again);
    size_ring(pipeline);
    device->cuda.cuCtxPushCurrent_v2(device->context);
    error = find_memory(pipeline);
    if (!error) {
        make_stream(pipeline);
        make_slots(pipeline);
        error = start_copier(pipeline);
    }
    device->cuda.cuCtxPopCurrent_v2(&context);
    if (error) {
        pipeline_free(pipeline);
        return error;
    }
    *out = pipeline;
    return 0;
}

static uint64_t
device_ring_size(const struct pipeline *pipeline)
{
    return DEVICE_SLOTS * (pipeline->window + SLOT_SLACK);
}

static void
free_device_slots(struct pipeline *pipeline)
{
    const struct cuda *cuda = &pipeline->device->cuda;

    if (atomic_load(&pipeline->registered_device))
        pipeline->cufile.cuFileBufDeregister((const void *)(uintptr_t)pipeline->device_ring);
    if (pipeline->device_memory)
        cuda->cuMemFree_v2(pipeline->device_memory);
    pipeline->device_memory = 0;
    for (unsigned i = 0; i < DEVICE_SLOTS; i++) {
        if (pipeline->device_slots[i].event)
            cuda->cuEventDestroy_v2(pipeline->device_slots[i].event);
        pipeline->device_slots[i].event = NULL;
    }
}

static void
free_memory(struct pipeline *pipeline)
{
    const struct cuda *cuda = &pipeline->device->cuda;

    free_device_slots(pipeline);
    for (unsigned i = 0; i < pipeline->slot_count + SCRATCHES; i++)
        if (pipeline->slots[i].event)
            cuda->cuEventDestroy_v2(pipeline->slots[i].event);
    if (pipeline->stream)
        cuda->cuStreamDestroy_v2(pipeline->stream);
    if (pipeline->registered)
        cuda->cuMemHostUnregister(pipeline->memory);
    if (pipeline->allocated)
        cuda->cuMemFreeHost(pipeline->allocated);
    else if (pipeline->memory)
        munmap(pipeline->memory, pipeline->memory_size);
}

void
pipeline_free(struct pipeline *pipeline)
{
    CUcontext context;

    if (!pipeline)
        return;
    pthread_mutex_lock(&pipeline->lock);
    pipeline->stopping = true;
    pthread_cond_signal(&pipeline->work);
    pthread_mutex_unlock(&pipeline->lock);
    if (pipeline->has_copier)
        pthread_join(pipeline->copier, NULL);
    workers_free(pipeline->readers);
    pipeline->device->cuda.cuCtxPushCurrent_v2(pipeline->device->context);
    free_memory(pipeline);
    pipeline->device->cuda.cuCtxPopCurrent_v2(&context);
    pthread_cond_destroy(&pipeline->work);
    pthread_mutex_destroy(&pipeline->lock);
    free(pipeline);
}

void
pipeline_memory(const struct pipeline *pipeline, uint64_t *host, uint64_t *device)
{
    *host = pipeline->memory_size;
    *device = atomic_load(&pipeline->registered_device) ? device_ring_size(pipeline) : 0;
}

static errint_t
make_device_slots(struct pipeline *pipeline, struct reason *reason)
{
    const struct cuda *cuda = &pipeline->device->cuda;
    uint64_t size = device_ring_size(pipeline);
    errint_t error =
        CUDA_CALL(cuda, reason, cuMemAlloc_v2, &pipeline->device_memory, size + DEVICE_ALIGNMENT);

    if (error) {
        pipeline->device_memory = 0;
        return error;
    }
    pipeline->device_ring =
        (pipeline->device_memory + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    for (unsigned i = 0; i < DEVICE_SLOTS && !error; i++) {
        struct slot *slot = &pipeline->device_slots[i];

        slot->pipeline = pipeline;
        slot->of_device = true;
        slot->job.run = fill_by_cufile;
        slot->memory = pipeline->device_ring + i * (pipeline->window + SLOT_SLACK);
        error = CUDA_CALL(cuda, reason, cuEventCreate, &slot->event,
                          CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    }
    if (!error)
        error = cufile_check(pipeline->cufile.cuFileBufRegister(
                                 (const void *)(uintptr_t)pipeline->device_ring, size, 0),
                             "cuFileBufRegister", reason);
    return error;
}

static errint_t
start_cufile(struct pipeline *pipeline, struct reason *reason)
{
    errint_t error = cufile_load(&pipeline->cufile, reason);

    if (!error && !ladder_may(&pipeline->device->ladder, LADDER_ALL, RUNG_RING))
        error = reason_set(reason, -EIO, "Device", "there is no stream to copy by");
    if (!error && workers_new(DEVICE_SLOTS, &pipeline->readers) < 0)
        error = reason_set(reason, -EAGAIN, "Device", "there are no threads for it");
    if (!error)
        error = make_device_slots(pipeline, reason);
    if (error) {
        free_device_slots(pipeline);
        return error;
    }
    atomic_store(&pipeline->registered_device, true);
    pthread_mutex_lock(&pipeline->lock);
    for (unsigned i = 0; i < DEVICE_SLOTS; i++)
        put_free(&pipeline->device_slots[i]);
    pthread_mutex_unlock(&pipeline->lock);
    return 0;
}

errint_t
pipeline_open_file(struct pipeline *pipeline, struct tensor_source *source, struct reason *reason)
{
    struct cufile_file *file;
    errint_t error;

    if (!pipeline->tried_cufile) {
        pipeline->tried_cufile = true;
        error = start_cufile(pipeline, reason);
        if (error) {
            ladder_give_up(&pipeline->device->ladder, LADDER_ALL, RUNG_CUFILE, reason->text);
            return error;
        }
    }
    if (atomic_load(&source->cufile))
        return 0;
    error = cufile_open(&pipeline->cufile, source->list->extents[0].backing, &file, reason);
    if (!error)
        atomic_store(&source->cufile, file);
    return error;
}

void
pipeline_read(struct pipeline *pipeline, struct fstfs_read *read)
{
    uint64_t windows = read->total / pipeline->window + 1;

    read->windows.size = pipeline->window;
    pthread_mutex_lock(&pipeline->lock);
    list_read(pipeline, read);
    call_fillers(pipeline, windows < CLIENT_WORKERS ? (unsigned)windows : CLIENT_WORKERS);
    pthread_mutex_unlock(&pipeline->lock);
}
