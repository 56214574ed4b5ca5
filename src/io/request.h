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

#include "base/extent.h"
#include "io/chunk_cache.h"
#include "io/engine.h"
#include "io/io.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* Up to this many iovecs are kept on the stack. */
#define STACK_IOVECS 16

/* A part of one extent. */
struct extent_part {
    const struct extent *extent;
    uint64_t offset; /* in the backing or blob */
    size_t length;
};

struct pin {
    struct chunk *chunk;
    struct request *request;
    struct pin *next; /* of chunk->waiters */
    bool is_first; /* the chunk was made for this request */
    bool waited; /* the chunk was not ready */
    uint64_t delivered; /* bytes of the chunk in the answer */
};

struct request {
    struct fifo_node node; /* in the queue of its lane */
    struct request *next; /* in a list of completed requests */
    struct memory_lane *lane;
    struct extent_list *list; /* counted */
    uint64_t offset; /* in the list */
    size_t length;
    io_done done;
    void *arg;
    uint64_t started; /* monotonic_ns() */
    unsigned pending; /* pinned chunks that are not ready */
    unsigned attempts; /* repeated because of a chunk larger than the request needed */
    errint_t result;
    struct pin *pins; /* in the order of the bytes */
    unsigned count;
};

/* Iterates over the parts of a request, each with its pins. Start with all zero but `request`. */
struct request_cursor {
    const struct request *request;
    uint64_t offset; /* of the part in the list */
    struct extent_part part;
    struct pin *pins; /* of the part; a part of a blob has none */
    unsigned count;
};

/* Moves to the next part, at first to the first. False: there is none. */
bool request_cursor_next(struct request_cursor *cursor);

/* The part of `extent` from byte `offset` of the list on, at most `length` bytes. */
struct extent_part extent_part_at(const struct extent *extent, uint64_t offset, size_t length);

/* Starts a request, which ends by itself and is freed: takes ownership. The backings have been
 * attached to the cache. Any thread, without the lock. */
void request_start(struct io *io, struct request *request);

/* Counts the answer of a request and calls its `done`. Without the lock. */
void request_answer(struct io *io, const struct request *request, errint_t result,
                    const struct iovec *vectors, int count);

/* cache->read_done: completes the requests that waited for the chunk. */
void request_chunk_read(struct storage_read *read, errint_t result);

#endif
