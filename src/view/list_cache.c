/* SPDX-License-Identifier: Apache-2.0 */
#include "view/list_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_CACHE_SLOTS = 16 };

struct cached_list {
    struct extent_list *list; /* NULL: free */
    uint64_t serial; /* of the checkpoint */
    struct made made;
};

struct list_cache {
    pthread_mutex_t lock; /* guards the slots; never held while a list is made or freed */
    struct cached_list slots[LIST_CACHE_SLOTS]; /* most recently used first */
};

struct list_cache *
list_cache_new(void)
{
    struct list_cache *cache = calloc(1, sizeof(*cache));

    if (cache)
        pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

void
list_cache_free(struct list_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < LIST_CACHE_SLOTS; i++)
        extent_list_unref(cache->slots[i].list);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* The index of the file's slot, or LIST_CACHE_SLOTS; the lock is held. */
static int
find_cached_list(const struct list_cache *cache, uint64_t serial, const struct made *made)
{
    int i = 0;

    while (i < LIST_CACHE_SLOTS &&
           !(cache->slots[i].list && cache->slots[i].serial == serial &&
             cache->slots[i].made.kind == made->kind && cache->slots[i].made.part == made->part))
        i++;
    return i;
}

/* Makes a slot the first; the lock is held. */
static void
mark_list_used(struct list_cache *cache, int i)
{
    struct cached_list slot = cache->slots[i];

    memmove(&cache->slots[1], &cache->slots[0], (size_t)i * sizeof(slot));
    cache->slots[0] = slot;
}

errint_t
list_cache_get(struct list_cache *cache, struct checkpoint *checkpoint,
               const struct view_options *options, const struct made *made,
               struct extent_list **list)
{
    enum { LAST = LIST_CACHE_SLOTS - 1 };
    struct extent_list *evicted = NULL;
    errint_t error;
    int i;

    pthread_mutex_lock(&cache->lock);
    i = find_cached_list(cache, checkpoint->serial, made);
    if (i < LIST_CACHE_SLOTS) {
        mark_list_used(cache, i);
        *list = extent_list_ref(cache->slots[0].list);
    }
    pthread_mutex_unlock(&cache->lock);
    if (i < LIST_CACHE_SLOTS)
        return 0;
    error = derived_list(checkpoint, options, made, list);
    if (error)
        return error;
    pthread_mutex_lock(&cache->lock);
    if (find_cached_list(cache, checkpoint->serial, made) == LIST_CACHE_SLOTS) {
        evicted = cache->slots[LAST].list;
        cache->slots[LAST] =
            (struct cached_list){extent_list_ref(*list), checkpoint->serial, *made};
        mark_list_used(cache, LAST);
    }
    pthread_mutex_unlock(&cache->lock);
    extent_list_unref(evicted);
    return 0;
}

void
list_cache_trim(struct list_cache *cache)
{
    struct extent_list *evicted[LIST_CACHE_SLOTS];
    uint64_t idle = 0, bytes;
    int count = 0;

    pthread_mutex_lock(&cache->lock);
    for (int i = 0; i < LIST_CACHE_SLOTS; i++) {
        struct cached_list *slot = &cache->slots[i];

        if (!slot->list || atomic_load(&slot->list->references) > 1)
            continue;
        bytes = layout_list_bytes(slot->list);
        if (idle + bytes <= LIST_CACHE_IDLE) {
            idle += bytes;
            continue;
        }
        evicted[count++] = slot->list;
        slot->list = NULL;
    }
    pthread_mutex_unlock(&cache->lock);
    for (int i = 0; i < count; i++)
        extent_list_unref(evicted[i]);
}
