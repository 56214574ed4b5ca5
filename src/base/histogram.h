/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of durations. The upper bound of each bucket is twice that of the one before; the
 * last bucket has none. By default the bounds are 64 us, 128 us, and so on to 4.2 s. An all-zero
 * histogram is empty and has the default bounds. Any thread may add, without a lock. A snapshot
 * contains everything added before it started, and possibly some of what is added while it is
 * taken.
 */
#ifndef FSTFS_BASE_HISTOGRAM_H
#define FSTFS_BASE_HISTOGRAM_H

#include "base/buffer.h"
#include "base/clock.h"

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_BOUNDS = 17, HISTOGRAM_BUCKETS = HISTOGRAM_BOUNDS + 1 };

struct histogram {
    atomic_uint_fast64_t counts[HISTOGRAM_BUCKETS]; /* the last bucket has no bound */
    atomic_uint_fast64_t nanoseconds; /* total */
    uint64_t first_bound_us; /* constant; 0: the default, 64 */
};

struct histogram_snapshot {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t nanoseconds;
    uint64_t first_bound_us; /* not 0 */
};

void histogram_add(struct histogram *histogram, uint64_t nanoseconds);

/* Adds the time since `started`, a monotonic_ns(). */
void histogram_add_since(struct histogram *histogram, uint64_t started);

void histogram_read(struct histogram *histogram, struct histogram_snapshot *snapshot);

/* Appends the samples of a Prometheus histogram, without its HELP and TYPE. `labels` are added to
 * each sample, such as `a="b",c="d"`; "" adds none. */
void histogram_write_metric(const struct histogram_snapshot *snapshot, const char *name,
                            const char *labels, struct buffer *out);

/* Appends a JSON object: "count", "seconds" (total), "p50" and "p99" (seconds, rounded up to a
 * bound of a bucket; null if that is the last bucket, or the histogram is empty). */
void histogram_write_json(const struct histogram_snapshot *snapshot, struct buffer *out);

#endif
