/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions where Check's cannot be used. A failed ck_assert() calls longjmp() into the thread
 * that runs the tests, so no other thread may call it, neither a thread of the test nor a thread of
 * the engine that runs callbacks. Each ck_assert() also writes to a file, which is too slow for a
 * loop over bytes.
 *
 * expect() records the first failure and returns whether the condition is true; any thread may call
 * it. assert_expectations() reports the failure; the test calls it on the thread that runs it,
 * after the other threads have ended, or registers it as a teardown. check_main.h fails a program
 * that does neither.
 */
#ifndef FSTFS_TESTS_EXPECT_H
#define FSTFS_TESTS_EXPECT_H

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define EXPECT_TEXT(line) #line
#define EXPECT_LINE(line) EXPECT_TEXT(line)
#define expect(condition)                                                                          \
    expect_that((condition), __FILE__ ":" EXPECT_LINE(__LINE__) ": " #condition)

static _Atomic(const char *) expect_failure; /* the first; NULL: none */

static inline bool
expect_that(bool holds, const char *what)
{
    const char *none = NULL;

    if (!holds)
        atomic_compare_exchange_strong(&expect_failure, &none, what);
    return holds;
}

static inline void
assert_expectations(void)
{
    const char *failure = atomic_exchange(&expect_failure, NULL);

    if (failure)
        ck_abort_msg("%s", failure);
}

#endif
