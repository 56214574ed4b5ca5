/* SPDX-License-Identifier: Apache-2.0 */
/* The mount table of this process. */
#ifndef FSTFS_COMMON_MOUNTS_H
#define FSTFS_COMMON_MOUNTS_H

#include "base/mountinfo.h"

/* Finds the mount that `path`, absolute and real, is on. Returns false if it is not in the table.
 * Call mountinfo_free() in any case. */
bool mounts_find(const char *path, struct mountinfo *mount);

/* Returns whether `point` is a mount point. */
bool mounts_is_point(const char *point);

#endif
