/* SPDX-License-Identifier: Apache-2.0 */
/* The set of input files, by inode: none of them may be replaced. */
#ifndef FSTFS_PACK_SOURCES_H
#define FSTFS_PACK_SOURCES_H

#include "base/error.h"
#include "common/inode_map.h"

#include <stdbool.h>

/* All zero is an empty set. */
struct sources {
    struct inode_map inodes; /* numbers are indexes into `paths`, plus 1 */
    char **paths;
    size_t count;
    bool has_acl; /* one of the files has or may have an ACL (acl(5)) */
};

/* Adds an input file and, if it is on a mount of fstfs, the source files that contain its bytes.
 * -ENOMEM. */
errint_t sources_add(struct sources *sources, const char *path);

/* Returns the input path that led to the file `name` in an open directory, following links; NULL if
 * the file is not an input. */
const char *sources_find_in(const struct sources *sources, int directory, const char *name);

void sources_free(struct sources *sources);

#endif
