/* SPDX-License-Identifier: Apache-2.0 */
/* Reads pages of .fstfs: any page as text, and .fstfs/status as a sample. */
#ifndef FSTFS_TOP_SAMPLE_H
#define FSTFS_TOP_SAMPLE_H

#include "base/buffer.h"
#include "base/error.h"

/* Appends the page `name` of the mount at `point`; blocks while the daemon does not reply. */
errint_t page_read(const char *point, const char *name, struct buffer *page, struct reason *reason);

/* The engine's counters; docs/metrics.md describes them. Those before GAUGES only increase. */
enum sample_counter {
    READS,
    READ_BYTES,
    CACHED_BYTES,
    STORAGE_BYTES,
    STALLS,
    READ_ERRORS,
    STALE_READS,
    PREFETCHED_BYTES,
    PREFETCHED_USED,
    PREFETCHED_WASTED,
    GAUGES,
    READS_IN_FLIGHT = GAUGES,
    STORAGE_IN_FLIGHT,
    STORAGE_WAITING,
    BUFFER_BYTES,
    BUFFER_BUDGET,
    COUNTERS,
};

/* Names in the JSON of reports; in .fstfs/status those before GAUGES end in "_total". */
extern const char *const sample_counter_names[COUNTERS];

struct sample {
    double at; /* monotonic_seconds() */
    uint64_t pid, uptime; /* uptime in seconds */
    bool has_catalog; /* the next two are known; only root and the mounting user see them */
    uint64_t problems, checkpoints;
    uint64_t counters[COUNTERS];
    double read_seconds; /* total duration of all reads */
    struct buffer source; /* quoted */
    struct buffer unavailable; /* I/O methods that are off, and why; or empty */
};

/* Samples the mount at `point`; blocks as page_read(). On an error the sample is empty. */
errint_t sample_take(const char *point, struct sample *sample, struct reason *reason);
void sample_free(struct sample *sample);

#endif
