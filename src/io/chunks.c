/* SPDX-License-Identifier: Apache-2.0 */
#include "io/chunks.h"

#include "io/block.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of what was handed out: the ends of tensors lie in blocks of their neighbours, and
 * are no sign that all of it is wanted again. */
#define ENOUGH_AGAIN (256 * 1024)

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
cached_file_took(struct cached_file *file, uint64_t start, uint64_t end)
{
    for (unsigned i = 0; i < file->taken_count; i++) {
        struct span *span = &file->taken[i];

        if (start > span->end || end < span->start)
            continue;
        span->start = start < span->start ? start : span->start;
        span->end = end > span->end ? end : span->end;
        return;
    }
    if (file->taken_count < MOST_TAKEN) {
        file->taken[file->taken_count++] = (struct span){start, end};
    } else {
        file->taken[file->oldest_taken] = (struct span){start, end};
        file->oldest_taken = (file->oldest_taken + 1) % MOST_TAKEN;
    }
}

void
cached_file_asked(struct cached_file *file, uint64_t start, uint64_t end)
{
    for (unsigned i = 0; i < file->taken_count; i++) {
        const struct span *span = &file->taken[i];

        if (start >= span->start && end <= span->end)
            file->taken_again += end - start;
    }
    if (file->taken_again < ENOUGH_AGAIN)
        return;
    file->taken_again = 0;
    file->taken_count = 0;
    file->oldest_taken = 0;
}

uint64_t
cached_file_taken(const struct cached_file *file, uint64_t offset, uint64_t *end)
{
    uint64_t taken = offset;

    for (unsigned i = 0; i < file->taken_count; i++) {
        const struct span *span = &file->taken[i];

        /* The block at each end may have been handed out in part only. */
        uint64_t start = span->start + BLOCK_SIZE, taken_to = span->end - BLOCK_SIZE;

        if (start <= offset && taken_to > taken)
            taken = taken_to;
        else if (start > offset && start < *end && taken_to > start)
            *end = start;
    }
    return taken;
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
