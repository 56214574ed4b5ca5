/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strided slice of a tensor: which of its bytes are read, and where they go. One slice of each
 * dimension, as torch.narrow() or numpy's basic indexing take it.
 *
 * The bytes are runs that repeat at strides, in nested levels. Memory and time do not depend on the
 * number of runs until bytes are copied: a slice of columns has a run for each row. Pure functions.
 *
 * "Packed" offsets count the bytes of the slice alone, in row order.
 */
#ifndef FSTFS_CLIENT_SLICE_H
#define FSTFS_CLIENT_SLICE_H

#include "base/error.h"
#include "fstfs.h"
#include "io/block.h"

#include <stddef.h>
#include <stdint.h>

/* A repetition of the next level, or of the run. */
struct slice_level {
    uint64_t count; /* over 1 */
    uint64_t step; /* bytes between starts, in the tensor */
    uint64_t packed; /* bytes between starts, packed */
    uint64_t span; /* bytes in the tensor from the first to the last of one repetition */
};

struct strided_slice {
    uint64_t start; /* of the first run, in the tensor */
    uint64_t run; /* bytes of each run */
    uint64_t size; /* bytes of all runs; 0: empty, and nothing else is defined */
    struct slice_level *levels; /* outermost first; malloc'ed */
    unsigned level_count; /* 0: one run */
    /* What is read: `range_count` ranges of `range` bytes each. A range joins runs that are at most
     * a block apart. The first `range_levels` levels repeat it. */
    unsigned range_levels;
    uint64_t range_count, range;
};

/* Errors as fstfs_request_size(), set by fail(), or -ENOMEM. */
errint_t strided_slice_make(const struct fstfs_request *request, struct strided_slice *slice);
void strided_slice_free(struct strided_slice *slice);

/* The offset in the tensor of range `index`. Ranges are in rising order. */
uint64_t strided_slice_range(const struct strided_slice *slice, uint64_t index);

/* `bytes` are bytes [from, from + length) of the tensor. Copies those of the slice to their packed
 * offsets in `to`; returns how many. */
uint64_t strided_slice_copy(const struct strided_slice *slice, uint64_t from, const char *bytes,
                            uint64_t length, char *to);

/* The number of bytes of the slice among the first `offset` bytes of the tensor: the packed offset
 * of the next one. */
uint64_t strided_slice_before(const struct strided_slice *slice, uint64_t offset);

/* As strided_slice_copy(), but `to` is for the first byte that is copied. */
uint64_t strided_slice_pack(const struct strided_slice *slice, uint64_t from, const char *bytes,
                            uint64_t length, char *to);

#endif
