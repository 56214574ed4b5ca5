/* SPDX-License-Identifier: Apache-2.0 */
/* A device: its context, its properties, and which backends can read into it. */
#ifndef FSTFS_CLIENT_GPU_DEVICE_H
#define FSTFS_CLIENT_GPU_DEVICE_H

#include "client/gpu/cuda.h"
#include "client/gpu/fallback.h"
#include "client/library.h"

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
    bool reads_host_pages; /* has no memory of its own and uses the host's page tables */
    struct fallback_chain fallback;
    pthread_mutex_t lock; /* held while the pipeline is created */
    _Atomic(struct pipeline *) pipeline; /* NULL until a read needs it; never changes after that */
};

#endif
