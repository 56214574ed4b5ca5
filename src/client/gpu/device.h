/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of one fstfs: each with its context, what it can, and the ladder of
 * ways by which it is read into.
 */
#ifndef FSTFS_CLIENT_GPU_DEVICE_H
#define FSTFS_CLIENT_GPU_DEVICE_H

#include "base/buffer.h"
#include "client/gpu/cuda.h"
#include "client/gpu/ladder.h"
#include "client/private.h"

#include <pthread.h>
#include <stdbool.h>

struct pipeline;

struct fstfs_device {
    struct fstfs_device *next;
    struct fstfs *fstfs;
    struct cuda cuda;
    int ordinal; /* N of "cuda:N" */
    CUdevice number;
    CUcontext context; /* the primary one, retained */
    bool reads_host_pages; /* through the host's page tables, and has no memory of its own */
    struct ladder ladder;
    pthread_mutex_t lock; /* held while the pipeline is made */
    _Atomic(struct pipeline *) pipeline; /* NULL: nothing was read that needs it; stays once made */
};

/*
 * The memory of each item of the read is found and is the device's: -EINVAL if not. Makes
 * what the read needs. `host` becomes true where all memory is the host's as well, and
 * the read one like any other. Errors are said by fail().
 */
errint_t device_prepare(struct fstfs_device *device, struct fstfs_read *read, bool *host);

/* The member "devices" of status. Waits for no driver. */
void devices_status(struct fstfs *fstfs, struct buffer *out);

/* Nothing may be under way, and no worker at work. */
void devices_free(struct fstfs *fstfs);

#endif
