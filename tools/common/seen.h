/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files and directories were met already, whatever path led to them.
 */
#ifndef FSTFS_COMMON_SEEN_H
#define FSTFS_COMMON_SEEN_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct seen_entry {
    uint64_t device, inode;
    size_t number; /* what the caller gave it */
};

/* All zero is an empty one. One thread at a time. */
struct seen {
    struct seen_entry *entries; /* a hash table, at most half full; number 0: free */
    size_t count, room;
};

/* The number that was given to it when it was met first: `number` (over 0), if that
 * is now. 0: out of memory. */
size_t seen_add(struct seen *seen, uint64_t device, uint64_t inode, size_t number);
/* The number that was given to it; 0: it was not met. */
size_t seen_find(const struct seen *seen, uint64_t device, uint64_t inode);
void seen_free(struct seen *seen);

#endif
