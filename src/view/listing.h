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
                      ENTRY_MERGED_INDEX, /* names the merged file alone */
                      ENTRY_SHARD_INDEX, /* of shards as in the source */
                      ENTRY_RECUT, /* no name: stands for the files a checkpoint is re-cut into */
};

struct dir_entry {
    const char *name;
    enum dir_entry_kind kind;
    uint32_t group; /* index into listing->groups; not of directories and side files */
    /* ENTRY_TENSORS, and ENTRY_TENSOR_INDEX of that directory: the directory has the name of the
     * checkpoint's first file, because its stem is taken. */
    bool named_by_file;
    bool is_indexed; /* ENTRY_RECUT: has an index even where it is cut into one file */
};

/* Immutable but for `no_room_reported`, counted. Sorted by name; then, apart, the re-cut
 * checkpoints. */
struct dir_listing {
    atomic_uint references;
    atomic_bool no_room_reported; /* see dir_listing_report_no_room() */
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

/* The name of a checkpoint's index in the views: its own, or the usual one. */
void dir_listing_index_name(const struct group *group, char name[300]);

/* Adds a problem: the budget has no room for the names, of so many bytes, that an open directory
 * shows. Once. */
void dir_listing_report_no_room(struct dir_listing *listing, struct catalog *catalog,
                                const char *directory, uint64_t bytes);

/* NULL: no such name. */
const struct dir_entry *dir_listing_find(const struct dir_listing *listing, const char *name);

static inline const struct group *
dir_entry_group(const struct dir_listing *listing, const struct dir_entry *entry)
{
    return &listing->listing->groups[entry->group];
}

/* The place in `entries` of the first re-cut checkpoint of this stem, or of a later one. Those
 * of one stem follow one another. */
uint32_t dir_listing_find_recut(const struct dir_listing *listing, const char *stem);

#endif
