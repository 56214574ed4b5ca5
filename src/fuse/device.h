/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device number of the mount.
 *
 * The daemon must never stat its own mount: it would wait for itself. The
 * kernel's list of mounts says the number without asking anybody.
 */
#ifndef FSTFS_FUSE_DEVICE_H
#define FSTFS_FUSE_DEVICE_H

#include "base/error.h"

#include <sys/types.h>

/* The device mounted last on `mountpoint` (absolute, real). -ENOENT. */
errint_t mount_device(const char *mountpoint, dev_t *device);

#endif
