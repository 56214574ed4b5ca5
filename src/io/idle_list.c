/* SPDX-License-Identifier: Apache-2.0 */
/* A list of idle chunks, longest idle first. See chunk_cache.h. */
#include "io/chunk_cache.h"

void
idle_list_add(struct idle_list *list, struct chunk *chunk)
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
idle_list_remove(struct idle_list *list, struct chunk *chunk)
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
