/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strided slice of a tensor: a start, stop and step for each dimension, as in NumPy's basic
 * indexing. Maps the bytes of the slice to their offsets in the tensor. Pure functions.
 *
 * The bytes are runs that repeat at strides, in nested levels. A slice of columns has a run for
 * each row. Only strided_slice_copy() takes time in proportion to the number of runs, and no
 * function takes memory in proportion to it.
 *
 * A "packed" offset is an offset in the contiguous result, in row-major order.
 */
#ifndef FSTFS_CLIENT_SLICE_H
#define FSTFS_CLIENT_SLICE_H

#include "base/error.h"
#include "fstfs.h"
#include "io/block.h"

#include <stdint.h>

/* A repetition of the next level, or of the run. */
struct slice_level {
    uint64_t count; /* over 1 */
    uint64_t step; /* bytes between starts, in the tensor */
    uint64_t packed; /* bytes between starts, packed */
    uint64_t span; /* bytes in the tensor from the first to the last byte of one repetition */
};

struct strided_slice {
    uint64_t start; /* of the first run, in the tensor */
    uint64_t run; /* bytes of each run */
    uint64_t size; /* bytes of all runs; 0: empty, other members are undefined */
    struct slice_level *levels; /* outermost first; malloc'ed */
    unsigned level_count; /* 0: one run */
    /* Ranges to read: `range_count` of `range` bytes each. A range joins runs that are at most a
     * block apart. The first `range_levels` levels repeat it. */
    unsigned range_levels;
    uint64_t range_count, range;
};

/* Errors of fstfs_request_size(), with fail(). strided_slice_free() frees the slice. */
errint_t strided_slice_make(const struct fstfs_request *request, struct strided_slice *slice);
void strided_slice_free(struct strided_slice *slice);

/* The offset in the tensor of range `index`. Ranges are in ascending order. */
uint64_t strided_slice_range(const struct strided_slice *slice, uint64_t index);

/* `bytes` are bytes [from, from + length) of the tensor. Copies those of the slice to their packed
 * offsets in `to`; returns their number. */
uint64_t strided_slice_copy(const struct strided_slice *slice, uint64_t from, const char *bytes,
                            uint64_t length, char *to);

/* The number of bytes of the slice among the first `offset` bytes of the tensor: the packed offset
 * of the next one. */
uint64_t strided_slice_before(const struct strided_slice *slice, uint64_t offset);

#endif
