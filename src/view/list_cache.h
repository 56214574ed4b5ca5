/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of the extent lists of recently opened generated files, so that a file that is opened
 * repeatedly is not laid out each time. Idle lists, which no open file uses, take at most
 * LIST_CACHE_IDLE bytes.
 *
 * Any thread; does not wait for storage.
 */
#ifndef FSTFS_VIEW_LIST_CACHE_H
#define FSTFS_VIEW_LIST_CACHE_H

#include "view/derived.h"

enum { LIST_CACHE_IDLE = 32 << 20 };

struct list_cache;

struct list_cache *list_cache_new(void); /* NULL: out of memory */
void list_cache_free(struct list_cache *cache); /* NULL is allowed */

/* The file's extents, as derived_list(), from the cache on a hit. */
errint_t list_cache_get(struct list_cache *cache, struct checkpoint *checkpoint,
                        const struct view_options *options, const struct made *made,
                        struct extent_list **list);
/* Frees the idle lists that exceed the limit. Call it after a file was closed. */
void list_cache_trim(struct list_cache *cache);

#endif
