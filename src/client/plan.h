/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order and in which pieces the requests of a call are read: sorted by file and offset,
 * joined across tensors where they are at most a block apart, and cut into spans of about
 * span_bytes. Guarded by its owner's lock.
 */
#ifndef FSTFS_CLIENT_PLAN_H
#define FSTFS_CLIENT_PLAN_H

#include "client/checkpoint.h"
#include "client/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A span is this much longer rather than leave a shorter one. */
#define SPAN_SLACK (56 * 1024)

/* One request. */
struct plan_item {
    struct strided_slice slice;
    struct tensor_source *source;
    uint64_t offset; /* of the tensor in the source */
    uint64_t end; /* in the source, of the last byte of the slice */
    char *to;
    uint64_t room; /* of a device: bytes from `to` to the end of its allocation */
    uint64_t next; /* index of the next range of the slice */
    size_t request; /* index of the request */
};

/* Bytes [start, end) of a source, which are read at once. */
struct span {
    struct tensor_source *source;
    uint64_t start, end;
    size_t first, last; /* items [first, last) may have bytes in it */
};

struct read_plan {
    struct plan_item *items; /* sorted by source, then offset */
    size_t count;
    uint64_t span_bytes; /* of a span, without the slack */
    /* Found and not yet returned: bytes [start, end) of `source`; equal: none. */
    struct tensor_source *source;
    uint64_t start, end;
    size_t low; /* the first item that may have bytes in them */
    size_t group; /* the first item that may have more ranges */
};

/* Sorts the items, which are complete. */
void plan_sort(struct read_plan *plan);

/* The next span. False: there are no more. */
bool plan_next_span(struct read_plan *plan, struct span *span);

/* The offset at which reading of a span begins: a multiple of BLOCK_SIZE. */
static inline uint64_t
span_base(const struct span *span)
{
    return block_down(span->start);
}

/*
 * Where the span can be read to without a copy: it consists of whole blocks of one run of one item,
 * and memory and file have the same alignment to BLOCK_SIZE. NULL: it must be copied. A span is
 * never read so in part, because the rest would be another small read.
 */
char *span_memory(const struct read_plan *plan, const struct span *span);

/* `bytes` are `length` bytes at `offset` of the span's source. Copies them to where the items want
 * them, in host memory; returns how many bytes that were. */
uint64_t span_copy(const struct read_plan *plan, const struct span *span, uint64_t offset,
                   const char *bytes, uint64_t length);

#endif
