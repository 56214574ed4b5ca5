/* SPDX-License-Identifier: Apache-2.0 */
/* A map from inodes to numbers, which recognizes a file or directory by any of its paths. */
#ifndef FSTFS_COMMON_INODE_MAP_H
#define FSTFS_COMMON_INODE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct inode_map_entry {
    uint64_t device, inode;
    size_t number;
};

/* All zero is an empty map. One thread at a time. */
struct inode_map {
    void *root; /* of tsearch(3), with an inode_map_entry at each node */
    size_t count;
};

/* Adds the inode with `number` (above 0), unless it is in the map. Returns its number in the map;
 * 0: out of memory. */
size_t inode_map_add(struct inode_map *map, uint64_t device, uint64_t inode, size_t number);

/* Returns the inode's number; 0 if it is not in the map. */
size_t inode_map_find(const struct inode_map *map, uint64_t device, uint64_t inode);

void inode_map_free(struct inode_map *map);

#endif
