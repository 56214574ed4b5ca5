/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear whole or not at all, and never in the place of a file that nobody
 * looked at. A file is written without a name where the file system can do that
 * (O_TMPFILE), else under a temporary one, and gets its name when all of it is on storage.
 *
 * Hidden names beside NAME:
 *   .NAME.XXXXXXXX.tmp    unfinished output; locked (flock) while its program lives, and
 *                         removed by output_remove_stale() afterwards
 *   .NAME.XXXXXXXX.swap   an existing file that is being replaced, or the one that replaces
 *                         it; never removed by another run
 *
 * All names are relative to an open directory. No function follows a link in a name.
 */
#ifndef FSTFS_COMMON_OUTPUT_H
#define FSTFS_COMMON_OUTPUT_H

#include "base/buffer.h"
#include "base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

/*
 * An existing file as it was when it was looked at. The open descriptor keeps its inode
 * number from being given to another file.
 */
struct output_entry {
    int fd; /* O_PATH; -1: there was no such file */
    off_t size;
    struct timespec mtime;
};

/* Looks at a file. Its absence is no error: entry->fd is -1 then. */
errint_t output_look(int directory, const char *name, struct output_entry *entry);
void output_forget(struct output_entry *entry);

/* Whether `name` is still the file that was looked at, neither replaced nor written to. */
bool output_is_unchanged(int directory, const char *name, const struct output_entry *entry);

/* Whether `name` leads to the inode of the open file. */
bool output_is_inode(int directory, const char *name, int fd);

/* Moves the file that was looked at to a name of its own, given in `aside`. -ESTALE: it is
 * another file by now, and stays. */
errint_t output_set_aside(int directory, const char *name, const struct output_entry *entry,
                          char aside[NAME_MAX + 1]);

/* Renames within a directory. -EEXIST where the new name is taken. */
errint_t output_rename(int directory, const char *from, const char *to);

enum output_state { OUTPUT_NONE, OUTPUT_UNNAMED, OUTPUT_TEMPORARY, OUTPUT_PLACED };

struct output {
    enum output_state state;
    int fd; /* open for reading and writing until output_drop() */
    int directory;
    char name[NAME_MAX + 1]; /* that it is to have */
    char temporary[NAME_MAX + 1]; /* that it has where the state is OUTPUT_TEMPORARY */
};

/* Begins a file `name` in the open directory, which must stay open. */
errint_t output_begin(int directory, const char *name, struct output *output,
                      struct reason *reason);

/* Waits until what was written is on storage. */
errint_t output_sync(struct output *output, struct reason *reason);

/*
 * Gives a synced file its name, in the place of the file `replaced`, or of none where that
 * is NULL or absent. -EEXIST: the name is taken. -ESTALE: the file there is not `replaced`
 * any more. The name itself is on storage once the directory is synced.
 */
errint_t output_place(struct output *output, const struct output_entry *replaced,
                      struct reason *reason);

/* The same, but the replaced file is kept under a hidden name, given in `aside`; "" where
 * none was replaced. */
errint_t output_place_keeping(struct output *output, const struct output_entry *replaced,
                              char aside[NAME_MAX + 1], struct reason *reason);

/* Takes the name of a placed file away again. */
void output_unplace(struct output *output);

/* Closes the file. Removes it unless it was placed. An output that is all zero is let be. */
void output_drop(struct output *output);

/* Writes a text into a file, by all of the above. Where `replace` is false an existing file
 * is an error. */
errint_t output_write(const char *path, const struct buffer *text, bool replace,
                      struct reason *reason);

/* The temporary name of a directory that is to be called `name`: always the same one, so
 * that two programs that make it meet there. */
void output_directory_name(const char *name, char temporary[NAME_MAX + 1]);

/* Removes the unfinished output that killed programs left beside `name`, or beside any name
 * where that is NULL. Prints the names of files that a killed program left while it
 * replaced them. */
void output_remove_stale(int directory, const char *name);

/* Waits until the names in a directory are on storage. */
errint_t output_sync_directory(int directory, struct reason *reason);

#endif
