/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a read: its plan, progress and result. src/client/host_read.c reads into host
 * memory, src/client/gpu/pipeline.c into a device.
 */
#ifndef FSTFS_CLIENT_READ_H
#define FSTFS_CLIENT_READ_H

#include "base/error.h"
#include "base/list.h"
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
    uint64_t reported; /* bytes; guarded by progress_lock */
    struct read_plan plan; /* guarded by the batch, or by the pipeline */
    bool is_host; /* into host memory; false: by the pipeline of options.device */
    struct batch *batch; /* of a read into host memory */
    struct { /* guarded by the pipeline */
        struct list node; /* in the pipeline's list of reads with spans left */
        struct span span; /* the next one, while it is in the list */
        unsigned in_flight; /* spans */
    } pipeline;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended;
    bool has_ended;
    errint_t result;
    char text[512]; /* of the first error */
};

/* Has room for `count` plan items. NULL: out of memory. */
struct fstfs_read *read_new(struct fstfs *fstfs, size_t count,
                            const struct fstfs_read_options *options);
void read_free(struct fstfs_read *read); /* it has ended, or was never started */

/* The functions below may be called from any thread, without a lock held. */

/* Adds to the number of bytes that have reached the caller's memory and calls progress(). `own`:
 * they bypassed the engine's buffers, so the engine has not counted them. */
void read_add_done(struct fstfs_read *read, uint64_t bytes, bool own);

/* Sets the result, unless the read has already failed. The message is `text`, or if that is NULL
 * the error of the file at `path`. */
void read_fail(struct fstfs_read *read, errint_t error, const char *path, const char *text);

/* Whether it has failed or was cancelled. Sets the result of a cancelled read. */
bool read_is_over(struct fstfs_read *read);

/* Ends the read, which must have nothing in flight. fstfs_wait() returns, so the read may already
 * be freed when this function returns. */
void read_end(struct fstfs_read *read);

#endif
