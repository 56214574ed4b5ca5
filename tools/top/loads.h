/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and shows the page .fstfs/loads, which reports what limited each of the last loads. */
#ifndef FSTFS_TOP_LOADS_H
#define FSTFS_TOP_LOADS_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <time.h>

enum { LOAD_SLICES_MOST = 20 };

/* A line of the page; docs/metrics.md describes the fields. The JSON object owns the strings. */
struct load {
    const char *checkpoint, *view, *command, *order, *verdict;
    double process_group, seconds, storage, daemon, reader; /* seconds */
    double bytes, storage_bytes, opens, reads, stalls, errors, prefetch_hits, read_ratio;
    time_t start;
    bool running;
    unsigned slice_count;
    double slice_seconds;
    double slices[LOAD_SLICES_MOST]; /* bytes */
    double busy[LOAD_SLICES_MOST]; /* share of the time, 0 to 1 */
};

/* Appends the loads of a page as a table, the oldest first, or the last one as an SVG image.
 * -EBADMSG: a line is invalid. -ENODATA: there is no load to draw. */
errint_t loads_table(const struct buffer *page, struct buffer *out, struct reason *reason);
errint_t loads_svg(const struct buffer *page, struct buffer *out, struct reason *reason);

/* Appends an SVG image of a load: its rate over time, what the time was spent on, and the verdict.
 */
void timeline_svg(const struct load *load, struct buffer *out);

#endif
