/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the output goes: a file, or a directory of files.
 *
 * A new directory is made under a temporary name and gets its own with all files in it. An
 * existing one is never moved nor replaced: it is opened and locked once, the new files are
 * made in it, and names are given and taken away one at a time. Only files that were looked
 * at in place_begin(), and are unchanged, are taken away.
 */
#ifndef FSTFS_PACK_PLACE_H
#define FSTFS_PACK_PLACE_H

#include "base/error.h"
#include "base/extent.h"
#include "common/output.h"
#include "sources.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* A file that is to be replaced. */
struct old_file {
    char name[NAME_MAX + 1];
    struct output_entry entry; /* absent: it is gone */
    char aside[NAME_MAX + 1]; /* the name that it has meanwhile; "" */
    bool is_side; /* no file of the checkpoint */
};

/* What is known of the output before it begins. */
struct place_request {
    const char *path;
    const char *stem; /* of the shards in a directory; NULL: one file */
    bool force; /* replace what is there */
    const struct sources *sources; /* never replaced */
};

struct place {
    int parent; /* the directory that the output is in */
    char name[NAME_MAX + 1];
    int directory; /* that the files are made in: the parent, or the output */
    bool is_directory;
    char temporary[NAME_MAX + 1]; /* of a new directory, until it has its name; "" */
    struct output *outputs; /* side files, shards, an index */
    size_t output_count, side_count;
    struct old_file *old; /* an index before the shards */
    size_t old_count;
    bool made_way; /* old shards have hidden names */
};

/*
 * Opens the place and looks at what is to be replaced. -EEXIST: there is such a file, or a
 * checkpoint of the stem, and `force` is false. -EINVAL: what would be replaced is an input.
 * -EBUSY: another program packs into the directory. To be ended with place_end() in any case.
 */
errint_t place_open(const struct place_request *request, struct place *place,
                    struct reason *reason);

/*
 * Whether a file of this name and content must be written in the directory: false where it is
 * there. -EEXIST: another file is, and `force` is false.
 */
errint_t place_needs(struct place *place, const char *name, const struct backing *content,
                     bool force, bool *needed, struct reason *reason);

/*
 * Begins all files of the output: one where `names` is NULL, or those of `names` in a
 * directory; first `side_count` side files, the index last.
 */
errint_t place_begin(struct place *place, char *const *names, size_t count, size_t side_count,
                     struct reason *reason);

/*
 * Gives all files their names, when they are written and synced, and removes those that
 * they replace. On an error what was there before is there again; the reason says where it
 * is not so. Waits until the names are on storage.
 */
errint_t place_finish(struct place *place, struct reason *reason);

/* Removes what has no name yet. */
void place_end(struct place *place);

#endif
