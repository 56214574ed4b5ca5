/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names that a directory of the source has in one view, as far as they are known without
 * reading headers. Any thread; does not wait for storage.
 */
#ifndef FSTFS_VIEW_LISTING_H
#define FSTFS_VIEW_LISTING_H

#include "catalog/catalog.h"
#include "view/derived.h"
#include "view/view.h"

/* If two entries have one name, the kind that comes first here is kept. */
enum dir_entry_kind {
    ENTRY_DIRECTORY,
    ENTRY_SIDE_FILE,
    ENTRY_UNCONVERTED, /* of the source; shown if the file made in its place does not exist */
    ENTRY_SHARD, /* of the source, unchanged */
    ENTRY_INDEX, /* of the source, unchanged */
    ENTRY_TENSORS, /* a checkpoint's directory */
    ENTRY_MADE,
    ENTRY_RECUT, /* has no name: all files that a checkpoint is re-cut into */
};

struct dir_entry {
    const char *name;
    enum dir_entry_kind kind;
    struct made made; /* ENTRY_MADE; ENTRY_UNCONVERTED: the file that is shown instead */
    uint32_t group; /* index into listing->groups; not of directories and side files */
    bool is_indexed; /* ENTRY_RECUT: has an index even if it is cut into one file */
};

/* Immutable except for `no_room_reported`; counted. Sorted by name; then the re-cut checkpoints. */
struct dir_listing {
    atomic_uint references;
    atomic_bool no_room_reported; /* see dir_listing_report_no_room() */
    struct listing *listing; /* counted */
    uint32_t count; /* of entries with a name */
    uint32_t recut_count;
    const struct dir_entry *entries; /* `count` with a name, then `recut_count` ENTRY_RECUT */
    char *names; /* names that are not in `listing` */
};

/* Takes ownership of the reference to `listing`. NULL: out of memory. */
struct dir_listing *dir_listing_new(struct listing *listing, enum view_kind view,
                                    const struct view_options *options);
struct dir_listing *dir_listing_ref(struct dir_listing *listing);
void dir_listing_unref(struct dir_listing *listing); /* NULL is allowed */

/* The name of a checkpoint's index in the views: the source's, or the usual one. */
void dir_listing_index_name(const struct group *group, char name[300]);

/* Adds a problem, once: the budget has no room for the `bytes` bytes of an open directory's names.
 */
void dir_listing_report_no_room(struct dir_listing *listing, struct catalog *catalog,
                                uint64_t bytes);

/* Finds a name; NULL: there is none. */
const struct dir_entry *dir_listing_find(const struct dir_listing *listing, const char *name);

static inline const struct group *
dir_entry_group(const struct dir_listing *listing, const struct dir_entry *entry)
{
    return &listing->listing->groups[entry->group];
}

/* The kind of file that a conditional entry is made as. */
static inline enum made_kind
dir_entry_made_kind(const struct dir_entry *entry)
{
    return entry->kind == ENTRY_RECUT ? MADE_PART : entry->made.kind;
}

/* Key of the other file systems that links among the entry's files lead to; 0: see struct group. */
uint64_t dir_entry_lane(const struct dir_listing *listing, const struct dir_entry *entry);

/* The index in `entries` of the first re-cut checkpoint with this stem or a greater one. Those of
 * one stem are adjacent. */
uint32_t dir_listing_find_recut(const struct dir_listing *listing, const char *stem);

/* The files that a checkpoint is re-cut into. */
struct recut_files {
    uint32_t parts;
    bool has_index;
};

/* `parts`: of derived_parts(). While they are not known, only the file that loaders open first is
 * shown: the index, if there may be several parts. */
static inline struct recut_files
recut_files_of(const struct group *group, const struct dir_entry *entry, uint32_t parts)
{
    if (parts == PARTS_UNKNOWN && (entry->is_indexed || group->member_count > 1))
        return (struct recut_files){0, true};
    if (parts == PARTS_UNKNOWN)
        return (struct recut_files){1, false};
    return (struct recut_files){parts, parts > 1 || (parts == 1 && entry->is_indexed)};
}

#endif
