/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can keep a mount from being made, and what the user can do about it: both paths and the
 * device before the mount, and what libfuse and fusermount3 print when it fails. For a process
 * with one thread.
 */
#ifndef FSTFS_FUSE_PREFLIGHT_H
#define FSTFS_FUSE_PREFLIGHT_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>

/* One line to standard error. What is in it is quoted here. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The real path of an argument, to be freed. NULL: it is no directory, or cannot be reached, and
 * that was complained of. */
char *preflight_source(const char *path);
char *preflight_mountpoint(const char *path);

/* Whether `source` can be mounted on `mountpoint`, both real paths; else it was complained of.
 * The mount point's own file system is asked for nothing where that may be a dead FUSE mount. */
bool preflight_check(const char *source, const char *mountpoint);

/* Complains of a mount that libfuse could not make. `printed`: by it and by fusermount3. */
void preflight_explain(const char *mountpoint, struct buffer *printed);

#endif
