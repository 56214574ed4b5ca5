/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: the kernel reads files that the mount shows unchanged (original shards, side files)
 * directly from the source, without requests to the daemon.
 *
 * Off by default, because with passthrough the daemon neither prefetches nor notices that an open
 * file is rewritten in place: its readers may get a mixture of both versions. If it is replaced by
 * rename, they still get the old version.
 *
 * Needs root, Linux 6.9 and libfuse 3.17. If anything refuses it, the daemon reads the file, and
 * .fstfs/status gives the reason. O_DIRECT reads always go to the daemon.
 */
#ifndef FSTFS_FUSE_PASSTHROUGH_H
#define FSTFS_FUSE_PASSTHROUGH_H

#include "base/buffer.h"
#include "base/extent.h"

#include <fuse_lowlevel.h>

struct passthrough;

/* Before the sandbox is entered. NULL: out of memory. */
struct passthrough *passthrough_new(bool wanted);
void passthrough_free(struct passthrough *passthrough); /* NULL is allowed */

/* Requests it at INIT. `fuse` must outlive every passthrough_close(). */
void passthrough_init(struct passthrough *passthrough, struct fuse_session *fuse,
                      struct fuse_conn_info *conn);

/* After INIT: returns why it is off although it is wanted, or NULL. The kernel may refuse single
 * files later: see passthrough_status(). */
const char *passthrough_refusal(const struct passthrough *passthrough);

struct passthrough_file;

/* Completes `fi`, the answer to an open of file `id` with the content `list`. *file: pass it to
 * passthrough_close() at the release, unless it is NULL. -ENOMEM. Any thread; may wait for
 * storage. */
errint_t passthrough_open(struct passthrough *passthrough, fuse_ino_t id,
                          const struct extent_list *list, struct fuse_file_info *fi,
                          struct passthrough_file **file);
void passthrough_close(struct passthrough *passthrough, struct passthrough_file *file);

/* Appends one JSON object for status. Any thread. */
void passthrough_status(struct passthrough *passthrough, struct buffer *out);

#endif
