/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads in flight: from the kernel's request to the engine's answer.
 *
 * The kernel has one queue of background requests (readahead and asynchronous direct I/O) for all
 * files of a mount. While it is full, further ones wait in the kernel, whatever file they read. So
 * that storage that does not answer cannot fill it for long, reads are counted by file system, in
 * lanes (io/lanes.h). Once three quarters of the queue are in use, the oldest reads of each lane
 * that exceeds its share are answered with EIO, if they have waited for READS_GRACE_MS. The engine
 * continues them, and its answers are discarded. While it has as many reads of the lane as the
 * queue has room for, further ones fail at once.
 *
 * The kernel repeats a readahead that has failed when a program reads its bytes, so only reads that
 * fail at once, and direct I/O, give programs an error. Reads that programs wait for are counted
 * too, because the daemon cannot distinguish them.
 */
#ifndef FSTFS_FUSE_READS_H
#define FSTFS_FUSE_READS_H

#include "base/buffer.h"
#include "fuse/handle.h"
#include "fuse/loads.h"
#include "io/io.h"

#include <fuse_lowlevel.h>
#include <stddef.h>
#include <stdint.h>

enum { READS_GRACE_MS = 10000 };

struct reads;

/* The size of the kernel's queue that a mount can request without CAP_SYS_ADMIN. Must be called
 * after a FUSE file system was mounted, and before the sandbox is entered. */
unsigned reads_queue_size(void);

/* Starts a thread. */
errint_t reads_new(struct io *io, struct loads *loads, unsigned queue_size, struct reads **reads);
/* The engine must have answered all reads. NULL is allowed. */
void reads_free(struct reads *reads);

/* Reads bytes [offset, offset + size) of an open file, which must contain them, and answers `req`.
 * Any thread; does not wait for storage. */
void reads_serve(struct reads *reads, fuse_req_t req, struct handle *handle, uint64_t offset,
                 size_t size);

/* Appends one JSON object. Any thread. */
void reads_status(struct reads *reads, struct buffer *out);

#endif
