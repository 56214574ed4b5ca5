/* SPDX-License-Identifier: Apache-2.0 */
/* --keep: locks the wanted pages of a selection in memory. One thread. */
#ifndef FSTFS_CACHE_HOLD_H
#define FSTFS_CACHE_HOLD_H

#include "base/error.h"
#include "selection.h"

/* A locked mapping of a range. */
struct hold_mapping {
    void *at;
    size_t length;
    size_t file;
};

struct hold {
    struct selection *selection;
    struct hold_mapping *mappings;
    size_t count;
};

/* Maps the ranges and locks them with MLOCK_ONFAULT, without reading them, so that a limit of
 * locked memory that is too low is detected before anything is read. On an error `reason` is set.
 * Call hold_free() in any case. */
errint_t hold_make(struct hold *hold, struct selection *selection, struct reason *reason);

/* Locks all pages, and reads those that are not cached. Prints errors of files. */
void hold_fill(struct hold *hold);

/* Waits for a signal. Checks regularly whether the pages are still cached, and reads lost ones
 * again. Prints once if that fails, for example because a file was changed. */
void hold_wait(struct hold *hold);

void hold_free(struct hold *hold);

#endif
