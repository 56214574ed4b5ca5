/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read of many tensors: what is wanted, sorted by where it lies, is cut into
 * windows of about a megabyte, across tensors; so many of them are read at once: to
 * where their bytes go where that may be (window_memory()); else the engine reads them
 * into its buffers, and they are copied from there.
 *
 * `lock` guards the cursor and how the read stands. It is never held over io_read(),
 * a copy or a callback. Any thread may pump: make windows and give them to the engine
 * until enough are under way. What lies in the page cache is copied by the thread that
 * asks for it, so several do: those of fstfs->workers and, where it would only wait, the
 * caller's. io_read() may answer at once, and the answer pumps: never within itself,
 * which would go ever deeper.
 */
#include "client/read.h"

#include "base/histogram.h"
#include "base/thread.h"
#include "client/gpu/device.h"
#include "client/gpu/pipeline.h"
#include "io/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW (1024 * 1024) /* larger reads bring no more from any storage */
/* Bytes under way at first: few, for what is copied soon is still in the processor's
 * cache. Each window that takes long asks for one more. */
#define FIRST_BYTES (16 * WINDOW)
#define MOST_BYTES (64 * WINDOW)
#define MOST_WINDOWS 256
#define LONG_NS 8000000
#define TURN 32 /* windows that a worker gives to the engine before others have their turn */
#define LEAST_SHARED (4 * WINDOW) /* less than that is not worth waking another thread */

/* A window that the engine has, or its storage. */
struct given {
    struct storage_read storage;
    struct fstfs_read *read;
    struct window window;
    uint64_t at; /* when, by monotonic_ns() */
};

/* ---- how it goes on ---- */

static void
set_result(struct fstfs_read *read, errint_t result, const char *path)
{
    if (read->result < 0 || result == 0)
        return;
    read->result = result;
    if (result == -ECANCELED)
        snprintf(read->text, sizeof(read->text), "the read was cancelled");
    else if (result == -ESTALE)
        snprintf(read->text, sizeof(read->text),
                 "%s: changed, replaced or removed since it was opened", path);
    else
        snprintf(read->text, sizeof(read->text), "%s: %s", path, strerror(-result));
}

/* Without the lock. At the end it waits for its turn. */
static void
tell_progress(struct fstfs_read *read, bool at_end)
{
    uint64_t done;

    if (!read->options.progress)
        return;
    if (at_end)
        pthread_mutex_lock(&read->telling);
    else if (pthread_mutex_trylock(&read->telling) != 0)
        return;
    done = atomic_load(&read->done);
    if ((done > read->told || at_end) &&
        read->options.progress(read->options.arg, done, read->total) != 0)
        atomic_store(&read->cancelled, true);
    read->told = done;
    pthread_mutex_unlock(&read->telling);
}

void
read_came(struct fstfs_read *read, uint64_t bytes)
{
    atomic_fetch_add(&read->fstfs->own_bytes, bytes);
    atomic_fetch_add(&read->done, bytes);
    tell_progress(read, false);
}

void
read_fails(struct fstfs_read *read, errint_t error, const char *path, const char *text)
{
    pthread_mutex_lock(&read->lock);
    if (text && read->result == 0) {
        read->result = error;
        snprintf(read->text, sizeof(read->text), "%s", text);
    }
    set_result(read, error, path);
    pthread_mutex_unlock(&read->lock);
}

bool
read_is_over(struct fstfs_read *read)
{
    bool over;

    pthread_mutex_lock(&read->lock);
    if (atomic_load(&read->cancelled))
        set_result(read, -ECANCELED, "");
    over = read->result < 0;
    pthread_mutex_unlock(&read->lock);
    return over;
}

void
read_ends(struct fstfs_read *read)
{
    tell_progress(read, true);
    pthread_mutex_lock(&read->lock);
    read->ended = true;
    pthread_cond_broadcast(&read->changed);
    pthread_mutex_unlock(&read->lock);
}

static void window_copied(void *arg, errint_t result, const struct iovec *vectors, int count);
static void window_in_memory(struct storage_read *storage, errint_t result);

static void
read_by_engine(struct given *given)
{
    const struct window *window = &given->window;

    io_read(given->read->fstfs->io, window->source->list, window->start,
            (size_t)(window->end - window->start), window_copied, given);
}

static void
read_by_storage(struct given *given, char *to)
{
    const struct window *window = &given->window;

    given->storage.backing = window->source->list->extents[0].backing;
    given->storage.offset = window->start;
    given->storage.length = given->storage.valid = (size_t)(window->end - window->start);
    given->storage.buffer = to;
    given->storage.urgent = true;
    given->storage.complete = window_in_memory;
    storage_read(io_storage(given->read->fstfs->io), &given->storage);
}

/* With the lock held, and let go for a moment. */
static void
give_window(struct fstfs_read *read, const struct window *window)
{
    struct given *given = calloc(1, sizeof(*given));
    char *to = window_memory(&read->windows, window);

    if (!given) {
        set_result(read, -ENOMEM, window->source->path);
        return;
    }
    given->read = read;
    given->window = *window;
    given->at = monotonic_ns();
    read->under_way++;
    read->bytes += window->end - window->start;
    pthread_mutex_unlock(&read->lock);
    if (to)
        read_by_storage(given, to);
    else
        read_by_engine(given);
    pthread_mutex_lock(&read->lock);
}

/* What this thread pumps. */
static __thread const struct fstfs_read *pumped_here;

static void pump(struct fstfs_read *read);

static void
answer_call(struct job *job)
{
    struct call *call = (struct call *)((char *)job - offsetof(struct call, job));
    struct fstfs_read *read = call->read;

    pthread_mutex_lock(&read->lock);
    call->waiting = false;
    read->calling--;
    pump(read);
}

/* With the lock held: has at most so many workers come; if that many have been called
 * already, they come. */
static void
call_workers(struct fstfs_read *read, unsigned most)
{
    for (unsigned i = 0; i < most && i < read->fstfs->worker_count; i++) {
        struct call *call = &read->calls[i];

        if (call->waiting)
            continue;
        *call = (struct call){.job.run = answer_call, .read = read, .waiting = true};
        read->calling++;
        workers_add(read->fstfs->workers, &call->job, true);
    }
}

/* With the lock held, which it lets go: after that the read may be gone. */
static void
pump(struct fstfs_read *read)
{
    struct window window;
    unsigned turn = TURN;

    if (pumped_here) {
        /* Below in this very stack, or for another read: that must not wait for this. */
        if (pumped_here != read)
            call_workers(read, 1);
        pthread_mutex_unlock(&read->lock);
        return;
    }
    pumped_here = read;
    read->pumping++;
    while (read->result == 0 && read->under_way < MOST_WINDOWS && read->bytes < read->most_bytes) {
        if (atomic_load(&read->cancelled)) {
            set_result(read, -ECANCELED, "");
        } else if (turn-- == 0) {
            call_workers(read, read->fstfs->worker_count);
            break;
        } else if (windows_next(&read->windows, &window)) {
            give_window(read, &window);
        } else {
            break;
        }
    }
    read->pumping--;
    pumped_here = NULL;
    /* When all this is 0 nobody else has the read: nobody will come. */
    if (read->under_way + read->pumping + read->calling == 0) {
        pthread_mutex_unlock(&read->lock);
        read_ends(read);
        return;
    }
    pthread_mutex_unlock(&read->lock);
}

static void
window_done(struct given *given, errint_t result, bool took_long)
{
    struct fstfs_read *read = given->read;
    const struct window *window = &given->window;

    tell_progress(read, false);
    pthread_mutex_lock(&read->lock);
    if (atomic_load(&read->cancelled))
        set_result(read, -ECANCELED, "");
    set_result(read, result, window->source->path);
    read->under_way--;
    read->bytes -= window->end - window->start;
    if (took_long && read->most_bytes < MOST_BYTES)
        read->most_bytes += WINDOW;
    free(given);
    pump(read);
}

static bool
took_long(const struct given *given)
{
    return monotonic_ns() - given->at > LONG_NS;
}

/* From any thread of the engine, or from io_read(). */
static void
window_copied(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    struct given *given = arg;
    struct fstfs_read *read = given->read;
    uint64_t offset = given->window.start;
    bool late = took_long(given);

    for (int i = 0; i < count && !atomic_load(&read->cancelled); i++) {
        atomic_fetch_add(&read->done, window_copy(&read->windows, &given->window, offset,
                                                  vectors[i].iov_base, vectors[i].iov_len));
        offset += vectors[i].iov_len;
    }
    window_done(given, result, late);
}

/* From any thread of the storage, or from storage_read(). */
static void
window_in_memory(struct storage_read *storage, errint_t result)
{
    struct given *given = (struct given *)((char *)storage - offsetof(struct given, storage));

    if (result == -EFAULT) {
        /* Memory that the kernel does not write to itself: of a device, mapped. */
        read_by_engine(given);
        return;
    }
    if (result == 0) {
        atomic_fetch_add(&given->read->fstfs->own_bytes, storage->valid);
        atomic_fetch_add(&given->read->done, storage->valid);
    }
    window_done(given, result, took_long(given));
}

/* ---- its life ---- */

static void
read_destroy(struct fstfs_read *read)
{
    for (size_t i = 0; i < read->windows.count; i++)
        box_free(&read->windows.items[i].box);
    free(read->windows.items);
    pthread_cond_destroy(&read->changed);
    pthread_mutex_destroy(&read->lock);
    pthread_mutex_destroy(&read->telling);
    free(read);
}

static struct fstfs_read *
read_new(size_t count, const struct fstfs_read_options *options)
{
    struct fstfs_read *read = calloc(1, sizeof(*read));

    if (!read)
        return NULL;
    read->windows.items = calloc(count + 1, sizeof(*read->windows.items));
    if (!read->windows.items) {
        free(read);
        return NULL;
    }
    if (options)
        read->options = *options;
    read->host = true;
    read->windows.size = WINDOW;
    read->most_bytes = FIRST_BYTES;
    pthread_mutex_init(&read->telling, NULL);
    pthread_mutex_init(&read->lock, NULL);
    condition_init(&read->changed);
    return read;
}

static errint_t
check_tensor(const struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor,
             size_t place)
{
    if (checkpoint_has(checkpoint, tensor))
        return 0;
    return fail(-EINVAL, "request %zu: %s", place,
                tensor ? "its tensor is of another checkpoint" : "it has no tensor");
}

/* Makes items of the requests that want bytes; `place` keeps the request's. */
static errint_t
make_items(struct fstfs_read *read, const struct fstfs_checkpoint *checkpoint,
           const struct fstfs_request *requests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct fstfs_tensor *tensor = requests[i].tensor;
        struct item *item = &read->windows.items[read->windows.count];
        errint_t error = check_tensor(checkpoint, tensor, i);

        if (!error)
            error = box_make(&requests[i], &item->box);
        if (error)
            return error;
        if (item->box.size == 0) {
            box_free(&item->box);
            continue;
        }
        if (!requests[i].to && !read->options.allocate) {
            box_free(&item->box);
            return fail(-EINVAL, "request %zu: no memory for %s, and nobody to ask for it", i,
                        tensor->name);
        }
        item->source = &checkpoint->sources[((const struct client_tensor *)tensor)->source];
        item->offset = tensor->offset;
        item->end =
            tensor->offset + box_range(&item->box, item->box.range_count - 1) + item->box.range;
        item->next = i; /* for find_memory() */
        read->total += item->box.size;
        read->windows.count++;
    }
    return 0;
}

static errint_t
find_memory(struct fstfs_read *read, struct fstfs_request *requests)
{
    for (size_t i = 0; i < read->windows.count; i++) {
        struct item *item = &read->windows.items[i];
        size_t place = item->next;
        struct fstfs_request *request = &requests[place];

        if (!request->to)
            request->to = read->options.allocate(read->options.arg, place, item->box.size);
        if (!request->to)
            return fail(-ENOMEM, "request %zu: no memory was given for %s (%llu bytes)", place,
                        request->tensor->name, (unsigned long long)item->box.size);
        item->to = request->to;
        item->next = 0;
    }
    return 0;
}

static errint_t
prepare(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
        const struct fstfs_read_options *options, struct fstfs_read **out)
{
    errint_t error = options ? CHECK_RESERVED(options, fstfs_read_options) : 0;
    struct fstfs_read *read;

    if (error)
        return error;
    read = read_new(count, options);
    if (!read)
        return fail(-ENOMEM, "out of memory");
    read->fstfs = checkpoint->fstfs;
    error = make_items(read, checkpoint, requests, count);
    if (!error)
        error = find_memory(read, requests);
    if (!error)
        windows_sort(&read->windows);
    if (!error && read->options.device)
        error = device_prepare(read->options.device, read, &read->host);
    if (error) {
        read_destroy(read);
        return error;
    }
    *out = read;
    return 0;
}

/* How many threads are worth it. */
static unsigned
threads_for(const struct fstfs_read *read)
{
    return read->total < LEAST_SHARED ? 1 : read->fstfs->worker_count;
}

int
fstfs_start(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
            const struct fstfs_read_options *options, struct fstfs_read **out)
{
    struct fstfs_read *read;
    errint_t error = prepare(checkpoint, requests, count, options, &read);

    if (error)
        return error;
    /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): 0 means that read is set */
    *out = read;
    if (!read->host) {
        pipeline_read(read->options.device->pipeline, read);
        return 0;
    }
    pthread_mutex_lock(&read->lock);
    call_workers(read, threads_for(read));
    pthread_mutex_unlock(&read->lock);
    return 0;
}

int
fstfs_wait(struct fstfs_read *read, int milliseconds)
{
    uint64_t until = monotonic_ns() + (milliseconds > 0 ? (uint64_t)milliseconds * 1000000 : 0);
    bool late = false;
    errint_t result;

    pthread_mutex_lock(&read->lock);
    while (!read->ended && !late) {
        if (milliseconds < 0)
            pthread_cond_wait(&read->changed, &read->lock);
        else
            late = !condition_wait(&read->changed, &read->lock, until);
    }
    result = read->ended ? read->result : -EINPROGRESS;
    pthread_mutex_unlock(&read->lock);
    if (result == -EINPROGRESS)
        return fail(result, "the read has not ended");
    return result < 0 ? fail(result, "%s", read->text) : 0;
}

uint64_t
fstfs_done(const struct fstfs_read *read)
{
    return atomic_load(&read->done);
}

void
fstfs_cancel(struct fstfs_read *read)
{
    atomic_store(&read->cancelled, true);
}

void
fstfs_read_free(struct fstfs_read *read)
{
    if (!read)
        return;
    fstfs_cancel(read);
    pthread_mutex_lock(&read->lock);
    while (!read->ended)
        pthread_cond_wait(&read->changed, &read->lock);
    pthread_mutex_unlock(&read->lock);
    read_destroy(read);
}

int
fstfs_read(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
           const struct fstfs_read_options *options)
{
    struct fstfs_read *read;
    int result = prepare(checkpoint, requests, count, options, &read);

    if (result < 0)
        return result;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): 0 means that read is set */
    if (read->host) {
        pthread_mutex_lock(&read->lock);
        call_workers(read, threads_for(read) - 1);
        pump(read);
    } else {
        pipeline_read(read->options.device->pipeline, read);
    }
    result = fstfs_wait(read, -1);
    fstfs_read_free(read);
    return result;
}

int
fstfs_request_size(const struct fstfs_request *request, uint64_t *size)
{
    struct box box;
    errint_t error = box_make(request, &box);

    if (error)
        return error;
    *size = box.size;
    box_free(&box);
    return 0;
}
