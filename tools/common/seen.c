/* SPDX-License-Identifier: Apache-2.0 */
#include "common/seen.h"

#include "base/hash.h"

#include <stdlib.h>

static struct seen_entry *
place_of(struct seen_entry *entries, size_t room, uint64_t device, uint64_t inode)
{
    size_t at = hash64(&inode, sizeof(inode), device) & (room - 1);

    while (entries[at].number && (entries[at].device != device || entries[at].inode != inode))
        at = (at + 1) & (room - 1);
    return &entries[at];
}

static int
grow(struct seen *seen)
{
    size_t room = seen->room ? 2 * seen->room : 64;
    struct seen_entry *entries = calloc(room, sizeof(*entries));

    if (!entries)
        return 0;
    for (size_t i = 0; i < seen->room; i++) {
        const struct seen_entry *entry = &seen->entries[i];

        if (entry->number)
            *place_of(entries, room, entry->device, entry->inode) = *entry;
    }
    free(seen->entries);
    seen->entries = entries;
    seen->room = room;
    return 1;
}

size_t
seen_add(struct seen *seen, uint64_t device, uint64_t inode, size_t number)
{
    struct seen_entry *entry;

    if (2 * (seen->count + 1) > seen->room && !grow(seen))
        return 0;
    entry = place_of(seen->entries, seen->room, device, inode);
    if (!entry->number) {
        *entry = (struct seen_entry){device, inode, number};
        seen->count++;
    }
    return entry->number;
}

size_t
seen_find(const struct seen *seen, uint64_t device, uint64_t inode)
{
    return seen->room ? place_of(seen->entries, seen->room, device, inode)->number : 0;
}

void
seen_free(struct seen *seen)
{
    free(seen->entries);
    *seen = (struct seen){0};
}
