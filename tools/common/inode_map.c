/* SPDX-License-Identifier: Apache-2.0 */
#include "common/inode_map.h"

#include "base/hash.h"

#include <stdbool.h>
#include <stdlib.h>

/* Returns the inode's entry, or the free entry to insert it at. */
static struct inode_map_entry *
inode_map_slot(const struct inode_map *map, uint64_t device, uint64_t inode)
{
    size_t at = hash64(&inode, sizeof(inode), device) & (map->capacity - 1);

    while (map->entries[at].number &&
           (map->entries[at].device != device || map->entries[at].inode != inode))
        at = (at + 1) & (map->capacity - 1);
    return &map->entries[at];
}

static bool
inode_map_grow(struct inode_map *map)
{
    struct inode_map larger = {.capacity = map->capacity ? 2 * map->capacity : 64};

    larger.entries = calloc(larger.capacity, sizeof(*larger.entries));
    if (!larger.entries)
        return false;
    for (size_t i = 0; i < map->capacity; i++) {
        const struct inode_map_entry *entry = &map->entries[i];

        if (entry->number)
            *inode_map_slot(&larger, entry->device, entry->inode) = *entry;
    }
    free(map->entries);
    map->entries = larger.entries;
    map->capacity = larger.capacity;
    return true;
}

size_t
inode_map_add(struct inode_map *map, uint64_t device, uint64_t inode, size_t number)
{
    struct inode_map_entry *entry;

    if (2 * (map->count + 1) > map->capacity && !inode_map_grow(map))
        return 0;
    entry = inode_map_slot(map, device, inode);
    if (!entry->number) {
        *entry = (struct inode_map_entry){device, inode, number};
        map->count++;
    }
    return entry->number;
}

size_t
inode_map_find(const struct inode_map *map, uint64_t device, uint64_t inode)
{
    return map->capacity ? inode_map_slot(map, device, inode)->number : 0;
}

void
inode_map_free(struct inode_map *map)
{
    free(map->entries);
    *map = (struct inode_map){0};
}
