/* SPDX-License-Identifier: Apache-2.0 */
#include "common/inode_map.h"

#include <search.h>
#include <stdlib.h>

struct inode_map_entry {
    uint64_t device, inode;
    size_t number;
};

static int
compare_inodes(const void *a, const void *b)
{
    const struct inode_map_entry *x = a, *y = b;

    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

size_t
inode_map_add(struct inode_map *map, const struct file_identity *identity)
{
    struct inode_map_entry *added = malloc(sizeof(*added)), **found;

    if (!added)
        return 0;
    *added = (struct inode_map_entry){identity->device, identity->inode, map->count + 1};
    found = tsearch(added, &map->root, compare_inodes);
    if (!found || *found != added)
        free(added);
    else
        map->count++;
    return found ? (*found)->number : 0;
}

size_t
inode_map_find(const struct inode_map *map, const struct file_identity *identity)
{
    const struct inode_map_entry key = {identity->device, identity->inode, 0};
    struct inode_map_entry *const *found = tfind(&key, &map->root, compare_inodes);

    return found ? (*found)->number : 0;
}

void
inode_map_free(struct inode_map *map)
{
    tdestroy(map->root, free);
    *map = (struct inode_map){0};
}
