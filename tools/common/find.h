/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves a path on the command line to a checkpoint. */
#ifndef FSTFS_COMMON_FIND_H
#define FSTFS_COMMON_FIND_H

#include "base/error.h"
#include "catalog/catalog.h"

#include <limits.h>
#include <stdbool.h>

struct found {
    char *directory; /* absolute and real; contains the checkpoint's files */
    bool is_directory; /* the path is `directory` itself */
    char name[NAME_MAX + 1]; /* else the last component of the path */
    struct catalog *catalog; /* of the directory */
    struct source_dir *root;
    struct listing *listing;
    const struct group *group;
    struct single_file *single; /* owns `group` if the listing does not; else NULL */
    bool one_file; /* the path selects only the shard `name` of the group */
    struct checkpoint *checkpoint; /* NULL before find_read_headers() */
};

/* Ignores a problem; for the problem watch of a catalog. */
void find_ignore_problem(void *arg, const char *directory, const char *name, const char *text);

/*
 * Resolves a path without reading headers. It may be
 *   a directory that contains one checkpoint
 *   DIRECTORY/STEM, if the directory contains several
 *   the index file of a checkpoint
 *   a safetensors file, which is then selected without the other shards
 * `options` are those of the catalog, except for the source. On an error `reason` is set. Call
 * find_close() in any case.
 */
errint_t find_checkpoint(const char *path, const struct catalog_options *options,
                         struct found *found, struct reason *reason);

/* Reads the headers, and checks that the shards that the path selects are valid. -ENOMEM; -EBADMSG:
 * `reason` names the invalid shard and the rule, or what is wrong with the checkpoint. */
errint_t find_read_headers(struct found *found, struct reason *reason);

/* Fails if weights that the user may mean are lost: see group_lost_rival(). Without a group, any
 * lost name counts. -EBADMSG. */
errint_t find_check_lost(const struct found *found, struct reason *reason);

void find_close(struct found *found);

bool find_group_has_member(const struct group *group, const char *name);

/* Returns whether the name marks an unfinished download: by the Hugging Face tools, by aria2 or, if
 * it is one of weights, by a browser. */
bool find_is_unfinished_download(const char *name);

#endif
