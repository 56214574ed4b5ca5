/* SPDX-License-Identifier: Apache-2.0 */
/* How long a change time counts as recent, by its granularity. The linker replaces clock_gettime()
 * with a clock that the test sets. */
#include "base/timestamp.h"

#include <check.h>
#include <time.h>

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define NOON 1000000000 /* seconds */
#define TICK (20 * MS) /* see timestamp.c */

static struct timespec clock_time;

int __real_clock_gettime(clockid_t id, struct timespec *time);
int __wrap_clock_gettime(clockid_t id, struct timespec *time);

int
__wrap_clock_gettime(clockid_t id, struct timespec *time)
{
    if (id != CLOCK_REALTIME)
        return __real_clock_gettime(id, time);
    *time = clock_time;
    return 0;
}

/* What timestamp_settle_ns() returns when `age` nanoseconds have passed since a change at NOON and
 * `fraction` nanoseconds. */
static int64_t
settle_ns(int64_t fraction, int64_t age, bool local)
{
    struct timespec changed = {NOON, fraction};
    int64_t ns = fraction + age;
    int64_t seconds = ns / SECOND - (ns % SECOND < 0);

    clock_time = (struct timespec){NOON + seconds, ns - seconds * SECOND};
    return (int64_t)timestamp_settle_ns(&changed, local);
}

static const struct {
    int64_t fraction, granularity;
} fractions[] = {
    {123456789, 1}, {123456700, 100}, {120000000, 10 * MS}, {500000000, 100 * MS}, {0, SECOND},
};
enum { FRACTIONS = sizeof(fractions) / sizeof(fractions[0]) };

START_TEST(local_change_is_young_for_its_granularity_and_a_tick)
{
    int64_t margin = fractions[_i].granularity + TICK;

    ck_assert_int_eq(settle_ns(fractions[_i].fraction, 0, true), margin);
    ck_assert_int_eq(settle_ns(fractions[_i].fraction, margin - 1, true), 1);
    ck_assert_int_eq(settle_ns(fractions[_i].fraction, margin, true), 0);
    ck_assert_int_eq(settle_ns(fractions[_i].fraction, 3600 * SECOND, true), 0);
}
END_TEST

/* The clock was set back, so the age of the change is unknown. */
START_TEST(local_change_in_the_future)
{
    ck_assert_int_eq(settle_ns(0, -1, true), SECOND + TICK);
    ck_assert_int_eq(settle_ns(123456789, -9 * SECOND, true), 1 + TICK);
    ck_assert_int_eq(settle_ns(123456789, -11 * SECOND, true), 0);
}
END_TEST

/* The server may use FAT, whose granularity is 2 s, and another clock. */
START_TEST(remote_change)
{
    ck_assert_int_eq(settle_ns(0, 0, false), 2 * SECOND + TICK);
    ck_assert_int_eq(settle_ns(0, 9 * SECOND, false), 2 * SECOND + TICK);
    ck_assert_int_eq(settle_ns(0, 11 * SECOND, false), 0);
    ck_assert_int_eq(settle_ns(500000000, -9 * SECOND, false), 100 * MS + TICK);
    ck_assert_int_eq(settle_ns(500000000, -11 * SECOND, false), 0);
}
END_TEST

START_TEST(recent)
{
    struct timespec changed = {NOON, 500000000};

    clock_time = (struct timespec){NOON + 30, 499999999};
    ck_assert(timestamp_is_recent(&changed, 30));
    clock_time.tv_nsec++;
    ck_assert(!timestamp_is_recent(&changed, 30));
    clock_time.tv_sec = NOON - 3600;
    ck_assert(timestamp_is_recent(&changed, 30));
    changed.tv_sec = 0; /* 31 years ago: does not overflow */
    clock_time.tv_sec = NOON;
    ck_assert(!timestamp_is_recent(&changed, 30));
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("timestamp");
    TCase *tc = tcase_create("timestamp");

    tcase_add_loop_test(tc, local_change_is_young_for_its_granularity_and_a_tick, 0, FRACTIONS);
    tcase_add_test(tc, local_change_in_the_future);
    tcase_add_test(tc, remote_change);
    tcase_add_test(tc, recent);
    suite_add_tcase(s, tc);
    return s;
}

#include "check_main.h"
