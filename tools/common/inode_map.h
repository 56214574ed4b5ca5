/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash map from inodes to numbers, to recognize a file or directory whatever path leads to it.
 */
#ifndef FSTFS_COMMON_INODE_MAP_H
#define FSTFS_COMMON_INODE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct inode_map_entry {
    uint64_t device, inode;
    size_t number; /* 0: a free slot */
};

/* All zero is an empty map. One thread at a time. */
struct inode_map {
    struct inode_map_entry *entries; /* at most half full */
    size_t count, capacity; /* the capacity is 0 or a power of two */
};

/* Returns the inode's number. A new inode gets `number` (above 0); others keep the number they were
 * first added with. 0: out of memory. */
size_t inode_map_add(struct inode_map *map, uint64_t device, uint64_t inode, size_t number);

/* Returns the inode's number; 0 if it was not added. */
size_t inode_map_find(const struct inode_map *map, uint64_t device, uint64_t inode);

void inode_map_free(struct inode_map *map);

#endif
