/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated network link of slowfs, in virtual time. */
#include "../slowfs/link.h"
#include "expect.h"
#include "random.h"

#include <check.h>

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define MB 1000000

START_TEST(latencies_are_in_range)
{
    struct link link, same;
    uint64_t sum = 0, low = UINT64_MAX, high = 0;

    link_init(&link, 10 * MS, 4 * MS, 0);
    link_init(&same, 10 * MS, 4 * MS, 0);
    for (unsigned i = 0; i < 10000; i++) {
        uint64_t latency = link_latency(&link);

        ck_assert_uint_eq(link_latency(&same), latency);
        low = latency < low ? latency : low;
        high = latency > high ? latency : high;
        sum += latency;
    }
    ck_assert_uint_ge(low, 10 * MS);
    ck_assert_uint_le(high, 14 * MS);
    /* All of the range is used evenly. */
    ck_assert_uint_lt(low, 10 * MS + MS / 10);
    ck_assert_uint_gt(high, 14 * MS - MS / 10);
    ck_assert_uint_gt(sum / 10000, 12 * MS - MS / 10);
    ck_assert_uint_lt(sum / 10000, 12 * MS + MS / 10);
}
END_TEST

START_TEST(no_jitter)
{
    struct link link;

    link_init(&link, 3 * MS, 0, 0);
    ck_assert_uint_eq(link_latency(&link), 3 * MS);
    ck_assert_uint_eq(link_latency(&link), 3 * MS);
}
END_TEST

START_TEST(no_bandwidth_is_unlimited)
{
    struct link link;

    link_init(&link, 0, 0, 0);
    ck_assert_uint_eq(link_transmit(&link, 5 * MS, 100 * MB), 5 * MS);
    ck_assert_uint_eq(link_transmit(&link, 5 * MS, 100 * MB), 5 * MS);
}
END_TEST

/* Latencies elapse in parallel, transmissions do not. */
START_TEST(transmissions_are_serial)
{
    struct link link;

    link_init(&link, 0, 0, 100 * MB);
    for (uint64_t i = 1; i <= 8; i++)
        ck_assert_uint_eq(link_transmit(&link, 20 * MS, MB), (20 + 10 * i) * MS);
    /* The link was idle from 100 to 300 ms. */
    ck_assert_uint_eq(link_transmit(&link, 300 * MS, MB), 310 * MS);
}
END_TEST

START_TEST(replies_without_data_are_free)
{
    struct link link;

    link_init(&link, 0, 0, MB);
    link_transmit(&link, 0, MB);
    ck_assert_uint_eq(link_transmit(&link, 7 * MS, 0), 7 * MS);
    ck_assert_uint_eq(link_transmit(&link, 0, 1), SECOND + 1000);
}
END_TEST

/* Whatever the times, the link never carries more than its bandwidth. */
START_TEST(bandwidth_is_never_exceeded)
{
    uint64_t now = 0, bytes = 0, end = 0;
    struct link link;

    random_state = 7;
    link_init(&link, 0, 0, 333 * MB);
    for (unsigned i = 0; i < 100000; i++) {
        size_t size = 1 + random_below(1 << 20);
        uint64_t due = now + random_below(5 * MS), before = end;

        end = link_transmit(&link, due, size);
        bytes += size;
        expect(end > due && end > before);
        expect((unsigned __int128)end * 333 * MB >= (unsigned __int128)bytes * SECOND);
        now += random_below(4 * MS);
    }
    assert_expectations();
}
END_TEST

static Suite *
suite(void)
{
    Suite *suite = suite_create("link");
    TCase *tcase = tcase_create("link");

    tcase_add_test(tcase, latencies_are_in_range);
    tcase_add_test(tcase, no_jitter);
    tcase_add_test(tcase, no_bandwidth_is_unlimited);
    tcase_add_test(tcase, transmissions_are_serial);
    tcase_add_test(tcase, replies_without_data_are_free);
    tcase_add_test(tcase, bandwidth_is_never_exceeded);
    suite_add_tcase(suite, tcase);
    return suite;
}

#include "check_main.h"
