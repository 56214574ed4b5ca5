/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Permission checks for callers of the mount.
 *
 * If other users can access the mount, each lookup, listing, access(2), and request for xattrs or
 * content first asks the kernel whether its caller has the same access to the source now: by path,
 * with the credentials that FUSE reports. The path must lead to the file that the view knows.
 * Results are not cached.
 */
#ifndef FSTFS_VIEW_PERMISSION_H
#define FSTFS_VIEW_PERMISSION_H

#include "base/error.h"
#include "base/extent.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The caller of a request, as FUSE reports it. */
struct caller {
    uid_t uid;
    gid_t gid;
    pid_t pid; /* of the thread; 0: not visible in the daemon's PID namespace */
};

/* One path of the source. */
struct permission_query {
    const char *path; /* relative to the source; "" is the source itself */
    int mask; /* R_OK, X_OK or both; 0: search permission for the directories above it */
    uint64_t device, inode; /* expected at the path; 0: any */
    /* Expected change time, which distinguishes a file from a later file with the same inode
     * number, and a directory from the same one with other names. All zero: any. */
    struct timespec changed;
};

/*
 * Checks `count` paths, at least 1. 0: the caller has all these permissions. -EACCES: the caller
 * lacks one. -ESTALE: a path leads to another file now, or to none. Any thread; waits for storage.
 */
typedef errint_t permission_check(const struct caller *caller,
                                  const struct permission_query *queries, size_t count);

#endif
