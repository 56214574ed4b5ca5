/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks for everything that can prevent the mount, and advises the user: both paths, the device
 * and the limit of the stack before the mount, and the messages of libfuse and fusermount3 after a
 * failure. Requires a process with one thread.
 */
#ifndef FSTFS_FUSE_PREFLIGHT_H
#define FSTFS_FUSE_PREFLIGHT_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>

/* Prints one line to standard error, with control characters escaped. */
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Return the real path of an argument, malloc'ed, or NULL after printing an error. The source must
 * be a readable directory. */
char *preflight_source(const char *path);
char *preflight_mountpoint(const char *path);

/* Whether `source` can be mounted on `mountpoint`, both real paths; if not, an error was printed.
 * If a FUSE file system is mounted on `mountpoint`, which may be dead, it is not accessed. */
bool preflight_check(const char *source, const char *mountpoint);

/* Prints why libfuse could not mount, with advice. `printed`: its messages and fusermount3's. */
void preflight_explain(const char *mountpoint, struct buffer *printed);

#endif
