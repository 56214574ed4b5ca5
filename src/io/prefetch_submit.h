/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns what the prefetch heuristics (io/prefetch.h) decide into background reads.
 */
#ifndef FSTFS_IO_PREFETCH_SUBMIT_H
#define FSTFS_IO_PREFETCH_SUBMIT_H

#include "base/extent.h"
#include "io/prefetch.h"

#include <stdbool.h>
#include <stdint.h>

struct io;
struct request;

/* Shows a request, whose chunks are pinned, to the heuristics of its files. Returns whether to
 * prefetch; *plan says what. With the lock of the cache held. */
bool prefetch_decide(struct io *io, const struct request *request, struct prefetch_plan *plan);

/* Submits background reads of what `plan` says, for a request that ended at byte `offset` of the
 * list. Uses at most three quarters of the memory, and none while requests wait for it. Without
 * the lock. */
void prefetch_submit(struct io *io, const struct extent_list *list, uint64_t offset,
                     const struct prefetch_plan *plan);

#endif
