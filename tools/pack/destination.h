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
    const char *path; /* of the output; as in the request */
    int parent; /* the directory of the output */
    char name[NAME_MAX + 1];
    int directory; /* the files' directory: `parent`, or the output */
    bool is_directory;
    char temporary[NAME_MAX + 1]; /* of a new directory until it is committed; else "" */
    struct output *outputs; /* side files, then shards, then an index */
    size_t output_count, side_count;
    struct old_files old;
    bool set_aside; /* the old files of the checkpoint were renamed to hidden names */
};

/*
 * Opens the destination and finds the files to be replaced. -EEXIST: the file exists, or the
 * directory contains a checkpoint of the stem, and `force` is false. -EINVAL: an input would be
 * replaced. -EBUSY: another process writes into the directory. Call destination_close() in any
 * case.
 */
errint_t destination_open(const struct destination_request *request,
                          struct destination *destination, struct reason *reason);

/* Creates the next output file: side files first, then shards, then the index. `name` is NULL if
 * the destination is one file; `mode` is that of output_begin(). */
errint_t destination_add(struct destination *destination, const char *name,
                         const struct output_mode *mode, bool is_side, struct reason *reason);

/*
 * Renames all files, which the caller has written and synced, to their final names, waits until the
 * names are on storage, checks that the path still leads to them, and removes the files that they
 * replace. On an error before that, the old files are restored; prints the names of those for which
 * that fails. On a later one, the new files remain, and replaced files may remain as .swap files.
 */
errint_t destination_commit(struct destination *destination, struct reason *reason);

/* Removes all output files that were not committed. */
void destination_close(struct destination *destination);

#endif
