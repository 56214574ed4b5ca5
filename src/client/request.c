/* SPDX-License-Identifier: Apache-2.0 */
/* fstfs_read(), fstfs_start() and fstfs_wait(): validate and plan requests, then read into host
 * memory or a device. */
#include "base/clock.h"
#include "base/thread.h"
#include "client/error.h"
#include "client/gpu/devices.h"
#include "client/gpu/pipeline.h"
#include "client/host_read.h"
#include "client/read.h"

#include <errno.h>

static errint_t
check_request(const struct fstfs_checkpoint *checkpoint, const struct fstfs_request *request,
              size_t index)
{
    if (checkpoint_has(checkpoint, request->tensor))
        return 0;
    return fail(-EINVAL, "request %zu: %s", index,
                request->tensor ? "its tensor belongs to another checkpoint" : "it has no tensor");
}

/* Adds an item to the plan for each request that is not empty. */
static errint_t
plan_requests(struct fstfs_read *read, const struct fstfs_checkpoint *checkpoint,
              const struct fstfs_request *requests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct fstfs_tensor *tensor = requests[i].tensor;
        struct plan_item *item = &read->plan.items[read->plan.count];
        struct strided_slice *slice = &item->slice;
        errint_t error = check_request(checkpoint, &requests[i], i);

        if (!error)
            error = strided_slice_make(&requests[i], slice);
        if (error)
            return error;
        if (slice->size == 0) {
            strided_slice_free(slice);
            continue;
        }
        read->plan.count++;
        if (!requests[i].to && !read->options.allocate)
            return fail(-EINVAL, "request %zu: no memory for %s, and no allocate()", i,
                        tensor->name);
        item->source = &checkpoint->sources[((const struct client_tensor *)tensor)->source];
        item->offset = tensor->offset;
        item->end =
            tensor->offset + strided_slice_range(slice, slice->range_count - 1) + slice->range;
        item->request = i;
        read->total += slice->size;
    }
    return 0;
}

static errint_t
allocate_requests(struct fstfs_read *read, struct fstfs_request *requests)
{
    for (size_t i = 0; i < read->plan.count; i++) {
        struct plan_item *item = &read->plan.items[i];
        struct fstfs_request *request = &requests[item->request];

        if (!request->to)
            request->to =
                read->options.allocate(read->options.arg, item->request, item->slice.size);
        if (!request->to)
            return fail(-ENOMEM, "request %zu: allocate() failed for %s (%llu bytes)",
                        item->request, request->tensor->name, (unsigned long long)item->slice.size);
        item->to = request->to;
    }
    return 0;
}

static errint_t
read_prepare(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
             const struct fstfs_read_options *options, struct fstfs_read **out)
{
    errint_t error = options ? CHECK_RESERVED(options, fstfs_read_options) : 0;
    struct fstfs_read *read;

    if (error)
        return error;
    read = read_new(checkpoint->fstfs, count, options);
    if (!read)
        return fail_no_memory();
    error = plan_requests(read, checkpoint, requests, count);
    if (!error)
        error = allocate_requests(read, requests);
    if (!error)
        plan_sort(&read->plan);
    if (!error && read->options.device)
        error = device_prepare(read->options.device, read, &read->is_host);
    if (!error && read->is_host && host_read_prepare(read))
        error = fail_no_memory();
    if (error) {
        read_free(read);
        return error;
    }
    *out = read;
    return 0;
}

static void
read_start(struct fstfs_read *read, bool here)
{
    if (read->is_host)
        host_read_start(read, here);
    else
        pipeline_read(read->options.device->pipeline, read);
}

int
fstfs_start(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
            const struct fstfs_read_options *options, struct fstfs_read **out)
{
    struct fstfs_read *read = NULL;
    errint_t error = read_prepare(checkpoint, requests, count, options, &read);

    if (error || !read)
        return error;
    *out = read;
    read_start(read, false);
    return 0;
}

int
fstfs_read(struct fstfs_checkpoint *checkpoint, struct fstfs_request *requests, size_t count,
           const struct fstfs_read_options *options)
{
    struct fstfs_read *read = NULL;
    int result = read_prepare(checkpoint, requests, count, options, &read);

    if (result < 0 || !read)
        return result;
    read_start(read, true);
    result = fstfs_wait(read, -1);
    fstfs_read_free(read);
    return result;
}

int
fstfs_wait(struct fstfs_read *read, int milliseconds)
{
    uint64_t deadline = monotonic_ns() + (milliseconds > 0 ? (uint64_t)milliseconds * 1000000 : 0);
    bool is_late = false;
    errint_t result;

    pthread_mutex_lock(&read->lock);
    while (!read->has_ended && !is_late) {
        if (milliseconds < 0)
            pthread_cond_wait(&read->ended, &read->lock);
        else
            is_late = !condition_wait(&read->ended, &read->lock, deadline);
    }
    result = read->has_ended ? read->result : -EINPROGRESS;
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
    atomic_store(&read->is_cancelled, true);
}

void
fstfs_read_free(struct fstfs_read *read)
{
    if (!read || library_is_inherited(read->fstfs))
        return;
    fstfs_cancel(read);
    pthread_mutex_lock(&read->lock);
    while (!read->has_ended)
        pthread_cond_wait(&read->ended, &read->lock);
    pthread_mutex_unlock(&read->lock);
    read_free(read);
}

int
fstfs_request_size(const struct fstfs_request *request, uint64_t *size)
{
    struct strided_slice slice;
    errint_t error;

    if (!request->tensor)
        return fail(-EINVAL, "the request has no tensor");
    error = strided_slice_make(request, &slice);
    if (error)
        return error;
    *size = slice.size;
    strided_slice_free(&slice);
    return 0;
}
