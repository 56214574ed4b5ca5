/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: the share that the reads of one file system have of a resource.
 *
 * Reads of a file system that does not answer never release what they hold. So memory, descriptors,
 * rings and workers queue reads by file system, in lanes, and limit each lane to a share that
 * leaves some of the resource to the others. A lane that holds nothing may always take one.
 *
 * The lanes of a resource are in a list (base/list.h), which the lock of the resource guards. The
 * first lane is served next.
 */
#ifndef FSTFS_IO_LANES_H
#define FSTFS_IO_LANES_H

#include "base/list.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* The first member of the resource's own struct. */
struct lane {
    struct list node; /* first */
    uint64_t key; /* of a file: backing_lane(); of a request: of its files */
    atomic_uint users; /* queued in the lane or held by it; 0: it may be reused for another key */
};

/* Returns the lane of a key. A new lane has `size` bytes, which are zero after the struct lane; a
 * reused one keeps its bytes. NULL: out of memory. */
struct lane *lanes_find(struct list *lanes, uint64_t key, size_t size);
void lanes_free(struct list *lanes);

/* The number that a lane may hold while other lanes hold `others`: `limit` if they hold none, else
 * half of what they leave of 2 * limit, and at least 1. */
static inline unsigned
lane_share(unsigned limit, unsigned others)
{
    unsigned share = others < 2 * limit ? (2 * limit - others) / 2 : 0;

    return share > 0 ? share : 1;
}

#endif
