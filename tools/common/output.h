/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is there whole or not at all: written without a name where the file
 * system can, else under one of its own beside its place, and put there when all
 * of it is on storage. A crash leaves the file that was there before, or none.
 */
#ifndef FSTFS_COMMON_OUTPUT_H
#define FSTFS_COMMON_OUTPUT_H

#include "base/buffer.h"
#include "base/error.h"

#include <limits.h>
#include <stdbool.h>

struct output {
    int fd; /* open for reading and writing */
    int directory;
    bool unnamed; /* it has no name yet */
    char name[NAME_MAX + 1]; /* that it is to have */
    char temporary[NAME_MAX + 1]; /* that it has, or gets for a moment */
};

/* Begins a file `name` in the open directory, which must stay open. */
errint_t output_begin(int directory, const char *name, struct output *output,
                      struct reason *reason);

/* Waits until what was written is on storage. */
errint_t output_sync(struct output *output, struct reason *reason);

/*
 * Gives a synced file its name. -EEXIST where the name is taken and `replace` is
 * false. The name itself is on storage once the directory is synced. The output is
 * over, whatever comes of it.
 */
errint_t output_place(struct output *output, bool replace, struct reason *reason);

/* Nothing is left of it. An output that is all zero, or over, is let be. */
void output_drop(struct output *output);

/* Makes a file of a text, by all of the above. */
errint_t output_write(const char *path, const struct buffer *text, bool replace,
                      struct reason *reason);

/* Makes a directory beside where `name` is to be, under a temporary name; gives it
 * open, and locked as all that is temporary. */
errint_t output_make_directory(int parent, const char *name, char temporary[NAME_MAX + 1], int *fd,
                               struct reason *reason);
/* Removes a directory and the files in it, as far as that goes. */
void output_remove_directory(int parent, const char *name);

/* Removes what programs that were killed left beside `name`. */
void output_remove_stale(int parent, const char *name);

/* Waits until the names in a directory are on storage. */
errint_t output_sync_directory(int directory, struct reason *reason);

#endif
