/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint that a path on a command line means.
 */
#ifndef FSTFS_COMMON_FIND_H
#define FSTFS_COMMON_FIND_H

#include "base/error.h"
#include "catalog/catalog.h"

#include <limits.h>
#include <stdbool.h>

struct found {
    char *directory; /* real and absolute: where its files lie */
    bool is_directory; /* the path is that directory, not a name in it */
    char name[NAME_MAX + 1]; /* else: the name */
    struct catalog *catalog; /* of the directory */
    struct source_dir *root;
    struct listing *listing;
    const struct group *group;
    bool one_file; /* `name` is a shard of it, and nothing else is meant */
    struct checkpoint *checkpoint; /* NULL before find_headers() */
};

/* The `tell` of a catalog whose problems nobody is to be told of. */
void find_no_problem(void *arg, const char *directory, const char *name, const char *text);

/*
 * Finds out what a path means; reads no headers. It may be
 *   a directory with one checkpoint in it
 *   DIRECTORY/STEM, where a directory has several
 *   the index file of a checkpoint
 *   a safetensors file, which is then all that is meant
 * On an error the reason says what was looked for and found. `options` are for the
 * catalog; its source is set here. To be let go with find_close() in any case.
 */
errint_t find_checkpoint(const char *path, const struct catalog_options *options,
                         struct found *found, struct reason *reason);

/* Reads the headers. Fails only for want of memory. */
errint_t find_headers(struct found *found, struct reason *reason);

/* Whether what is meant is sound, of the headers that were read; -EBADMSG: the reason
 * says which shard is refused and why, or what is wrong with the checkpoint. */
errint_t find_check_sound(const struct found *found, struct reason *reason);

void find_close(struct found *found);

#endif
