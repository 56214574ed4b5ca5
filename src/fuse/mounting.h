/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes, unmounts and aborts the FUSE mount: libfuse's options, its messages, signal handlers.
 */
#ifndef FSTFS_FUSE_MOUNTING_H
#define FSTFS_FUSE_MOUNTING_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

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

/* Unmounts and restores the signal handlers. */
void mount_end(struct fuse_session *fuse);

/*
 * Aborts the connection of the mount at `mountpoint` whose st_dev is `device`: all callers get an
 * error, and a dead mount remains. Does nothing if another mount is there. Requires fusectl at
 * /sys/fs/fuse/connections and the mounting user's ID, or root. Does not wait for the daemon.
 */
void mount_abort(const char *mountpoint, dev_t device);

#endif
