/* SPDX-License-Identifier: Apache-2.0 */
#include "base/histogram.h"

#include <inttypes.h>

#define LEAST_US UINT64_C(64)
#define US UINT64_C(1000)
#define SECOND UINT64_C(1000000000)

static uint64_t
bound_us(unsigned bucket)
{
    return LEAST_US << bucket;
}

/* The first bucket whose bound is at least this duration. */
static unsigned
bucket_of(uint64_t nanoseconds)
{
    uint64_t times = nanoseconds ? (nanoseconds - 1) / (LEAST_US * US) : 0;
    unsigned bucket = times ? 64 - (unsigned)__builtin_clzll(times) : 0;

    return bucket < HISTOGRAM_BOUNDS ? bucket : HISTOGRAM_BOUNDS;
}

void
histogram_add(struct histogram *histogram, uint64_t nanoseconds)
{
    atomic_fetch_add_explicit(&histogram->counts[bucket_of(nanoseconds)], 1, memory_order_relaxed);
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
}

static uint64_t
count_of(const struct histogram_snapshot *snapshot)
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

void
histogram_write_metric(const struct histogram_snapshot *snapshot, const char *name,
                       struct buffer *out)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < HISTOGRAM_BOUNDS; i++) {
        count += snapshot->counts[i];
        buffer_addf(out, "%s_bucket{le=\"", name);
        add_seconds_us(out, bound_us(i));
        buffer_addf(out, "\"} %" PRIu64 "\n", count);
    }
    count += snapshot->counts[HISTOGRAM_BOUNDS];
    buffer_addf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum ", name, count, name);
    add_seconds(out, snapshot->nanoseconds);
    buffer_addf(out, "\n%s_count %" PRIu64 "\n", name, count);
}

/* Adds the lowest bucket bound that at least `percent` percent of the durations do not exceed. */
static void
add_quantile(const struct histogram_snapshot *snapshot, unsigned percent, struct buffer *out)
{
    uint64_t count = count_of(snapshot);
    uint64_t wanted = count - count * (100 - percent) / 100;
    uint64_t under = snapshot->counts[0];
    unsigned bucket = 0;

    while (under < wanted)
        under += snapshot->counts[++bucket];
    buffer_addf(out, ",\"p%u\":", percent);
    /* The bucket is empty only if the whole histogram is. */
    if (bucket < HISTOGRAM_BOUNDS && snapshot->counts[bucket] > 0)
        add_seconds_us(out, bound_us(bucket));
    else
        buffer_add_text(out, "null");
}

void
histogram_write_json(const struct histogram_snapshot *snapshot, struct buffer *out)
{
    buffer_addf(out, "{\"count\":%" PRIu64 ",\"seconds\":", count_of(snapshot));
    add_seconds(out, snapshot->nanoseconds);
    add_quantile(snapshot, 50, out);
    add_quantile(snapshot, 99, out);
    buffer_add_char(out, '}');
}
