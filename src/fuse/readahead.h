/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the kernel reads ahead of a program on this mount.
 *
 * FUSE starts with 128 KiB, whatever a program advises, and what the daemon says
 * at INIT can only lower it; root may raise it through the mount's bdi in sysfs.
 */
#ifndef FSTFS_FUSE_READAHEAD_H
#define FSTFS_FUSE_READAHEAD_H

#include "base/error.h"

#include <stdint.h>
#include <sys/types.h>

/* Sets it to `bytes` (whole KiB). To be called between mount and INIT, whose
 * reply must not lower it again. -EACCES where that is not allowed. */
errint_t readahead_set(dev_t device, uint64_t bytes);

#endif
