/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways by which a device is read into, best first, and what became of each.
 *
 * A way that fails is given up for that device and that storage (a file system, by
 * st_dev), or for the device where it does not depend on the storage. The first
 * reason is kept, and the next way is taken: that a way fails never fails a read.
 * Any thread; has a lock of its own.
 */
#ifndef FSTFS_CLIENT_GPU_LADDER_H
#define FSTFS_CLIENT_GPU_LADDER_H

#include "base/buffer.h"
#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* For all storages there are. */
#define LADDER_ALL UINT64_MAX

enum rung { RUNG_UNIFIED, RUNG_CUFILE, RUNG_RING, RUNG_PAGEABLE, RUNGS };

/* A file system that the device was read into from. */
struct ladder_storage {
    struct ladder_storage *next;
    uint64_t number; /* st_dev */
    char path[256]; /* of a file on it */
    enum rung used; /* last; RUNGS: none yet */
    struct reason why_not[RUNGS]; /* for this storage alone; text "": nothing is known */
};

struct ladder {
    pthread_mutex_t lock; /* guards all below */
    struct ladder_storage *storages;
    struct reason why_not[RUNGS]; /* for every storage */
};

void ladder_init(struct ladder *ladder);
void ladder_free(struct ladder *ladder);

/* Must know a storage before the rest is called with its number; `path` lies on it.
 * False: out of memory. */
bool ladder_add(struct ladder *ladder, uint64_t number, const char *path);

/* Whether the way is still open. */
bool ladder_may(struct ladder *ladder, uint64_t number, enum rung rung);

/* Gives the way up. */
void ladder_give_up(struct ladder *ladder, uint64_t number, enum rung rung, const char *why);

void ladder_used(struct ladder *ladder, uint64_t number, enum rung rung);

/* Appends a JSON list of the storages. */
void ladder_status(struct ladder *ladder, struct buffer *out);

#endif
