/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box of a tensor: which of its bytes are wanted, and where they go.
 *
 * A box is runs of bytes that repeat at strides, in nested levels. Nothing here
 * takes memory or time by the number of its runs until they are copied: a slice by
 * columns has as many as the tensor has rows. Pure functions; no threads.
 */
#ifndef FSTFS_CLIENT_BOX_H
#define FSTFS_CLIENT_BOX_H

#include "base/error.h"
#include "fstfs.h"
#include "io/block.h"

#include <stddef.h>
#include <stdint.h>

struct box_level {
    uint64_t count; /* of what is below, over 1 */
    uint64_t step; /* from one to the next, in the tensor */
    uint64_t packed; /* the same where the bytes go */
    uint64_t span; /* in the tensor, from the first to the last byte of one below */
};

struct box {
    uint64_t start; /* of the first run, in the tensor */
    uint64_t run; /* bytes of each */
    uint64_t size; /* of all runs; 0: nothing is wanted, and the rest says nothing */
    struct box_level *levels; /* outermost first; malloc'ed */
    unsigned level_count; /* 0: one run */
    /* How it is read: in `range_count` ranges of `range` bytes, which hold the runs
     * that are not more than a block apart; the first `range_levels` repeat them. */
    unsigned range_levels;
    uint64_t range_count, range;
};

/* -EINVAL, -ENOTSUP, as fstfs_request_size() says; -ENOMEM. */
errint_t box_make(const struct fstfs_request *request, struct box *box);
void box_free(struct box *box);

/* Where in the tensor range `place` starts; ranges rise. */
uint64_t box_range(const struct box *box, uint64_t place);

/* `bytes` are bytes [from, from + length) of the tensor: copies what the box wants
 * of them to where it goes in `to`, and gives how much that was. */
uint64_t box_copy(const struct box *box, uint64_t from, const char *bytes, uint64_t length,
                  char *to);

/* How many bytes the box wants of the tensor's first `offset`. They go, in their order,
 * to the first of where its bytes go. */
uint64_t box_before(const struct box *box, uint64_t offset);

/* As box_copy(), but `to` is where the first of those bytes goes. */
uint64_t box_pack(const struct box *box, uint64_t from, const char *bytes, uint64_t length,
                  char *to);

#endif
