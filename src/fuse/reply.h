/* SPDX-License-Identifier: Apache-2.0 */
/* Replies to the kernel's requests. */
#ifndef FSTFS_FUSE_REPLY_H
#define FSTFS_FUSE_REPLY_H

#include "base/error.h"

#include <errno.h>
#include <fuse_lowlevel.h>

/* Replaces by EIO the errors of the source's file system that have another meaning if this mount
 * returns them: ENOTCONN means that the mount's daemon has died, so that a supervisor would unmount
 * a healthy mount; EINTR means that a signal has interrupted the caller, which would retry. */
static inline void
reply_error(fuse_req_t req, errint_t error)
{
    fuse_reply_err(req, error == -ENOTCONN || error == -EINTR ? EIO : -error);
}

#endif
