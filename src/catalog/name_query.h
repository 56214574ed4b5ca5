/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous lookups of names that are links to other file systems, which may hang. */
#ifndef FSTFS_CATALOG_NAME_QUERY_H
#define FSTFS_CATALOG_NAME_QUERY_H

#include "base/resolve.h"
#include "catalog/private.h"

struct name_query {
    struct query query; /* first */
    struct catalog *catalog;
    struct source_dir *dir; /* counted; NULL once the query has ended */
    struct resolve_mounts mounts; /* that the path may enter; the last one is the lane */
    uint64_t first_lane;
    struct file_identity known; /* an index of this identity is not read again; inode 0: none */
    /* The answer: of stat(2), following links, and if it is an index, of source_dir_index(). */
    errint_t error;
    struct file_identity identity;
    bool is_index_read;
    errint_t index_error;
    struct st_index *index; /* freed with the query, unless the caller has taken it */
    struct file_identity index_identity;
    struct reason reason;
    char name[];
};

/* Queues a lookup of `name` in the directory. `mounts`: the directory's and the one that the link
 * leads to. NULL: out of memory. */
struct name_query *name_query_ask(struct source_dir *dir, const char *name,
                                  const struct resolve_mounts *mounts,
                                  const struct file_identity *known);

/* The key of the file system that the path leads to, as far as it is known. */
static inline uint64_t
name_query_lane(const struct name_query *query)
{
    return query->mounts.ids[query->mounts.count - 1];
}

#endif
