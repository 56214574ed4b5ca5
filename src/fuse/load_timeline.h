/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The throughput of a load over time, in LOAD_SLICES slices of equal duration. When a load outlasts
 * the last slice, pairs of slices are merged, which doubles their duration. An all-zero timeline is
 * empty. The caller locks.
 */
#ifndef FSTFS_FUSE_LOAD_TIMELINE_H
#define FSTFS_FUSE_LOAD_TIMELINE_H

#include "base/buffer.h"

#include <stdint.h>

enum { LOAD_SLICES = 20 };

/* Times are nanoseconds since the start of the load. */
struct load_timeline {
    uint64_t width; /* of a slice; 0: nothing was added */
    struct {
        uint64_t bytes;
        uint64_t busy; /* nanoseconds with a read in flight */
    } slices[LOAD_SLICES];
};

void load_timeline_add_bytes(struct load_timeline *timeline, uint64_t at, uint64_t bytes);
/* Records that reads were in flight from `start` to `end`. */
void load_timeline_add_busy(struct load_timeline *timeline, uint64_t start, uint64_t end);

/* Appends members of a JSON object: "slice_seconds"; "slices", the bytes read in each slice;
 * "slices_busy", the share of each slice with a read in flight. `duration`: of the load, with which
 * the last slice ends. */
void load_timeline_write(const struct load_timeline *timeline, uint64_t duration,
                         struct buffer *out);

#endif
