/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read of an extent list by way of the chunk cache.
 *
 * A request pins the chunks it needs: cached ones, those already in flight, and new ones for the
 * rest. It is answered from their buffers when the last of them is ready. Several requests may wait
 * for one chunk, so bytes that are in flight are never read twice.
 *
 * A request gets the buffers for all its new chunks or none: then it is queued until memory is
 * free, so that two requests cannot block each other. Requests for a file system are queued apart
 * from others, and their chunks may have a share of the budget only (struct memory_lane), so that
 * storage that does not answer leaves memory for the others. A request that is alone in its lane
 * gets its buffers even beyond the budget.
 */
#ifndef FSTFS_IO_REQUEST_H
#define FSTFS_IO_REQUEST_H

#include "io/engine.h"
#include "io/request_cursor.h"

#include <sys/uio.h>

/* Up to this many iovecs are kept on the stack. */
#define STACK_IOVECS 16

/* Starts a request, which ends by itself and is freed: takes ownership. The backings have been
 * attached to the cache. Any thread, without the lock. */
void request_start(struct io *io, struct request *request);

/* Counts the answer of a request and calls its `done`. Without the lock. */
void request_answer(struct io *io, const struct request *request, errint_t result,
                    const struct iovec *vectors, int count);

/* cache->read_done: completes the requests that waited for the chunk. */
void request_chunk_read(struct storage_read *read, errint_t result);

#endif
