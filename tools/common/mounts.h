/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of mounts, as this process sees it.
 */
#ifndef FSTFS_COMMON_MOUNTS_H
#define FSTFS_COMMON_MOUNTS_H

#include <limits.h>
#include <stdbool.h>

struct mount_entry {
    char point[PATH_MAX];
    char type[64]; /* "ext4", "fuse.fstfs" */
    char device[PATH_MAX];
};

/* The mount that `path`, absolute and real, lies on. False: not known. */
bool mounts_find(const char *path, struct mount_entry *entry);

/* Whether something is mounted at `point` itself. */
bool mounts_is_point(const char *point);

#endif
