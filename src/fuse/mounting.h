/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a session is mounted: libfuse's options, its messages, and signals. For a process with one
 * thread.
 */
#ifndef FSTFS_FUSE_MOUNTING_H
#define FSTFS_FUSE_MOUNTING_H

#include "fuse/session.h"

struct fuse_lowlevel_ops;
struct fuse_session;

/* Makes libfuse's session and mounts it; signals are then caught. What went wrong was printed to
 * standard error, with what to do about it. */
errint_t mounting_mount(const struct session_options *options,
                        const struct fuse_lowlevel_ops *operations, size_t size, void *userdata,
                        struct fuse_session **fuse);

#endif
