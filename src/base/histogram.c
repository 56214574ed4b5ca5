/* SPDX-License-Identifier: Apache-2.0 */
#include "base/histogram.h"

#include <inttypes.h>

#define FIRST_BOUND_US UINT64_C(64)
#define US UINT64_C(1000)
#define SECOND UINT64_C(1000000000)

static uint64_t
histogram_first_bound_us(const struct histogram *histogram)
{
    return histogram->first_bound_us ? histogram->first_bound_us : FIRST_BOUND_US;
}

static uint64_t
snapshot_bound_us(const struct histogram_snapshot *snapshot, unsigned bucket)
{
    return snapshot->first_bound_us << bucket;
}

/* Returns the first bucket whose bound is at least this duration. */
static unsigned
histogram_bucket(const struct histogram *histogram, uint64_t nanoseconds)
{
    uint64_t first_bound = histogram_first_bound_us(histogram) * US;
    uint64_t times = nanoseconds ? (nanoseconds - 1) / first_bound : 0;
    unsigned bucket = times ? 64 - (unsigned)__builtin_clzll(times) : 0;

    return bucket < HISTOGRAM_BOUNDS ? bucket : HISTOGRAM_BOUNDS;
}

void
histogram_add(struct histogram *histogram, uint64_t nanoseconds)
{
    unsigned bucket = histogram_bucket(histogram, nanoseconds);

    atomic_fetch_add_explicit(&histogram->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->nanoseconds, nanoseconds, memory_order_relaxed);
}

void
histogram_add_since(struct histogram *histogram, uint64_t started)
{
    histogram_add(histogram, monotonic_ns() - started);
}

void
histogram_read(struct histogram *histogram, struct histogram_snapshot *snapshot)
{
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        snapshot->counts[i] = atomic_load_explicit(&histogram->counts[i], memory_order_relaxed);
    snapshot->nanoseconds = atomic_load_explicit(&histogram->nanoseconds, memory_order_relaxed);
    snapshot->first_bound_us = histogram_first_bound_us(histogram);
}

static uint64_t
snapshot_count(const struct histogram_snapshot *snapshot)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        count += snapshot->counts[i];
    return count;
}

static void
add_seconds_us(struct buffer *out, uint64_t us)
{
    buffer_addf(out, "%" PRIu64 ".%06" PRIu64, us / (SECOND / US), us % (SECOND / US));
}

static void
add_seconds(struct buffer *out, uint64_t nanoseconds)
{
    buffer_addf(out, "%" PRIu64 ".%09" PRIu64, nanoseconds / SECOND, nanoseconds % SECOND);
}

/* Appends "NAME_SUFFIX{LABELS} ", or "NAME_SUFFIX " if there are no labels. */
static void
add_sample_name(struct buffer *out, const char *name, const char *suffix, const char *labels)
{
    buffer_addf(out, *labels ? "%s_%s{%s} " : "%s_%s%s ", name, suffix, labels);
}

void
histogram_write_metric(const struct histogram_snapshot *snapshot, const char *name,
                       const char *labels, struct buffer *out)
{
    const char *comma = *labels ? "," : "";
    uint64_t count = 0;

    for (unsigned i = 0; i < HISTOGRAM_BOUNDS; i++) {
        count += snapshot->counts[i];
        buffer_addf(out, "%s_bucket{%s%sle=\"", name, labels, comma);
        add_seconds_us(out, snapshot_bound_us(snapshot, i));
        buffer_addf(out, "\"} %" PRIu64 "\n", count);
    }
    count += snapshot->counts[HISTOGRAM_BOUNDS];
    buffer_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, count);
    add_sample_name(out, name, "sum", labels);
    add_seconds(out, snapshot->nanoseconds);
    buffer_add_char(out, '\n');
    add_sample_name(out, name, "count", labels);
    buffer_addf(out, "%" PRIu64 "\n", count);
}

/* Adds the lowest bucket bound that at least `percent` percent of the durations do not exceed. */
static void
add_quantile(const struct histogram_snapshot *snapshot, unsigned percent, struct buffer *out)
{
    uint64_t count = snapshot_count(snapshot);
    uint64_t wanted = count - count * (100 - percent) / 100;
    uint64_t under = snapshot->counts[0];
    unsigned bucket = 0;

    while (under < wanted)
        under += snapshot->counts[++bucket];
    buffer_addf(out, ",\"p%u\":", percent);
    /* The bucket is empty only if the whole histogram is. */
    if (bucket < HISTOGRAM_BOUNDS && snapshot->counts[bucket] > 0)
        add_seconds_us(out, snapshot_bound_us(snapshot, bucket));
    else
        buffer_add_text(out, "null");
}

void
histogram_write_json(const struct histogram_snapshot *snapshot, struct buffer *out)
{
    buffer_addf(out, "{\"count\":%" PRIu64 ",\"seconds\":", snapshot_count(snapshot));
    add_seconds(out, snapshot->nanoseconds);
    add_quantile(snapshot, 50, out);
    add_quantile(snapshot, 99, out);
    buffer_add_char(out, '}');
}
