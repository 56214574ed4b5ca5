/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the catalog: one for each version of a file, however many names lead
 * to it. Counted; the last reference frees the table and gives its memory back to the
 * budget. A file that several threads want at once is parsed once.
 *
 * Any thread. table_cache_read() waits for storage, for the budget, and for another
 * thread that reads the same file.
 */
#ifndef FSTFS_CATALOG_TABLE_CACHE_H
#define FSTFS_CATALOG_TABLE_CACHE_H

#include "base/error.h"
#include "base/extent.h"
#include "catalog/catalog.h"
#include "catalog/header_budget.h"
#include "format/safetensors.h"

#include <pthread.h>

enum { TABLE_BUCKETS = 4096 };

/* Immutable once it is handed out, but for what the cache guards. */
struct kept_table {
    struct kept_table *next; /* in its bucket */
    struct file_identity identity;
    unsigned references;
    bool loading;
    bool listed; /* in its bucket: can be found */
    errint_t error; /* of loading */
    struct reason reason;
    struct st_table *table;
    struct layout *layout; /* of its tensors; NULL: none have data */
    struct tensor_ref *by_name; /* see table_cache_by_name(); NULL: not made yet */
};

struct table_cache {
    struct header_budget *budget;
    pthread_mutex_t lock; /* guards all entries; not what is immutable */
    pthread_cond_t loaded;
    pthread_mutex_t sorting; /* guards by_name; held while it is made */
    struct kept_table *buckets[TABLE_BUCKETS];
    uint64_t bytes; /* of all tables */
};

void table_cache_init(struct table_cache *cache, struct header_budget *budget);
void table_cache_destroy(struct table_cache *cache);

/*
 * A reference to the table of that version; reads it from `fd`, which is open at that
 * version, if it is not there. As st_table_read(), and -ENOBUFS where the budget has no
 * room. The reason is set on every error.
 */
errint_t table_cache_read(struct table_cache *cache, int fd, const struct file_identity *identity,
                          struct kept_table **kept, struct reason *reason);

/* The table may be of other content than the file by now: who wants it next parses it. */
void table_cache_forget(struct table_cache *cache, struct kept_table *kept);

void table_cache_unref(struct table_cache *cache, struct kept_table *kept); /* NULL is allowed */

/* The tensors by name, as those of shard 0; made once, freed with the table. NULL: no memory,
 * or no room in the budget. */
const struct tensor_ref *table_cache_by_name(struct table_cache *cache, struct kept_table *kept);

#endif
