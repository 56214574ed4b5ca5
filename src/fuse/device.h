/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel's list of mounts, /proc/self/mountinfo, has about mount points.
 *
 * The list asks no file system. The daemon must not stat its own mount, since it would
 * wait for itself; and stat of a mount whose daemon has died returns cached attributes.
 */
#ifndef FSTFS_FUSE_DEVICE_H
#define FSTFS_FUSE_DEVICE_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* The device mounted last on `mountpoint` (absolute, real). -ENOENT. */
errint_t mount_device(const char *mountpoint, dev_t *device);

/* A FUSE file system, alive or dead. */
struct fuse_mount {
    char *mountpoint; /* freed by the caller; NULL: there is none */
    uid_t user; /* who mounted it */
    bool allow_other; /* other users may enter */
};

/* The FUSE file system that `path` is in or the mount point of. An error if that cannot be
 * told: open(2)'s of the path, or that of the list. */
errint_t mount_find_fuse(const char *path, struct fuse_mount *found);

/*
 * Whether `path` lies in what a mount of fstfs shows to who reads `source` (both absolute and
 * real): one that `source` is on or holds, or that is reached through such a one. Then gives that
 * mount point and the source shown there, both malloc'ed; else NULL. A mount whose name in the
 * list is not its source (-o fsname) is not seen.
 */
errint_t mount_find_loop(const char *source, const char *path, char **mountpoint, char **shown);

#endif
