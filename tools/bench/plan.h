/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a timed reader reads: runs of bytes of files, in an order.
 */
#ifndef FSTFS_BENCH_PLAN_H
#define FSTFS_BENCH_PLAN_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct plan_segment {
    uint64_t offset;
    uint64_t length; /* never 0 */
    size_t file; /* index into files */
};

/* All zero is an empty one. */
struct plan {
    char **files; /* each path once */
    size_t file_count;
    struct plan_segment *segments;
    size_t segment_count;
    uint64_t bytes; /* of all segments */
};

/* Appends a file, which must not be there yet, for segments to name. -ENOMEM. */
errint_t plan_add_file(struct plan *plan, const char *path);
/* Appends a segment of a file that is there; an empty one is left out. -ENOMEM. */
errint_t plan_add_segment(struct plan *plan, size_t file, uint64_t offset, uint64_t length);
/* Both, where the file may be there already. */
errint_t plan_add(struct plan *plan, const char *path, uint64_t offset, uint64_t length);
void plan_free(struct plan *plan);

#endif
