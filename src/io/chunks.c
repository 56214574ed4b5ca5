/* SPDX-License-Identifier: Apache-2.0 */
#include "io/chunks.h"

#include <stdlib.h>
#include <string.h>

uint32_t
shard_find(const struct shard *shard, uint64_t offset)
{
    uint32_t low = 0, high = shard->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (chunk_end(shard->chunks[middle]) > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool
shard_insert(struct shard *shard, struct chunk *chunk)
{
    uint32_t place = shard_find(shard, chunk->read.offset);

    if (shard->count == shard->capacity) {
        uint32_t capacity = shard->capacity ? shard->capacity * 2 : 8;
        struct chunk **chunks = realloc(shard->chunks, capacity * sizeof(struct chunk *));

        if (!chunks)
            return false;
        shard->chunks = chunks;
        shard->capacity = capacity;
    }
    memmove(&shard->chunks[place + 1], &shard->chunks[place],
            (shard->count - place) * sizeof(struct chunk *));
    shard->chunks[place] = chunk;
    shard->count++;
    return true;
}

void
shard_remove(struct shard *shard, struct chunk *chunk)
{
    uint32_t place = shard_find(shard, chunk->read.offset);

    shard->count--;
    memmove(&shard->chunks[place], &shard->chunks[place + 1],
            (shard->count - place) * sizeof(struct chunk *));
}

void
idle_add(struct idle_list *list, struct chunk *chunk)
{
    chunk->next = NULL;
    chunk->previous = list->last;
    if (list->last)
        list->last->next = chunk;
    else
        list->first = chunk;
    list->last = chunk;
    list->bytes += chunk->read.length;
}

void
idle_remove(struct idle_list *list, struct chunk *chunk)
{
    if (chunk->previous)
        chunk->previous->next = chunk->next;
    else
        list->first = chunk->next;
    if (chunk->next)
        chunk->next->previous = chunk->previous;
    else
        list->last = chunk->previous;
    list->bytes -= chunk->read.length;
}
