/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fallback chain of a device: the backends that can read into it, in order of preference.
 *
 * A backend that fails is disabled for that device and that storage (a file system, by st_dev), or
 * for all storage of the device if the failure does not depend on it. The next backend is used, and
 * the first reason is kept for the status. Any thread may call.
 */
#ifndef FSTFS_CLIENT_GPU_FALLBACK_H
#define FSTFS_CLIENT_GPU_FALLBACK_H

#include "base/buffer.h"
#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A storage number that means all storage. */
#define ALL_STORAGE UINT64_MAX

/* In order of preference; documented at fstfs_status() in fstfs.h. */
enum gpu_backend { GPU_UNIFIED, GPU_CUFILE, GPU_RING, GPU_PAGEABLE, GPU_BACKENDS };

/* A file system from which bytes were read into the device. */
struct fallback_storage {
    struct fallback_storage *next;
    uint64_t number; /* st_dev */
    char path[256]; /* of a file on it */
    enum gpu_backend used; /* by the last read; GPU_BACKENDS: none yet */
    struct reason why_not[GPU_BACKENDS]; /* for this storage; text "": enabled */
};

struct fallback_chain {
    pthread_mutex_t lock; /* guards all below */
    struct fallback_storage *storages;
    struct reason why_not[GPU_BACKENDS]; /* for all storage; text "": enabled */
};

void fallback_init(struct fallback_chain *chain);
void fallback_free(struct fallback_chain *chain);

/* Must be called first for a storage number. `path` is a file on the storage. False: out of
 * memory. */
bool fallback_add_storage(struct fallback_chain *chain, uint64_t number, const char *path);

bool fallback_is_enabled(struct fallback_chain *chain, uint64_t number, enum gpu_backend backend);

void fallback_disable(struct fallback_chain *chain, uint64_t number, enum gpu_backend backend,
                      const char *why);

/* Records that the backend was used, for the status. */
void fallback_used(struct fallback_chain *chain, uint64_t number, enum gpu_backend backend);

/* Appends a JSON list of the storages. */
void fallback_status(struct fallback_chain *chain, struct buffer *out);

#endif
