/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads in flight: from the kernel's request to the engine's answer.
 *
 * The kernel has one queue of background requests (readahead, direct I/O) for all files of a mount.
 * While it is full, further ones wait in the kernel, whatever file they read. To limit how long
 * storage that hangs can fill it, reads are counted by file system, in lanes (io/lanes.h), from
 * the kernel's request to the engine's answer.
 *
 * While three quarters of the queue are in use, a read that has waited for READS_GRACE_SECONDS is
 * answered with EIO if its lane exceeds its share and hangs: for READS_HANG_SECONDS, the engine has
 * not answered enough late reads of the lane, which have waited for READS_LATE_SECONDS. One of
 * READS_PROGRESS reads of the lane is enough; a lane that is answered within ten minutes has more.
 * So storage that is only slow does not hang, and storage of which only a part hangs does. The
 * engine continues the reads that were answered, and its answers are discarded. While it has a
 * queue full of reads of a lane that hangs, new ones fail at once.
 *
 * When a program reads bytes whose readahead has failed, the kernel requests each page again.
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

enum {
    READS_LATE_SECONDS = 5,
    READS_HANG_SECONDS = 10,
    READS_GRACE_SECONDS = READS_LATE_SECONDS + READS_HANG_SECONDS,
    READS_PROGRESS = 120,
};

struct reads;

/* Returns the size of the kernel's queue that a mount may request without CAP_SYS_ADMIN. The fuse
 * module must be loaded, and the sandbox not be entered yet. */
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
