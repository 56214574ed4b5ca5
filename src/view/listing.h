/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names a directory of the source has in one view.
 */
#ifndef FSTFS_VIEW_LISTING_H
#define FSTFS_VIEW_LISTING_H

#include "catalog/catalog.h"
#include "view/view.h"

enum dir_entry_kind { /* strongest claim to a name first */
                      ENTRY_DIRECTORY,
                      ENTRY_SIDE_FILE, /* as in the source */
                      ENTRY_SHARD, /* a shard as in the source */
                      ENTRY_INDEX, /* an index as in the source */
                      ENTRY_TENSORS, /* a checkpoint's directory */
                      ENTRY_TENSOR_INDEX,
                      ENTRY_MERGED,
                      ENTRY_SHARD_INDEX,
                      ENTRY_RECUT, /* no name: stands for the files a checkpoint is re-cut into */
};

struct dir_entry {
    const char *name;
    enum dir_entry_kind kind;
    uint32_t group; /* index into listing->groups; not of directories and side files */
};

/* Immutable, counted. Sorted by name; then, apart, the re-cut checkpoints. */
struct dir_listing {
    atomic_uint references;
    struct listing *listing; /* what it was made of; counted */
    uint32_t count; /* of entries with a name */
    uint32_t recut_count;
    const struct dir_entry *entries; /* count named ones, then recut_count of ENTRY_RECUT */
    char *names; /* made names */
};

/* Takes over the reference to `listing`. NULL: out of memory. */
struct dir_listing *dir_listing_new(struct listing *listing, const char *directory,
                                    enum view_kind view, const struct view_options *options);
struct dir_listing *dir_listing_ref(struct dir_listing *listing);
void dir_listing_unref(struct dir_listing *listing); /* NULL is allowed */

/* NULL: no such name. */
const struct dir_entry *dir_listing_find(const struct dir_listing *listing, const char *name);

/* The re-cut checkpoint of this stem, or NULL. */
const struct dir_entry *dir_listing_find_recut(const struct dir_listing *listing, const char *stem);

#endif
