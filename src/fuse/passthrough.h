/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: the kernel reads files of the source that the mount shows unchanged
 * (shards as they are, side files) by itself, without a request to the daemon.
 *
 * It is off unless asked for. Such a file is read at the speed of its own file
 * system, and has none of what the daemon does for the others: nothing is read
 * ahead by plan, and a file rewritten in place is not noticed by who has it open,
 * who may then read some of both. A file that is replaced stays whole.
 *
 * It needs root, Linux 6.9 and libfuse 3.17; whatever refuses, the daemon reads the
 * file as ever, and status says why. O_DIRECT readers always come to the daemon.
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

/* At INIT: asks the kernel for it. `fuse` must outlive every passthrough_close(). */
void passthrough_init(struct passthrough *passthrough, struct fuse_session *fuse,
                      struct fuse_conn_info *conn);

/* After INIT: why it is off although it was asked for; NULL: neither. The kernel may refuse it for
 * another reason later: status. */
const char *passthrough_refusal(const struct passthrough *passthrough);

/* One file that is open, as often as it is. */
struct passthrough_file;

/*
 * Completes the answer `fi` to an open of the file `id`, whose bytes are `list`. On 0
 * *file is to be handed to passthrough_close() when this open is over; NULL: no
 * need. -ENOMEM is the only error. Any thread; may wait for storage.
 */
errint_t passthrough_open(struct passthrough *passthrough, fuse_ino_t id,
                          const struct extent_list *list, struct fuse_file_info *fi,
                          struct passthrough_file **file);
void passthrough_close(struct passthrough *passthrough, struct passthrough_file *file);

/* Appends one JSON object for status. Any thread. */
void passthrough_status(struct passthrough *passthrough, struct buffer *out);

#endif
