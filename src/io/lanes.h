/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: what a resource of the engine is to the reads of one file system.
 *
 * Reads of a file system that does not answer keep what they hold. So memory, rings and workers
 * queue reads for each file system, in a lane, and a lane gets a share of the resource that always
 * leaves some for the others. A lane that holds nothing may take one, whatever the others hold.
 *
 * Lanes are a circular list, guarded by the lock of their owner.
 */
#ifndef FSTFS_IO_LANES_H
#define FSTFS_IO_LANES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* The first member of its owner's struct. */
struct lane {
    struct lane *next; /* in a circle */
    uint64_t key; /* st_dev */
    atomic_uint users; /* what is queued in the lane or held by it; 0: it may get another key */
};

/* The lane of a key; a new one has `size` bytes, all zero otherwise. *last is the lane that was
 * served last, NULL at first. NULL: out of memory. */
struct lane *lanes_find(struct lane **last, uint64_t key, size_t size);
void lanes_free(struct lane **last);

/* How many of a resource a lane may hold that is used by `others` already: `limit` where there are
 * none, half of what is left of twice the limit where there are, but at least 1. */
static inline unsigned
lane_share(unsigned limit, unsigned others)
{
    unsigned share = others < 2 * limit ? (2 * limit - others) / 2 : 0;

    return share > 0 ? share : 1;
}

#endif
