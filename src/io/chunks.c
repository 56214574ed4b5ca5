/* SPDX-License-Identifier: Apache-2.0 */
#include "io/chunks.h"

#include <stdlib.h>
#include <string.h>

uint32_t
cached_file_find(const struct cached_file *file, uint64_t offset)
{
    uint32_t low = 0, high = file->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (chunk_end(file->chunks[middle]) > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool
cached_file_insert(struct cached_file *file, struct chunk *chunk)
{
    uint32_t place = cached_file_find(file, chunk->read.offset);

    if (file->count == file->capacity) {
        uint32_t capacity = file->capacity ? file->capacity * 2 : 8;
        struct chunk **chunks = realloc(file->chunks, capacity * sizeof(struct chunk *));

        if (!chunks)
            return false;
        file->chunks = chunks;
        file->capacity = capacity;
    }
    memmove(&file->chunks[place + 1], &file->chunks[place],
            (file->count - place) * sizeof(struct chunk *));
    file->chunks[place] = chunk;
    file->count++;
    return true;
}

void
cached_file_remove(struct cached_file *file, struct chunk *chunk)
{
    uint32_t place = cached_file_find(file, chunk->read.offset);

    file->count--;
    memmove(&file->chunks[place], &file->chunks[place + 1],
            (file->count - place) * sizeof(struct chunk *));
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
