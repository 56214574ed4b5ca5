/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/load_timeline.h"

#define FIRST_WIDTH UINT64_C(1000000) /* nanoseconds */

/* Returns the index of the slice that contains time `at`. Merges slices until there is one. */
static unsigned
timeline_extend_to(struct load_timeline *timeline, uint64_t at)
{
    if (timeline->width == 0)
        timeline->width = FIRST_WIDTH;
    while (at / timeline->width >= LOAD_SLICES) {
        for (unsigned i = 0; i < LOAD_SLICES; i++) {
            uint64_t bytes = timeline->slices[i].bytes, busy = timeline->slices[i].busy;

            timeline->slices[i].bytes = timeline->slices[i].busy = 0;
            timeline->slices[i / 2].bytes += bytes;
            timeline->slices[i / 2].busy += busy;
        }
        timeline->width *= 2;
    }
    return (unsigned)(at / timeline->width);
}

void
load_timeline_add_bytes(struct load_timeline *timeline, uint64_t at, uint64_t bytes)
{
    unsigned slice = timeline_extend_to(timeline, at);

    timeline->slices[slice].bytes += bytes;
}

void
load_timeline_add_busy(struct load_timeline *timeline, uint64_t start, uint64_t end)
{
    timeline_extend_to(timeline, end);
    while (start < end) {
        uint64_t slice = start / timeline->width, stop = (slice + 1) * timeline->width;

        stop = stop < end ? stop : end;
        timeline->slices[slice].busy += stop - start;
        start = stop;
    }
}

/* The share of a slice with a read in flight. The last slice ends with the load. */
static double
timeline_busy_share(const struct load_timeline *timeline, unsigned slice, uint64_t width,
                    uint64_t duration)
{
    uint64_t rest = duration - slice * width;
    uint64_t length = rest < width ? rest : width;

    return length ? (double)timeline->slices[slice].busy / (double)length : 0;
}

void
load_timeline_write(const struct load_timeline *timeline, uint64_t duration, struct buffer *out)
{
    uint64_t width = timeline->width ? timeline->width : FIRST_WIDTH;

    buffer_addf(out, ", \"slice_seconds\": %.3f, \"slices\": [", (double)width / 1e9);
    for (unsigned i = 0; i < LOAD_SLICES && i * width <= duration; i++)
        buffer_addf(out, "%s%llu", i ? ", " : "", (unsigned long long)timeline->slices[i].bytes);
    buffer_add_text(out, "], \"slices_busy\": [");
    for (unsigned i = 0; i < LOAD_SLICES && i * width <= duration; i++)
        buffer_addf(out, "%s%.3f", i ? ", " : "",
                    timeline_busy_share(timeline, i, width, duration));
    buffer_add_char(out, ']');
}
