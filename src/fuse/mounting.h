/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes, unmounts and aborts the FUSE mount: libfuse's options, its messages, signal handlers.
 *
 * libfuse would unmount whatever is mounted at the path at that time, with all submounts. So this
 * file unmounts, and only the mount that it made.
 */
#ifndef FSTFS_FUSE_MOUNTING_H
#define FSTFS_FUSE_MOUNTING_H

#include "base/error.h"
#include "fuse/mount_table.h"

#include <stdbool.h>

struct fuse_lowlevel_ops;
struct fuse_session;

struct mount_parameters {
    const char *source, *mountpoint; /* absolute */
    const char *mount_options; /* of the user, joined by commas; or NULL */
    bool shared; /* allow_other or allow_root is one of them */
    bool debug;
};

/* Creates libfuse's session, mounts it and installs signal handlers. Requires a process with one
 * thread. On failure an error with advice has been printed to standard error. */
errint_t mount_new(const struct mount_parameters *parameters, const struct fuse_lowlevel_ops *ops,
                   void *userdata, struct fuse_session **fuse);

/* Restores the signal handlers. The connection must have been closed, or libfuse unmounts. */
void mount_end(struct fuse_session *fuse);

/*
 * Unmounts (lazily) a mount, wherever it has been moved. Returns 0 if it is not mounted any more.
 * -EBUSY: another file system is mounted on it or inside it, or no path leads to it; nothing is
 * unmounted then.
 */
errint_t mount_detach(const struct mount_identity *mount);

/*
 * Aborts the connection of a mount: all callers get an error, and a dead mount remains. Requires
 * fusectl at /sys/fs/fuse/connections and the ID of the mounting user, or CAP_SYS_ADMIN and a path
 * that leads to the root of the mount. Does not wait for the daemon.
 */
void mount_abort(const struct mount_identity *mount);

#endif
