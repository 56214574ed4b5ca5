/* SPDX-License-Identifier: Apache-2.0 */
/* The mount table of this process. */
#ifndef FSTFS_COMMON_MOUNTS_H
#define FSTFS_COMMON_MOUNTS_H

#include <limits.h>
#include <stdbool.h>

struct mount_entry {
    char point[PATH_MAX];
    char type[64]; /* "ext4", "fuse.fstfs" */
    char device[PATH_MAX];
};

/* Finds the mount that `path`, absolute and real, is on. Returns false if it is not in the table.
 */
bool mounts_find(const char *path, struct mount_entry *entry);

/* Returns whether `point` is a mount point. */
bool mounts_is_point(const char *point);

#endif
