/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a read: its plan, progress and result. src/client/host_read.c brings the bytes to
 * host memory, src/client/gpu/pipeline.c to a device.
 */
#ifndef FSTFS_CLIENT_READ_H
#define FSTFS_CLIENT_READ_H

#include "base/error.h"
#include "client/library.h"
#include "client/plan.h"
#include "io/batch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fstfs_read {
    struct fstfs *fstfs;
    struct fstfs_read_options options;
    uint64_t total; /* bytes */
    atomic_uint_fast64_t done; /* bytes copied */
    atomic_bool is_cancelled;
    pthread_mutex_t progress_lock; /* held while progress() is called */
    uint64_t reported; /* bytes; guarded by it */
    struct read_plan plan; /* guarded by the batch, or by the pipeline */
    bool is_host; /* into host memory; else by the pipeline of options.device */
    struct batch *batch; /* of a read into host memory */
    struct { /* guarded by the pipeline */
        struct fstfs_read *next; /* of those that have spans left */
        struct span span; /* the next one, while it is listed */
        bool is_listed;
        unsigned in_flight; /* spans */
    } pipeline;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended;
    bool has_ended;
    errint_t result;
    char text[512]; /* of the first error */
};

/* NULL: out of memory. Room for `count` items. */
struct fstfs_read *read_new(struct fstfs *fstfs, size_t count,
                            const struct fstfs_read_options *options);
void read_free(struct fstfs_read *read); /* it has ended, or was never started */

/* Without a lock held, from any thread: */

/* Counts bytes that are where they belong and calls progress(). `own` if they did not come through
 * the engine's buffers, which counts them otherwise. */
void read_add_done(struct fstfs_read *read, uint64_t bytes, bool own);

/* Sets the result, unless the read has failed already: an error of the file at `path` or, if `text`
 * is not NULL, one that it describes. */
void read_fail(struct fstfs_read *read, errint_t error, const char *path, const char *text);

/* Whether it has failed, or was cancelled, which then becomes its result. */
bool read_is_over(struct fstfs_read *read);

/* Nothing is in flight any more. The read may have been freed when this returns. */
void read_end(struct fstfs_read *read);

#endif
