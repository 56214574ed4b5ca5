/* SPDX-License-Identifier: Apache-2.0 */
/* When the catalog checks the files of a checkpoint, and which callers wait for that. The linker
 * replaces the clock, time stamps and some source functions with ones that the test controls. */
#include "base/clock.h"
#include "base/timestamp.h"
#include "catalog/private.h"
#include "expect.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARDS = 40, AT_ONCE = 16, PATIENCE_MS = 10000 };

static char place[sizeof("/tmp/fstfs-test-freshness-XXXXXX")];
static struct catalog *catalog;
static struct source_dir *dir;
static struct listing *listing;
static const struct group *group;

static _Atomic(uint64_t) now; /* 0: the real clock */
static atomic_uint checks, held; /* files checked so far; checks that are blocked now */
static atomic_bool hold;

uint64_t __real_monotonic_ms(void);
uint64_t __wrap_monotonic_ms(void);
errint_t __real_source_dir_file(struct source_dir *directory, const char *name,
                                struct file_identity *file);
errint_t __wrap_source_dir_file(struct source_dir *directory, const char *name,
                                struct file_identity *file);

struct source_dir *__real_source_dir_ref(struct source_dir *directory);
struct source_dir *__wrap_source_dir_ref(struct source_dir *directory);

uint64_t
__wrap_monotonic_ms(void)
{
    uint64_t set = atomic_load(&now);

    return set ? set : __real_monotonic_ms();
}

errint_t
__wrap_source_dir_file(struct source_dir *directory, const char *name, struct file_identity *file)
{
    atomic_fetch_add(&checks, 1);
    atomic_fetch_add(&held, 1);
    while (atomic_load(&hold))
        usleep(500);
    atomic_fetch_sub(&held, 1);
    return __real_source_dir_file(directory, name, file);
}

/* It takes the lock of the catalog, with which the reclaim of headers waits for known_lock. */
struct source_dir *
__wrap_source_dir_ref(struct source_dir *directory)
{
    if (group && expect(pthread_mutex_trylock(&group->state->known_lock) == 0))
        pthread_mutex_unlock(&group->state->known_lock);
    return __real_source_dir_ref(directory);
}

static atomic_bool settles_late; /* time stamps are settled once an index was read */
static atomic_bool index_was_read;

uint64_t __real_timestamp_settle_ns(const struct timespec *changed, bool local);
uint64_t __wrap_timestamp_settle_ns(const struct timespec *changed, bool local);
errint_t __real_source_dir_index(struct source_dir *directory, const char *name,
                                 struct st_index **index, struct file_identity *identity,
                                 struct reason *reason);
errint_t __wrap_source_dir_index(struct source_dir *directory, const char *name,
                                 struct st_index **index, struct file_identity *identity,
                                 struct reason *reason);

uint64_t
__wrap_timestamp_settle_ns(const struct timespec *changed, bool local)
{
    if (atomic_load(&settles_late))
        return !atomic_load(&index_was_read);
    return __real_timestamp_settle_ns(changed, local);
}

errint_t
__wrap_source_dir_index(struct source_dir *directory, const char *name, struct st_index **index,
                        struct file_identity *identity, struct reason *reason)
{
    atomic_store(&index_was_read, true);
    return __real_source_dir_index(directory, name, index, identity, reason);
}

static void
name_shard(unsigned i, char path[100])
{
    snprintf(path, 100, "%s/model-%05u-of-%05u.safetensors", place, i + 1, (unsigned)SHARDS);
}

static void
write_shard(unsigned i)
{
    char path[100], header[100];
    uint64_t length;
    FILE *file;

    name_shard(i, path);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    length =
        (uint64_t)snprintf(header, sizeof(header),
                           "{\"t%u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", i);
    fwrite(&length, 1, 8, file);
    fwrite(header, 1, length, file);
    fputc('x', file);
    ck_assert_int_eq(fclose(file), 0);
}

static void
setup(void)
{
    struct catalog_options options = {.source = place, .skip_hung = true};

    group = NULL;
    atomic_store(&now, 0);
    atomic_store(&hold, false);
    strcpy(place, "/tmp/fstfs-test-freshness-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    for (unsigned i = 0; i < SHARDS; i++)
        write_shard(i);
    ck_assert_int_eq(catalog_new(&options, &catalog), 0);
    dir = catalog_root(catalog);
    ck_assert_int_eq(source_dir_listing(dir, &listing), 0);
    ck_assert_uint_eq(listing->group_count, 1);
    group = &listing->groups[0];
    atomic_store(&now, 1000000);
}

static void
teardown(void)
{
    char path[100];

    listing_unref(listing);
    source_dir_unref(dir);
    catalog_free(catalog);
    for (unsigned i = 0; i < SHARDS; i++) {
        name_shard(i, path);
        unlink(path);
    }
    ck_assert_int_eq(rmdir(place), 0);
    assert_expectations();
}

/* Another thread that requests the checkpoint. */
struct requester {
    pthread_t thread;
    struct checkpoint *checkpoint;
    atomic_bool answered;
};

static void *
ask(void *arg)
{
    struct requester *requester = arg;

    expect(group_checkpoint(dir, group, &requester->checkpoint) == 0);
    atomic_store(&requester->answered, true);
    return NULL;
}

static void
request_elsewhere(struct requester *requester)
{
    atomic_init(&requester->answered, false);
    ck_assert_int_eq(pthread_create(&requester->thread, NULL, ask, requester), 0);
}

static void
finish(struct requester *requester, const struct checkpoint *expected)
{
    pthread_join(requester->thread, NULL);
    expect(requester->checkpoint == expected);
    checkpoint_unref(requester->checkpoint);
}

static bool
comes_true(const atomic_bool *what)
{
    for (int i = 0; i < PATIENCE_MS && !atomic_load(what); i++)
        usleep(1000);
    return atomic_load(what);
}

static bool
comes_to(const atomic_uint *count, unsigned expected)
{
    for (int i = 0; i < PATIENCE_MS && atomic_load(count) < expected; i++)
        usleep(1000);
    return atomic_load(count) >= expected;
}

/* One caller checks the files, in parallel. The others get the known version at first, and wait
 * later. */
START_TEST(checks_without_a_lock)
{
    struct checkpoint *checkpoint;
    struct requester first, second, late;
    bool in_parallel, answered;

    ck_assert_int_eq(group_checkpoint(dir, group, &checkpoint), 0);
    ck_assert_uint_eq(checkpoint->tensor_count, SHARDS);
    atomic_store(&checks, 0);
    atomic_store(&hold, true);
    atomic_fetch_add(&now, CATALOG_CHECK_MS);
    request_elsewhere(&first);
    in_parallel = comes_to(&held, AT_ONCE);
    atomic_fetch_add(&now, CATALOG_LOOKING_MS / 2);
    request_elsewhere(&second);
    answered = comes_true(&second.answered);
    atomic_fetch_add(&now, CATALOG_LOOKING_MS);
    request_elsewhere(&late);
    usleep(20000); /* a wrong result would usually arrive within this time */
    expect(!atomic_load(&late.answered));
    atomic_store(&hold, false);
    finish(&first, checkpoint);
    finish(&second, checkpoint);
    finish(&late, checkpoint);
    ck_assert(in_parallel);
    ck_assert(answered);
    ck_assert_uint_eq(atomic_load(&checks), SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

/* Once in CATALOG_CHECK_MS, or after source_dir_expire(). */
START_TEST(checks_when_due)
{
    struct checkpoint *checkpoint, *again;

    ck_assert_int_eq(group_checkpoint(dir, group, &checkpoint), 0);
    atomic_store(&checks, 0);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(group_checkpoint(dir, group, &again), 0);
        ck_assert_ptr_eq(again, checkpoint);
        checkpoint_unref(again);
        atomic_fetch_add(&now, (CATALOG_CHECK_MS - 1) / 3);
    }
    ck_assert_uint_eq(atomic_load(&checks), 0);
    source_dir_expire(dir);
    ck_assert_int_eq(group_checkpoint(dir, group, &again), 0);
    ck_assert_ptr_eq(again, checkpoint);
    checkpoint_unref(again);
    ck_assert_uint_eq(atomic_load(&checks), SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

/* A check that began before source_dir_expire() does not satisfy a request after it. */
START_TEST(checks_again_if_expired_meanwhile)
{
    struct checkpoint *checkpoint;
    struct requester first, second;

    ck_assert_int_eq(group_checkpoint(dir, group, &checkpoint), 0);
    atomic_store(&checks, 0);
    atomic_store(&hold, true);
    atomic_fetch_add(&now, CATALOG_CHECK_MS);
    request_elsewhere(&first);
    ck_assert(comes_to(&held, 1));
    atomic_fetch_add(&now, 1);
    source_dir_expire(dir);
    atomic_fetch_add(&now, 1);
    request_elsewhere(&second);
    atomic_store(&hold, false);
    finish(&first, checkpoint);
    finish(&second, checkpoint);
    ck_assert_uint_eq(atomic_load(&checks), 2 * SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

/* Only the group is changed so that it has a lane; no link is needed. */
START_TEST(makes_queries_without_known_lock)
{
    struct group linked = *group;
    struct listing linked_listing = {.group_count = 1, .groups = &linked, .has_lanes = true};
    struct checkpoint *checkpoint;

    linked.lane = 1;
    linked_listing.problems = listing->problems;
    atomic_store(&now, 0); /* query_pool_wait() needs it */
    groups_load(dir, &linked_listing, NULL);
    ck_assert_int_eq(group_known_checkpoint(group, &checkpoint), 0);
    ck_assert_uint_eq(checkpoint->tensor_count, SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

/* While an index is read, the directory may change without getting another time stamp. So a listing
 * whose time stamp settles only meanwhile must be made again. */
START_TEST(listing_is_settled_before_names_are_read)
{
    struct listing *before, *after;
    char path[100];

    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", place);
    ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)), 0);
    atomic_store(&settles_late, true);
    atomic_fetch_add(&now, 2 * CATALOG_CHECK_MS);
    ck_assert_int_eq(source_dir_listing(dir, &before), 0);
    ck_assert(atomic_load(&index_was_read));
    atomic_store(&index_was_read, false);
    atomic_fetch_add(&now, 2 * CATALOG_CHECK_MS);
    ck_assert_int_eq(source_dir_listing(dir, &after), 0);
    ck_assert(atomic_load(&index_was_read)); /* it was made again */
    atomic_store(&settles_late, false);
    listing_unref(before);
    listing_unref(after);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("freshness");
    TCase *tests = tcase_create("freshness");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, checks_without_a_lock);
    tcase_add_test(tests, checks_when_due);
    tcase_add_test(tests, checks_again_if_expired_meanwhile);
    tcase_add_test(tests, makes_queries_without_known_lock);
    tcase_add_test(tests, listing_is_settled_before_names_are_read);
    suite_add_tcase(made, tests);
    return made;
}

#include "check_main.h"
