/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long something took, counted in buckets whose bounds double: up to 64 us,
 * 128 us, and so on to 4.2 s, and longer. All zero is an empty one.
 *
 * Any thread adds, without a lock; a snapshot holds each time that was added
 * before it, and of those added meanwhile some.
 */
#ifndef FSTFS_BASE_HISTOGRAM_H
#define FSTFS_BASE_HISTOGRAM_H

#include "base/buffer.h"

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_BOUNDS = 17, HISTOGRAM_BUCKETS = HISTOGRAM_BOUNDS + 1 };

struct histogram {
    atomic_uint_fast64_t counts[HISTOGRAM_BUCKETS]; /* the last: over all bounds */
    atomic_uint_fast64_t nanoseconds; /* all together */
};

struct histogram_snapshot {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t nanoseconds;
};

/* Nanoseconds of a clock that only goes forward. */
uint64_t monotonic_ns(void);

void histogram_add(struct histogram *histogram, uint64_t nanoseconds);

/* Adds the time since `started`, a monotonic_ns(). */
void histogram_add_since(struct histogram *histogram, uint64_t started);

void histogram_read(struct histogram *histogram, struct histogram_snapshot *snapshot);

/* Appends the samples of a Prometheus histogram, without its HELP and TYPE. */
void histogram_write_metric(const struct histogram_snapshot *snapshot, const char *name,
                            struct buffer *out);

/* Appends a JSON object: "count", "seconds" all together, and "p50" and "p99":
 * seconds that half of them and 99 in 100 did not take longer than, to the next
 * bound; null when that is beyond the last, or there are none. */
void histogram_write_json(const struct histogram_snapshot *snapshot, struct buffer *out);

#endif
