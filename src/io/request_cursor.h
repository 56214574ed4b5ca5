/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a request (io/request.h), and an iterator over the parts of extents that it reads.
 */
#ifndef FSTFS_IO_REQUEST_CURSOR_H
#define FSTFS_IO_REQUEST_CURSOR_H

#include "base/error.h"
#include "base/extent.h"
#include "base/fifo.h"
#include "io/chunk_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A part of one extent. */
struct extent_part {
    const struct extent *extent;
    uint64_t offset; /* in the backing or blob */
    size_t length;
};

/* Guarded by the lock of the cache, as is struct request until it completes. */
struct pin {
    struct chunk *chunk;
    struct request *request;
    struct pin *next; /* of chunk->waiters */
    bool is_first; /* the chunk was made for this request */
    bool waited; /* the chunk was not ready */
    uint64_t delivered; /* bytes of the chunk in the answer */
};

struct io_answer;

struct request {
    struct fifo_node node; /* in the queue of its lane */
    struct request *next; /* in a list of completed requests */
    struct memory_lane *lane;
    struct extent_list *list; /* the request holds a reference */
    uint64_t offset; /* in the list */
    size_t length;
    void (*done)(void *arg, const struct io_answer *answer); /* an io_done */
    void *arg;
    uint64_t started; /* monotonic_ns() */
    uint64_t waiting_since; /* monotonic_ns() when it last began to wait for its chunks */
    uint64_t waited; /* nanoseconds; see struct io_answer */
    unsigned pending; /* pinned chunks that are not ready */
    unsigned attempts; /* retries after errors outside of the requested blocks */
    errint_t result;
    struct pin *pins; /* in the order of the bytes */
    unsigned count;
};

/* Iterates over the parts of a request, each with its pins. All zero at first, except `request`. */
struct request_cursor {
    const struct request *request;
    uint64_t offset; /* of the part in the list */
    struct extent_part part;
    struct pin *pins; /* of the part; a part of a blob has none */
    unsigned count;
};

/* Moves to the first or next part. False: there is none. */
bool request_cursor_next(struct request_cursor *cursor);

/* The part of `extent` that starts at byte `offset` of the list; at most `length` bytes. */
struct extent_part extent_part_at(const struct extent *extent, uint64_t offset, size_t length);

#endif
