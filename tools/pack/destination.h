/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destination of fstfs-pack: one file, or a directory of files.
 *
 * A new directory is created under a temporary name and renamed when all files are in it. An
 * existing directory is opened and locked once and never moved. Its files are replaced one at a
 * time, in an order in which no loader sees a mixture of old and new shards.
 */
#ifndef FSTFS_PACK_DESTINATION_H
#define FSTFS_PACK_DESTINATION_H

#include "common/output.h"
#include "replace.h"

struct destination_request {
    const char *path;
    const char *stem; /* of the shards in a directory; NULL: one file */
    bool force; /* replace existing files */
    const struct sources *sources; /* never replaced */
};

struct destination {
    int parent; /* the directory of the output */
    char name[NAME_MAX + 1];
    int directory; /* the files' directory: `parent`, or the output */
    bool is_directory;
    char temporary[NAME_MAX + 1]; /* name of a new directory until it is renamed, or "" */
    struct output *outputs; /* side files, then shards, then an index */
    size_t output_count, side_count;
    struct old_files old;
    bool made_way; /* the old shards were set aside */
};

/*
 * Opens the destination and finds the files to be replaced. -EEXIST: the file exists, or the
 * directory contains a checkpoint of the stem, and `force` is false. -EINVAL: an input would be
 * replaced. -EBUSY: another process writes into the directory. Call destination_close() in any
 * case.
 */
errint_t destination_open(const struct destination_request *request,
                          struct destination *destination, struct reason *reason);

/* Begins the next output file: side files first, then shards, then the index. `name` is NULL for
 * one file that is not in a directory. */
errint_t destination_add(struct destination *destination, const char *name, bool is_side,
                         struct reason *reason);

/*
 * Names all files, which are written and synced, and removes those they replace; waits until the
 * names are on storage. On an error the old files are restored; those that cannot be are printed.
 */
errint_t destination_commit(struct destination *destination, struct reason *reason);

/* Removes the files that have no name yet. */
void destination_close(struct destination *destination);

#endif
