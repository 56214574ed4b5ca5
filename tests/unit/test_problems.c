/* SPDX-License-Identifier: Apache-2.0 */
/* Which problems are logged, and how many. The linker replaces the clock and the log. */
#include "base/clock.h"
#include "base/log.h"
#include "catalog/problems.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PER_HOUR = 1000, HOUR_MS = 3600 * 1000 };

static struct problems *problems;
static struct problem_set *set;
static uint64_t test_time;
static unsigned logged;
static char last_line[300];

uint64_t __wrap_monotonic_ms(void);
void __wrap_log_line(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

uint64_t
__wrap_monotonic_ms(void)
{
    return test_time;
}

void
__wrap_log_line(enum log_level level, const char *format, ...)
{
    va_list arguments;

    ck_assert_int_eq(level, LOG_LEVEL_WARNING);
    va_start(arguments, format);
    vsnprintf(last_line, sizeof(last_line), format, arguments);
    va_end(arguments);
    logged++;
}

static void
setup(void)
{
    problems = problems_new(&(struct problem_watch){0});
    set = problem_set_new(problems, "dir");
    ck_assert_ptr_nonnull(set);
    test_time = 5;
    logged = 0;
}

static void
teardown(void)
{
    problem_set_unref(set);
    problems_free(problems);
}

/* Adds problems with the numbers `first` to `first + count - 1`. Returns the number of lines that
 * this logs. */
static unsigned
add_problems(unsigned first, unsigned count)
{
    unsigned before = logged;

    for (unsigned i = first; i < first + count; i++)
        problem_set_add(set, "file", "number %u", i);
    return logged - before;
}

/* The set of an object is freed when the object changes; its problems may persist. */
static void
renew_set(void)
{
    problem_set_unref(set);
    set = problem_set_new(problems, "dir");
    ck_assert_ptr_nonnull(set);
}

START_TEST(further_problems_of_an_hour_are_not_logged)
{
    ck_assert_uint_eq(add_problems(0, PER_HOUR), PER_HOUR);
    ck_assert_str_eq(last_line, "dir/file: number 999");
    ck_assert_uint_eq(add_problems(PER_HOUR, 1), 1);
    ck_assert_ptr_nonnull(strstr(last_line, "1000 problems were logged within an hour"));
    ck_assert_uint_eq(add_problems(PER_HOUR + 1, 5000), 0);
    ck_assert_uint_eq(problem_set_count(set), PER_HOUR + 5001);
}
END_TEST

START_TEST(problems_of_the_next_hour_are_logged)
{
    add_problems(0, 3 * PER_HOUR);
    test_time += HOUR_MS - 1;
    ck_assert_uint_eq(add_problems(10000, 1), 0);
    test_time++;
    ck_assert_uint_eq(add_problems(10001, 1), 1);
    ck_assert_str_eq(last_line, "dir/file: number 10001");
    ck_assert_uint_eq(add_problems(10002, 2 * PER_HOUR), PER_HOUR);
    ck_assert_ptr_nonnull(strstr(last_line, "1000 problems were logged within an hour"));
}
END_TEST

START_TEST(persistent_problems_are_logged_once)
{
    ck_assert_uint_eq(add_problems(0, 10), 10);
    for (int hour = 0; hour < 3; hour++) {
        renew_set();
        ck_assert_uint_eq(add_problems(0, 10), 0);
        test_time += HOUR_MS;
    }
    /* The hashes of 1,000 later lines replace theirs. */
    ck_assert_uint_eq(add_problems(10, PER_HOUR), PER_HOUR);
    test_time += HOUR_MS;
    renew_set();
    ck_assert_uint_eq(add_problems(0, 10), 10);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("problems");
    TCase *all = tcase_create("problems");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, further_problems_of_an_hour_are_not_logged);
    tcase_add_test(all, problems_of_the_next_hour_are_logged);
    tcase_add_test(all, persistent_problems_are_logged_once);
    suite_add_tcase(made, all);
    return made;
}

#include "check_main.h"
