/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read of an extent list through the chunk cache.
 *
 * A request pins the chunks it needs: cached ones, those in flight, and new ones for the rest. It
 * is answered from their buffers when the last of them is ready. Several requests may wait for one
 * chunk, so bytes in flight are never read twice.
 *
 * A request gets the buffers for all its new chunks at once, or is queued for memory, so two
 * requests cannot block each other. Each file system has its own queue and a share of the budget
 * (struct memory_lane), so storage that does not answer leaves memory for other file systems. The
 * only active request of a lane gets its buffers even beyond the budget.
 */
#ifndef FSTFS_IO_REQUEST_H
#define FSTFS_IO_REQUEST_H

#include "io/answer.h"
#include "io/engine.h"
#include "io/request_cursor.h"

/* Up to this many iovecs are kept on the stack. */
#define STACK_IOVECS 16

/* Starts a request and takes ownership: it is freed once it is answered. Its backings must be
 * attached to the cache. Any thread, without the lock. */
void request_start(struct io *io, struct request *request);

/* Updates the counters and calls request->done. Without the lock. */
void request_answer(struct io *io, const struct request *request, const struct io_answer *answer);

/* cache->read_done: completes the requests that wait for the chunk. */
void request_chunk_read(struct storage_read *read, errint_t result);

#endif
