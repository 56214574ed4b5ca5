/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FSTFS_FUSE_ABORT_H
#define FSTFS_FUSE_ABORT_H

#include <sys/types.h>

/*
 * Aborts the connection of the mount at `mountpoint`, whose st_dev is `device`: every caller
 * that waits for it gets an error, and the mount stays, as a dead one. Does nothing where another
 * mount is there. Needs fusectl at /sys/fs/fuse/connections and the mounting user's ID, or root.
 * Does not wait for the daemon.
 */
void connection_abort(const char *mountpoint, dev_t device);

#endif
