/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_for(): one call for each index, concurrently if there are threads. */
#include "base/parallel.h"
#include "expect.h"

#include <check.h>
#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MOST_TURNS 5000

static atomic_int turns[MOST_TURNS];
static atomic_int running, most_running;

static void
/* cppcheck-suppress constParameter ; parallel_for() gives the type */
note(void *arg, size_t i)
{
    expect(arg == turns);
    atomic_fetch_add(&turns[i], 1);
}

START_TEST(one_call_for_each_index)
{
    static const size_t counts[] = {0, 1, 2, 7, 64, MOST_TURNS};
    static const unsigned threads[] = {0, 1, 2, 16, 1000};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
            for (size_t i = 0; i < MOST_TURNS; i++)
                atomic_store(&turns[i], 0);
            parallel_for(counts[c], threads[t], note, turns);
            for (size_t i = 0; i < MOST_TURNS; i++)
                expect(atomic_load(&turns[i]) == (i < counts[c]));
        }
    }
    assert_expectations();
}
END_TEST

/* Sleeps; then up to `*arg` milliseconds more until another call runs at the same time. */
static void
overlap(void *arg, size_t i)
{
    struct timespec moment = {0, 20000000}, millisecond = {0, 1000000};
    int now = atomic_fetch_add(&running, 1) + 1;
    int most = atomic_load(&most_running);

    while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now))
        continue;
    nanosleep(&moment, NULL);
    for (int left = *(const int *)arg; left > 0 && atomic_load(&most_running) == 1; left--)
        nanosleep(&millisecond, NULL);
    atomic_fetch_sub(&running, 1);
}

START_TEST(calls_overlap)
{
    int limit_ms = 100000, none = 0;

    atomic_store(&most_running, 0);
    parallel_for(16, 4, overlap, &limit_ms);
    ck_assert_int_gt(atomic_load(&most_running), 1);
    ck_assert_int_le(atomic_load(&most_running), 4);
    atomic_store(&most_running, 0);
    parallel_for(4, 1, overlap, &none);
    ck_assert_int_eq(atomic_load(&most_running), 1);
}
END_TEST

/* Helper threads of this process. */
static int
count_helpers(void)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    int count = 0;

    ck_assert_ptr_nonnull(tasks);
    while ((entry = readdir(tasks)))
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count - 1;
}

/* Waits until there are more threads than allowed, for up to 100 ms. */
static void
/* cppcheck-suppress constParameter ; parallel_for() gives the type */
fill_helpers(void *arg, size_t i)
{
    struct timespec millisecond = {0, 1000000};
    int now = atomic_fetch_add(&running, 1) + 1, most = atomic_load(&most_running);

    while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now))
        continue;
    for (int left = 100; left > 0 && atomic_load(&most_running) <= PARALLEL_HELPERS_MOST + 1;
         left--)
        nanosleep(&millisecond, NULL);
    if (i == 0)
        expect(count_helpers() <= PARALLEL_HELPERS_MOST);
    atomic_fetch_sub(&running, 1);
}

static void
fill_helpers_nested(void *arg, size_t i)
{
    parallel_for(16, 16, fill_helpers, NULL);
}

START_TEST(nested_loops_share_one_limit)
{
    atomic_store(&most_running, 0);
    parallel_for(8, 8, fill_helpers_nested, NULL);
    ck_assert_int_le(atomic_load(&most_running), PARALLEL_HELPERS_MOST / 2 + 1);
    assert_expectations();
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("parallel");
    TCase *loops = tcase_create("loops");

    tcase_add_test(loops, one_call_for_each_index);
    tcase_add_test(loops, calls_overlap);
    tcase_add_test(loops, nested_loops_share_one_limit);
    suite_add_tcase(made, loops);
    return made;
}

#include "check_main.h"
