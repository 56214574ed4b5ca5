/* SPDX-License-Identifier: Apache-2.0 */
/* The names in open directories, and the memory for them. */
#include "expect.h"
#include "view_source.h"

#include <pthread.h>

enum { NAMES = 500, HANDLES = 64, THREADS = 4 };

static void
name_of(int i, char name[300])
{
    snprintf(name, 300, "%04d%0150d", i, 0);
}

static void
setup(void)
{
    const struct view_options options = {.root = VIEW_MERGED};
    char name[300];

    make_source();
    for (int i = 0; i < NAMES; i++) {
        name_of(i, name);
        add_file(name, "", 0);
    }
    open_view(&options);
}

static void
teardown(void)
{
    close_view();
    remove_source();
    assert_expectations();
}

static uint64_t
charged(void)
{
    struct catalog_counters counters;

    catalog_counters(catalog, &counters);
    return counters.budget.used;
}

static struct view_directory *
open_root(void)
{
    struct view_directory *directory = NULL;

    expect(view_opendir(view, NULL, VIEW_ROOT_ID, &directory) == 0);
    return directory;
}

static bool
shows(struct view_directory *directory, int count)
{
    const char *name;
    char expected[300];
    struct stat st;

    for (int i = 0; i < count; i++) {
        name_of(i, expected);
        if (view_readdir(view, directory, (uint64_t)i + 2, &name, &st) != 0 ||
            strcmp(name, expected) != 0 || !S_ISREG(st.st_mode))
            return false;
    }
    return view_readdir(view, directory, (uint64_t)count + 2, &name, &st) == -ENOENT;
}

/* Adds a file and makes the catalog read the directory again. */
static void
grow(void)
{
    struct source_dir *root = catalog_root(catalog);
    char name[300];

    name_of(NAMES, name);
    add_file(name, "", 0);
    source_dir_expire(root);
    source_dir_unref(root);
}

START_TEST(handles_share_their_names)
{
    struct view_directory *handles[HANDLES];
    uint64_t one;

    handles[0] = open_root();
    one = charged();
    ck_assert_uint_gt(one, NAMES * 155);
    for (int i = 1; i < HANDLES; i++)
        handles[i] = open_root();
    ck_assert_uint_eq(charged(), one);
    for (int i = 0; i < HANDLES; i++) {
        ck_assert(shows(handles[i], NAMES));
        view_closedir(view, handles[i]);
    }
    ck_assert_uint_eq(charged(), 0);
}
END_TEST

START_TEST(only_new_handles_show_a_change)
{
    struct view_directory *before = open_root(), *after;
    uint64_t one = charged();

    grow();
    after = open_root();
    ck_assert(shows(before, NAMES));
    ck_assert(shows(after, NAMES + 1));
    ck_assert_uint_gt(charged(), 2 * one);
    ck_assert_uint_lt(charged(), 3 * one);
    view_closedir(view, before);
    before = open_root();
    ck_assert(shows(before, NAMES + 1));
    ck_assert_uint_lt(charged(), 2 * one);
    view_closedir(view, after);
    view_closedir(view, before);
    ck_assert_uint_eq(charged(), 0);
}
END_TEST

static void *
open_and_close(void *arg)
{
    (void)arg;
    for (int i = 0; i < 100; i++) {
        struct view_directory *a = open_root(), *b = open_root();

        if (a && b)
            expect(shows(a, NAMES) && shows(b, NAMES));
        if (a)
            view_closedir(view, a);
        if (b)
            view_closedir(view, b);
    }
    return open_root();
}

START_TEST(threads_share_their_names)
{
    pthread_t threads[THREADS];
    void *handles[THREADS];

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_and_close, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], &handles[i]);
    assert_expectations();
    ck_assert_uint_lt(charged(), NAMES * 155 * 2);
    for (int i = 0; i < THREADS; i++)
        view_closedir(view, handles[i]);
    ck_assert_uint_eq(charged(), 0);
}
END_TEST

/* If the budget is full, opens fail with ENOMEM and add one problem. Once it has room, they
 * succeed. */
START_TEST(opens_fail_if_the_budget_is_full)
{
    struct header_budget *budget = catalog_budget(catalog);
    uint64_t all = HEADER_BUDGET_LEAST - 1000;
    struct view_directory *directory;
    struct buffer problems = BUFFER_INIT;

    ck_assert_int_eq(header_budget_take(budget, all), 0);
    header_budget_settle(budget, all, all);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(view_opendir(view, NULL, VIEW_ROOT_ID, &directory), -ENOMEM);
    ck_assert_uint_eq(catalog_count_problems(catalog), 1);
    catalog_write_problems(catalog, &problems);
    ck_assert_ptr_nonnull(strstr(problems.data, "NoMemoryForHeaders: no room for the names"));
    ck_assert_ptr_nonnull(strstr(problems.data, "raise --memory"));
    buffer_free(&problems);
    header_budget_give(budget, all);
    directory = open_root();
    ck_assert(shows(directory, NAMES));
    view_closedir(view, directory);
    ck_assert_uint_eq(charged(), 0);
}
END_TEST

static Suite *
suite(void)
{
    Suite *suite = suite_create("directory");
    TCase *tests = tcase_create("directory");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, handles_share_their_names);
    tcase_add_test(tests, only_new_handles_show_a_change);
    tcase_add_test(tests, threads_share_their_names);
    tcase_add_test(tests, opens_fail_if_the_budget_is_full);
    suite_add_tcase(suite, tests);
    return suite;
}

#include "check_main.h"
