/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a caller of the mount may have what he asks for.
 *
 * Where other users than the mounting one may enter the mount, each request that
 * gives out names, attributes or content first asks the kernel whether its caller
 * could get the same from the source: by path, now, with the credentials that FUSE
 * reports. What is found at the path must be the file that the view knows, or the
 * answer would be about another one. Nothing of an answer is kept.
 */
#ifndef FSTFS_VIEW_PERMISSION_H
#define FSTFS_VIEW_PERMISSION_H

#include "base/error.h"
#include "base/extent.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Who makes a request, as FUSE reports it. */
struct caller {
    uid_t uid;
    gid_t gid;
    pid_t pid; /* of the thread; 0: not visible in the daemon's PID namespace */
};

/* One path of the source. */
struct permission_query {
    const char *path; /* relative to the source; "" is the source itself */
    int mask; /* R_OK, X_OK, both, or 0: it may be looked up */
    uint64_t device, inode; /* what must be there */
    /* The change time of a file, which tells it from a later one with the same inode number:
     * whoever may write to a directory can choose all else. All zero, of a directory: any. */
    struct timespec changed;
};

/*
 * 0 if the caller may have all of it. -EACCES: he may not. -ESTALE: a path leads to
 * another file by now, or to none. Any thread; waits on storage.
 */
typedef errint_t permission_check(const struct caller *caller,
                                  const struct permission_query *queries, size_t count);

#endif
