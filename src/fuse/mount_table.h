/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks up mounts in /proc/self/mountinfo, because this accesses no file system. The daemon must
 * not stat its own mount, since the call would wait for the daemon itself; and stat of a dead mount
 * returns cached attributes.
 */
#ifndef FSTFS_FUSE_MOUNT_TABLE_H
#define FSTFS_FUSE_MOUNT_TABLE_H

#include "base/error.h"
#include "base/mountinfo.h"

#include <stdbool.h>

/* A mount, wherever it is moved. Both numbers are reused after it. */
struct mount_identity {
    int id; /* -1: it was unmounted before it was looked up */
    dev_t device; /* 0: not known */
};

/* Returns the identity of what is mounted last on `mountpoint` (absolute, real). -ENOENT: nothing
 * is mounted there; the ID is then -1. */
errint_t mount_identify(const char *mountpoint, struct mount_identity *mount);

struct mount_place {
    char *path; /* where it is mounted now */
    int fd; /* O_PATH, of its root; -1: `path` leads to another mount, or nowhere */
    bool has_mounts; /* others are mounted on it or inside it */
};

/* Finds a mount of this namespace; free `place` with mount_place_free(). -ENOENT: it is no longer
 * mounted. -ENODATA: not known. */
errint_t mount_locate(const struct mount_identity *mount, struct mount_place *place);
void mount_place_free(struct mount_place *place);

/* A FUSE mount; its daemon may have died. */
struct fuse_mount {
    char *mountpoint; /* freed by the caller; NULL: none was found */
    struct fuse_owner owner;
};

/* Finds the FUSE mount that contains `path` or is mounted on it. Fails with an error of open(2), or
 * if the table cannot be read. */
errint_t mount_find_fuse(const char *path, struct fuse_mount *found);

/*
 * Finds a mount of fstfs that shows the directory of `path` and is reachable from `source` (both
 * absolute and real): directly, because `source` is on the mount or contains it, or through other
 * such mounts. Returns its mount point and its source, both malloc'ed, or NULL if there is none. A
 * mount with -o fsname is not found.
 */
errint_t mount_find_loop(const char *source, const char *path, char **mountpoint, char **shown);

#endif
