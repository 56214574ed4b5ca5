/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes files atomically in a directory: a file gets its name when all of its bytes are on
 * storage, and replaces only a file that was inspected before and has not changed since.
 *
 * Until then it has no name (O_TMPFILE), or a temporary one if the file system requires that.
 * Hidden names beside NAME:
 *   .NAME.XXXXXXXX.tmp    an unfinished file, locked (flock) by its process;
 *                         output_remove_stale() removes those of killed processes
 *   .NAME.XXXXXXXX.swap   the old or the new file during a replacement; never removed later
 *
 * Names are relative to an open directory, and links in them are not followed.
 */
#ifndef FSTFS_COMMON_OUTPUT_H
#define FSTFS_COMMON_OUTPUT_H

#include "base/buffer.h"
#include "base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

/* ---- existing files ---- */

/* An existing file when it was inspected. The descriptor prevents reuse of its inode number. */
struct output_entry {
    int fd; /* O_PATH; -1: there was no file */
    off_t size;
    struct timespec mtime;
};

/* Inspects a file. If there is none, returns 0 with entry->fd -1. */
errint_t output_inspect(int directory, const char *name, struct output_entry *entry);
void output_entry_close(struct output_entry *entry);

/* Returns whether `name` is still the inspected file and the file is unchanged. */
bool output_is_unchanged(int directory, const char *name, const struct output_entry *entry);

/* Returns whether `name` is the open file `fd`. */
bool output_is_inode(int directory, const char *name, int fd);

/* Renames the inspected file to a hidden name, returned in `aside`. -ESTALE: `name` is another
 * file by now, or changed; it keeps its name. */
errint_t output_set_aside(int directory, const char *name, const struct output_entry *entry,
                          char aside[NAME_MAX + 1]);

/* Renames within a directory. -EEXIST if `to` exists. */
errint_t output_rename(int directory, const char *from, const char *to);

/* ---- new files ---- */

enum output_state { OUTPUT_NONE, OUTPUT_UNNAMED, OUTPUT_TEMPORARY, OUTPUT_PLACED };

/* All zero: nothing was begun. */
struct output {
    enum output_state state;
    int fd; /* open for reading and writing until output_drop() */
    int directory;
    char name[NAME_MAX + 1]; /* the final name */
    char temporary[NAME_MAX + 1]; /* the current name in OUTPUT_TEMPORARY */
};

/* Opens the directory of `path` and copies the last component of `path` to `name`. */
errint_t output_open_directory(const char *path, int *directory, char name[NAME_MAX + 1],
                               struct reason *reason);

/* Begins the file `name`. The directory must stay open. Call output_drop() in any case. */
errint_t output_begin(int directory, const char *name, struct output *output,
                      struct reason *reason);

/* Waits until the bytes written are on storage. */
errint_t output_sync(struct output *output, struct reason *reason);

/*
 * Gives a synced file its name, in place of `replaced` if that is neither NULL nor absent.
 * -EEXIST: the name exists. -ESTALE: the file there is not `replaced` any more. The replaced file
 * is removed or, if `aside` is not NULL, renamed to a hidden name returned there ("" if there was
 * none). The name is on storage after output_sync_directory().
 */
errint_t output_place(struct output *output, const struct output_entry *replaced,
                      char aside[NAME_MAX + 1], struct reason *reason);

/* Removes the name of a placed file, unless it is another file by now. */
void output_unplace(struct output *output);

/* Closes the file, and removes it unless it was placed. */
void output_drop(struct output *output);

/* Writes `text` to the file `path`, by all of the above. -EEXIST: it exists and `replace` is
 * false. */
errint_t output_write(const char *path, const struct buffer *text, bool replace,
                      struct reason *reason);

/* ---- directories ---- */

/* The temporary name of a directory that will be named `name`. It is always the same, so that
 * concurrent programs that create the directory detect each other. */
void output_directory_name(const char *name, char temporary[NAME_MAX + 1]);

/* Removes unfinished files of killed processes beside `name`, or in the whole directory if that is
 * NULL. Prints the names of files that a killed process left behind while it replaced them. */
void output_remove_stale(int directory, const char *name);

/* Waits until the names in a directory are on storage. */
errint_t output_sync_directory(int directory, struct reason *reason);

#endif
