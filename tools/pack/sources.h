/* SPDX-License-Identifier: Apache-2.0 */
/* The set of input files, by inode: none of them may be replaced. */
#ifndef FSTFS_PACK_SOURCES_H
#define FSTFS_PACK_SOURCES_H

#include "base/error.h"
#include "common/inode_map.h"

/* All zero is an empty set. */
struct sources {
    struct inode_map inodes; /* numbers are indexes into `paths`, plus 1 */
    char **paths;
    size_t count;
};

/* Adds an input file and, if it is on a mount of fstfs, the source files that it consists of.
 * -ENOMEM. */
errint_t sources_add(struct sources *sources, const char *path);

/* Returns the path that the file `name` in an open directory was added with, whatever links lead
 * to it; NULL if it is not an input. */
const char *sources_find_in(const struct sources *sources, int directory, const char *name);

void sources_free(struct sources *sources);

#endif
