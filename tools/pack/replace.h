/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The existing files that fstfs-pack replaces. They are determined before anything is written, are
 * never inputs, and are removed only if they are unchanged and all new files have their names.
 */
#ifndef FSTFS_PACK_REPLACE_H
#define FSTFS_PACK_REPLACE_H

#include "base/extent.h"
#include "common/output.h"
#include "sources.h"

struct old_file {
    char name[NAME_MAX + 1];
    struct output_entry entry; /* closed once the file was replaced atomically */
    char aside[NAME_MAX + 1]; /* its hidden name, or "" */
    bool is_side; /* a side file, not a file of the checkpoint */
};

/* The old files of one directory. All zero, except `directory`, is an empty list. */
struct old_files {
    int directory; /* not owned */
    struct old_file *all; /* the index precedes the shards */
    size_t count;
};

/* Inspects a file and adds it. If there is none, adds nothing. */
errint_t old_files_add(struct old_files *old, const char *name, bool is_side,
                       struct reason *reason);

/* Adds the files of the checkpoint `stem`, and its index even if that is invalid; nothing if `stem`
 * is NULL. -EEXIST: there is such a checkpoint, and `force` is false, or a file of the list is also
 * a shard of another one. -EINVAL: one of its files is in `sources`. */
errint_t old_files_add_checkpoint(struct old_files *old, const char *stem, bool force,
                                  const struct sources *sources, struct reason *reason);

/* Sets `needed` to false if the directory already has a side file of this name and content, else
 * to true. If it has another file of this name, adds that file. -EEXIST: `force` is false, or the
 * name is neither a file nor a link. -EINVAL: the other file is in `sources`. */
errint_t old_files_add_side(struct old_files *old, const char *name, const struct backing *content,
                            bool force, const struct sources *sources, bool *needed,
                            struct reason *reason);

/* Returns the file of the list with this name, or NULL. */
struct old_file *old_files_find(const struct old_files *old, const char *name);

/* -EEXIST: the directory has a file of this name that is not in the list. */
errint_t old_files_check_name(const struct old_files *old, const char *name, struct reason *reason);

/* -ESTALE: a file of the list was changed or replaced. */
errint_t old_files_check_unchanged(const struct old_files *old, struct reason *reason);

/* Renames the files of the checkpoint, but not the side files, to hidden names. */
errint_t old_files_set_aside(struct old_files *old, struct reason *reason);

/* Undoes all renames to hidden names. Prints the names of files for which that fails. */
void old_files_restore(const struct old_files *old);

/* Removes all files of the list. Continues after an error, and returns the first one. */
errint_t old_files_remove(struct old_files *old, struct reason *reason);

void old_files_free(struct old_files *old);

#endif
