/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of reads of one call: requests are sorted by file and offset, joined across tensors if
 * they are at most a block apart, and cut into spans of about span_bytes. Guarded by its owner's
 * lock.
 */
#ifndef FSTFS_CLIENT_PLAN_H
#define FSTFS_CLIENT_PLAN_H

#include "client/checkpoint.h"
#include "client/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A span may be longer by this many bytes, so that no shorter span remains. */
#define SPAN_SLACK (56 * 1024)

/* One request. */
struct plan_item {
    struct strided_slice slice;
    struct tensor_source *source;
    uint64_t offset; /* of the tensor in the source */
    uint64_t end; /* offset in the source of the end of the slice */
    char *to;
    uint64_t room; /* device memory: bytes from `to` to the end of its allocation */
    uint64_t next; /* index of the next range of the slice */
    size_t request; /* index of the request */
};

/* Bytes [start, end) of a source, read by one read. */
struct span {
    struct tensor_source *source;
    uint64_t start, end;
    size_t first, last; /* items [first, last) may have bytes in it */
};

struct read_plan {
    struct plan_item *items; /* sorted by source, then offset */
    size_t count;
    uint64_t span_bytes; /* length of a span, without the slack */
    /* Bytes [start, end) of `source` that no returned span contains yet; equal: none. */
    struct tensor_source *source;
    uint64_t start, end;
    size_t low; /* the first item that may have bytes in [start, end) */
    size_t group; /* the first of the items that overlap and may have more ranges */
};

/* Sorts the items. Must be called once, after all are added. */
void plan_sort(struct read_plan *plan);

/* Sets the next span. False: there are no more. */
bool plan_next_span(struct read_plan *plan, struct span *span);

/* The offset at which reading of a span begins: a multiple of BLOCK_SIZE. */
static inline uint64_t
span_base(const struct span *span)
{
    return block_down(span->start);
}

/*
 * The memory that the whole span can be read into without a copy. NULL: it must be copied. Not NULL
 * only if the span is whole blocks of one run of one item, no other item has bytes in it, and the
 * address and the offset in the file are equal modulo BLOCK_SIZE.
 */
char *span_memory(const struct read_plan *plan, const struct span *span);

/* `bytes` are `length` bytes at `offset` of the span's source. Copies them to the host memory of
 * the items; returns the number of bytes copied. */
uint64_t span_copy(const struct read_plan *plan, const struct span *span, uint64_t offset,
                   const char *bytes, uint64_t length);

#endif
