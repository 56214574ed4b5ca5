/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits background reads for the plans of the prefetch heuristics (io/prefetch.h).
 */
#ifndef FSTFS_IO_PREFETCH_SUBMIT_H
#define FSTFS_IO_PREFETCH_SUBMIT_H

#include "base/extent.h"
#include "io/prefetch.h"

#include <stdbool.h>
#include <stdint.h>

struct io;
struct request;

/* Passes a request, whose chunks are pinned, to the heuristics of its files. Fills in *plan and
 * returns true if there is something to prefetch. With the lock of the cache held. */
bool prefetch_decide(struct io *io, const struct request *request, struct prefetch_plan *plan);

/* Submits the background reads of `plan`, made for a request that ended at byte `offset` of the
 * list. Uses at most three quarters of the memory budget, and none while requests of the lane are
 * queued for memory. Without the lock. */
void prefetch_submit(struct io *io, const struct extent_list *list, uint64_t offset,
                     const struct prefetch_plan *plan);

#endif
