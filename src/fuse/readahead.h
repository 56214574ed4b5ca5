/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's readahead on this mount. FUSE starts with 128 KiB; the reply to INIT can only lower
 * it, and root can raise it in sysfs.
 */
#ifndef FSTFS_FUSE_READAHEAD_H
#define FSTFS_FUSE_READAHEAD_H

#include "base/error.h"

#include <stdint.h>
#include <sys/types.h>

/* Sets it to `bytes` (whole KiB). Call it between the mount and INIT, whose reply must not lower it
 * again. -EACCES: not root. */
errint_t readahead_set(dev_t device, uint64_t bytes);

#endif
