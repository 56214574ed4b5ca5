/* SPDX-License-Identifier: Apache-2.0 */
/* Gives inodes numbers, from 1, to recognize a file or directory by any of its paths. */
#ifndef FSTFS_COMMON_INODE_MAP_H
#define FSTFS_COMMON_INODE_MAP_H

#include "base/extent.h"

/* All zero is an empty map. One thread at a time. */
struct inode_map {
    void *root; /* of tsearch(3), with a struct inode_map_entry at each node */
    size_t count;
};

/* Returns the number of the inode. An inode that is not in the map is added, with the number
 * map->count + 1. 0: out of memory. */
size_t inode_map_add(struct inode_map *map, const struct file_identity *identity);

/* Returns the inode's number; 0 if it is not in the map. */
size_t inode_map_find(const struct inode_map *map, const struct file_identity *identity);

void inode_map_free(struct inode_map *map);

#endif
