/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of durations: buckets, output formats, concurrent additions. */
#include "base/histogram.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define US 1000ull

static struct histogram histogram;
static struct buffer text;

static void
setup(void)
{
    memset(&histogram, 0, sizeof(histogram));
    text = (struct buffer)BUFFER_INIT;
}

static void
teardown(void)
{
    buffer_free(&text);
}

/* The bucket in which one duration is counted. */
static unsigned
bucket_of(uint64_t nanoseconds)
{
    struct histogram_snapshot snapshot;
    unsigned found = HISTOGRAM_BUCKETS;

    setup();
    histogram_add(&histogram, nanoseconds);
    histogram_read(&histogram, &snapshot);
    ck_assert_uint_eq(snapshot.nanoseconds, nanoseconds);
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        if (snapshot.counts[i] == 0)
            continue;
        ck_assert_uint_eq(snapshot.counts[i], 1);
        ck_assert_uint_eq(found, HISTOGRAM_BUCKETS);
        found = i;
    }
    return found;
}

/* A duration equal to a bound is counted in the bucket of that bound, as in Prometheus. */
START_TEST(bounds_belong_to_their_bucket)
{
    ck_assert_uint_eq(bucket_of(0), 0);
    ck_assert_uint_eq(bucket_of(1), 0);
    for (unsigned i = 0; i < HISTOGRAM_BOUNDS; i++) {
        ck_assert_uint_eq(bucket_of((64 * US << i) - 1), i);
        ck_assert_uint_eq(bucket_of(64 * US << i), i);
        ck_assert_uint_eq(bucket_of((64 * US << i) + 1), i + 1);
    }
    ck_assert_uint_eq(bucket_of(UINT64_MAX), HISTOGRAM_BOUNDS);
}
END_TEST

static const char *
metric(const char *labels)
{
    struct histogram_snapshot snapshot;

    buffer_free(&text);
    histogram_read(&histogram, &snapshot);
    histogram_write_metric(&snapshot, "it", labels, &text);
    return text.data;
}

static const char *
json(void)
{
    struct histogram_snapshot snapshot;

    buffer_free(&text);
    histogram_read(&histogram, &snapshot);
    histogram_write_json(&snapshot, &text);
    return text.data;
}

START_TEST(writes_a_metric)
{
    histogram_add(&histogram, 5 * US);
    histogram_add(&histogram, 200 * US);
    histogram_add(&histogram, 9000000 * US + 7);
    ck_assert_str_eq(metric(""), "it_bucket{le=\"0.000064\"} 1\n"
                                 "it_bucket{le=\"0.000128\"} 1\n"
                                 "it_bucket{le=\"0.000256\"} 2\n"
                                 "it_bucket{le=\"0.000512\"} 2\n"
                                 "it_bucket{le=\"0.001024\"} 2\n"
                                 "it_bucket{le=\"0.002048\"} 2\n"
                                 "it_bucket{le=\"0.004096\"} 2\n"
                                 "it_bucket{le=\"0.008192\"} 2\n"
                                 "it_bucket{le=\"0.016384\"} 2\n"
                                 "it_bucket{le=\"0.032768\"} 2\n"
                                 "it_bucket{le=\"0.065536\"} 2\n"
                                 "it_bucket{le=\"0.131072\"} 2\n"
                                 "it_bucket{le=\"0.262144\"} 2\n"
                                 "it_bucket{le=\"0.524288\"} 2\n"
                                 "it_bucket{le=\"1.048576\"} 2\n"
                                 "it_bucket{le=\"2.097152\"} 2\n"
                                 "it_bucket{le=\"4.194304\"} 2\n"
                                 "it_bucket{le=\"+Inf\"} 3\n"
                                 "it_sum 9.000205007\n"
                                 "it_count 3\n");
}
END_TEST

/* Each sample has the labels; the bounds start at the given one. */
START_TEST(writes_labels_and_other_bounds)
{
    const char *written;

    histogram.first_bound_us = 250000;
    histogram_add(&histogram, 250000 * US);
    histogram_add(&histogram, 250000 * US + 1);
    histogram_add(&histogram, 20000000000 * US);
    written = metric("a=\"b\"");
    ck_assert_ptr_eq(strstr(written, "it_bucket{a=\"b\",le=\"0.250000\"} 1\n"
                                     "it_bucket{a=\"b\",le=\"0.500000\"} 2\n"),
                     written);
    ck_assert_ptr_nonnull(strstr(written, "it_bucket{a=\"b\",le=\"16384.000000\"} 2\n"
                                          "it_bucket{a=\"b\",le=\"+Inf\"} 3\n"
                                          "it_sum{a=\"b\"} 20000.500000001\n"
                                          "it_count{a=\"b\"} 3\n"));
}
END_TEST

START_TEST(writes_json)
{
    ck_assert_str_eq(json(), "{\"count\":0,\"seconds\":0.000000000,\"p50\":null,\"p99\":null}");
    histogram_add(&histogram, 100 * US);
    ck_assert_str_eq(json(),
                     "{\"count\":1,\"seconds\":0.000100000,\"p50\":0.000128,\"p99\":0.000128}");
    /* The second largest of 100 durations, then of 101. */
    for (int i = 0; i < 98; i++)
        histogram_add(&histogram, 0);
    histogram_add(&histogram, 10000000 * US);
    ck_assert_str_eq(json(),
                     "{\"count\":100,\"seconds\":10.000100000,\"p50\":0.000064,\"p99\":0.000128}");
    histogram_add(&histogram, 10000000 * US);
    ck_assert_str_eq(json(),
                     "{\"count\":101,\"seconds\":20.000100000,\"p50\":0.000064,\"p99\":null}");
}
END_TEST

static void *
add_many(void *arg)
{
    for (uint64_t i = 0; i < 100000; i++)
        histogram_add(&histogram, i % 4 * 64 * US);
    return NULL;
}

START_TEST(many_threads)
{
    pthread_t threads[4];
    struct histogram_snapshot snapshot;

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, add_many, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    histogram_read(&histogram, &snapshot);
    ck_assert_uint_eq(snapshot.counts[0], 200000);
    ck_assert_uint_eq(snapshot.counts[1], 100000);
    ck_assert_uint_eq(snapshot.counts[2], 100000);
    ck_assert_uint_eq(snapshot.nanoseconds, 100000 * 6 * 64 * US);
}
END_TEST

START_TEST(clock_is_monotonic)
{
    uint64_t before = monotonic_ns();
    struct histogram_snapshot snapshot;

    histogram_add_since(&histogram, before);
    histogram_read(&histogram, &snapshot);
    ck_assert_uint_le(snapshot.nanoseconds, monotonic_ns() - before);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("histogram");
    TCase *all = tcase_create("histogram");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, bounds_belong_to_their_bucket);
    tcase_add_test(all, writes_a_metric);
    tcase_add_test(all, writes_labels_and_other_bounds);
    tcase_add_test(all, writes_json);
    tcase_add_test(all, many_threads);
    tcase_add_test(all, clock_is_monotonic);
    suite_add_tcase(made, all);
    return made;
}

#include "check_main.h"
