/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes files atomically in a directory: a file gets its name when all of its bytes are on
 * storage, and replaces only a file that was inspected before and has not changed since.
 *
 * Until then it has no name (O_TMPFILE), or a temporary one if the file system requires that.
 * Hidden names of a file NAME:
 *   .NAME.XXXXXXXX.fstfs-tmp  an unfinished file, locked (flock) by its process;
 *                             output_remove_stale() removes those of killed processes
 *   .NAME.XXXXXXXX.swap       the old or the new file during a replacement. It is kept if the
 *                             process is killed, because it may be the only copy
 *
 * Names are relative to an open directory. Links are not followed.
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

/* The state of a file when it was inspected. The descriptor prevents reuse of its inode number. */
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

/* Renames the inspected file to a hidden name, returned in `aside`. -ESTALE: the file was replaced
 * or changed since its inspection, and keeps its name. */
errint_t output_set_aside(int directory, const char *name, const struct output_entry *entry,
                          char aside[NAME_MAX + 1]);

/* Renames within a directory. -EEXIST if `to` exists. */
errint_t output_rename(int directory, const char *from, const char *to);

/* ---- new files ---- */

enum output_state { OUTPUT_NONE, OUTPUT_UNNAMED, OUTPUT_TEMPORARY, OUTPUT_PLACED };

/* All zero is valid: no file was begun. */
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

/* The permissions of a new file, before those of the umask are removed. */
struct output_mode {
    mode_t mode;
    mode_t group_mode; /* instead of `mode` if the file gets the group `group`, and no ACL */
    gid_t group;
};

/* Creates a file that will be called `name`. The directory must stay open. Call output_drop() in
 * any case. Must not run while another thread creates files, since it reads the umask. */
errint_t output_begin(int directory, const char *name, const struct output_mode *mode,
                      struct output *output, struct reason *reason);

/* Waits until the bytes written are on storage. */
errint_t output_sync(struct output *output, struct reason *reason);

/*
 * Gives a synced file its name, and replaces the file `replaced` unless that is NULL or absent.
 * -EEXIST: another file has the name. -ESTALE: `replaced` was itself replaced or changed. The
 * replaced file is removed or, if `aside` is not NULL, renamed to a hidden name returned there (""
 * if there was none). The name is on storage after output_sync_directory().
 */
errint_t output_place(struct output *output, const struct output_entry *replaced,
                      char aside[NAME_MAX + 1], struct reason *reason);

/* Removes a placed file, unless another one has its name by now. */
void output_unplace(struct output *output);

/* Closes the file, and removes it unless it was placed. */
void output_drop(struct output *output);

/* Writes `text` to the file `path` atomically, and syncs it and its directory. -EEXIST: it exists
 * and `replace` is false. */
errint_t output_write(const char *path, const struct buffer *text, bool replace,
                      struct reason *reason);

/* ---- directories ---- */

/* Formats the temporary name of a directory that will be called `name`. It depends on `name` only,
 * so that concurrent programs that create the directory detect each other. */
void output_directory_name(const char *name, char temporary[NAME_MAX + 1]);

/* Removes the unfinished files (.fstfs-tmp) of killed processes: those of `name`, or all in the
 * directory if that is NULL. Prints the names of .swap files that killed processes have left. */
void output_remove_stale(int directory, const char *name);

/* Waits until the names in a directory are on storage. */
errint_t output_sync_directory(int directory, struct reason *reason);

#endif
