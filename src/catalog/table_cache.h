/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of parsed headers, called tables. A version of a file has one table per container, even
 * if it has several names. The last reference frees the table and returns its memory to the budget.
 * If several threads need a file at the same time, it is parsed once.
 *
 * Any thread. table_cache_read() waits for storage, for the budget, and for another thread that
 * reads the same file.
 */
#ifndef FSTFS_CATALOG_TABLE_CACHE_H
#define FSTFS_CATALOG_TABLE_CACHE_H

#include "base/error.h"
#include "base/extent.h"
#include "catalog/catalog.h"
#include "catalog/header_budget.h"
#include "format/container.h"

#include <pthread.h>

enum { TABLE_BUCKETS = 4096 };

/* `backing`, `container`, `table` and `layout` are immutable once table_cache_read() has returned
 * it; the cache's lock guards the rest. */
struct kept_table {
    struct kept_table *next; /* in its bucket */
    struct backing *backing; /* the version that it was read from; counted */
    const struct container *container;
    unsigned references;
    bool loading;
    bool listed; /* it is in its bucket */
    errint_t error; /* of loading */
    struct reason reason;
    struct st_table *table;
    struct layout *layout; /* of its tensors; NULL: none has data */
    struct tensor_ref *by_name; /* see table_cache_by_name(); NULL until then */
};

struct table_cache {
    struct header_budget *budget;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t loaded;
    struct kept_table *buckets[TABLE_BUCKETS];
    uint64_t bytes; /* of all tables */
};

void table_cache_init(struct table_cache *cache, struct header_budget *budget);
void table_cache_destroy(struct table_cache *cache);

/*
 * Returns a reference to the table of this version, read as a file of `container`. If none is
 * cached, reads it from `fd`, an open descriptor of the version. `backing` must be in use
 * (version_open()). A table that was read through another backing is shared only if that has the
 * same identity and is current. Errors as those of the container's reader, and -ENOBUFS: the budget
 * has no room. `reason` is set on every error.
 */
errint_t table_cache_read(struct table_cache *cache, int fd, struct backing *backing,
                          const struct container *container, struct kept_table **kept,
                          struct reason *reason);

/* The file may have changed under this identity: removes the table from the cache, so that the next
 * reader parses the file. References stay valid. */
void table_cache_forget(struct table_cache *cache, struct kept_table *kept);

void table_cache_unref(struct table_cache *cache, struct kept_table *kept); /* NULL is allowed */

/* The tensors sorted by name, with shard index 0. The array is made once, and freed with the table.
 * NULL: out of memory, or the budget has no room. */
const struct tensor_ref *table_cache_by_name(struct table_cache *cache, struct kept_table *kept);

/* The offsets of a table's tensors and their order by name, for the prefetcher. The caller charges
 * the layout's bytes (layout->charge) to the budget; freeing the layout returns them.
 * NULL: no tensor has data, or out of memory; reads are then slower. */
struct layout *layout_of_table(const struct st_table *table, struct header_budget *budget);

#endif
