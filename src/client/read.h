/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read under way, as those see it who bring its bytes: src/client/read.c to host
 * memory, src/client/gpu/pipeline.c to a device.
 */
#ifndef FSTFS_CLIENT_READ_H
#define FSTFS_CLIENT_READ_H

#include "client/private.h"
#include "client/windows.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The call of a worker to pump. */
struct call {
    struct job job;
    struct fstfs_read *read;
    bool waiting; /* for the worker */
};

struct fstfs_read {
    struct fstfs *fstfs;
    struct fstfs_read_options options;
    uint64_t total;
    atomic_uint_fast64_t done; /* bytes copied */
    atomic_bool cancelled;
    pthread_mutex_t telling; /* held over `progress` */
    uint64_t told; /* guarded by it */
    /* Of a read into host memory guarded by `lock`, else by the pipeline. */
    struct windows windows;
    bool host; /* which of the two */
    struct {
        struct fstfs_read *next; /* of those that have windows left */
        struct window window; /* the next one... */
        bool has_window; /* ...if it has been made */
        bool listed;
        unsigned under_way; /* windows */
    } pipeline;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed; /* ended */
    unsigned under_way; /* windows that the engine has */
    uint64_t bytes; /* of those */
    uint64_t most_bytes; /* of those, as it is now */
    struct call calls[CLIENT_WORKERS];
    unsigned calling; /* of those that wait */
    unsigned pumping; /* threads */
    bool ended;
    errint_t result;
    char text[512]; /* of the first error */
};

/* More bytes have come to a device: counts and tells. No lock held. */
void read_came(struct fstfs_read *read, uint64_t bytes);

/* It fails, if it has not yet, with an error of the file, or with one that `text`
 * (not NULL) says. No lock held; any thread. */
void read_fails(struct fstfs_read *read, errint_t error, const char *path, const char *text);

/* Whether it need not go on: it was cancelled, and then fails with that, or it has
 * failed. No lock held. */
bool read_is_over(struct fstfs_read *read);

/* Nothing is under way any more. The read may be gone when this returns. No lock held. */
void read_ends(struct fstfs_read *read);

#endif
