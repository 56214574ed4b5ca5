/* SPDX-License-Identifier: Apache-2.0 */
/* When the catalog looks at the files of a checkpoint again, and who waits for that: with a clock
 * and a storage that the test holds. The linker puts them in the place of the real ones. */
#include "base/clock.h"
#include "catalog/private.h"
#include "expect.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARDS = 40, AT_ONCE = 16, PATIENCE_MS = 10000 };

static char place[sizeof("/tmp/fstfs-test-look-XXXXXX")];
static struct catalog *catalog;
static struct source_dir *dir;
static struct listing *listing;
static const struct group *group;

static _Atomic(uint64_t) now; /* 0: the real clock */
static atomic_uint looks, held; /* files looked at; looks that wait */
static atomic_bool hold;

uint64_t __real_monotonic_ms(void);
uint64_t __wrap_monotonic_ms(void);
errint_t __real_source_dir_file(struct source_dir *directory, const char *name,
                                struct source_file *file);
errint_t __wrap_source_dir_file(struct source_dir *directory, const char *name,
                                struct source_file *file);

uint64_t
__wrap_monotonic_ms(void)
{
    uint64_t set = atomic_load(&now);

    return set ? set : __real_monotonic_ms();
}

errint_t
__wrap_source_dir_file(struct source_dir *directory, const char *name, struct source_file *file)
{
    atomic_fetch_add(&looks, 1);
    atomic_fetch_add(&held, 1);
    while (atomic_load(&hold))
        usleep(500);
    atomic_fetch_sub(&held, 1);
    return __real_source_dir_file(directory, name, file);
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
    struct catalog_options options = {.source = place};

    atomic_store(&now, 0);
    atomic_store(&hold, false);
    strcpy(place, "/tmp/fstfs-test-look-XXXXXX");
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

/* Another thread that asks for the checkpoint. */
struct asker {
    pthread_t thread;
    struct checkpoint *checkpoint;
    atomic_bool answered;
};

static void *
ask(void *arg)
{
    struct asker *asker = arg;

    expect(group_checkpoint(dir, group, &asker->checkpoint) == 0);
    atomic_store(&asker->answered, true);
    return NULL;
}

static void
ask_elsewhere(struct asker *asker)
{
    atomic_init(&asker->answered, false);
    ck_assert_int_eq(pthread_create(&asker->thread, NULL, ask, asker), 0);
}

static void
finish(struct asker *asker, const struct checkpoint *expected)
{
    pthread_join(asker->thread, NULL);
    expect(asker->checkpoint == expected);
    checkpoint_unref(asker->checkpoint);
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

/* Files are looked at side by side by one of those who ask. The others are answered from what is
 * known, and only later do they wait. */
START_TEST(looks_without_a_lock)
{
    struct checkpoint *checkpoint;
    struct asker first, second, late;
    bool side_by_side, answered;

    ck_assert_int_eq(group_checkpoint(dir, group, &checkpoint), 0);
    ck_assert_uint_eq(checkpoint->tensor_count, SHARDS);
    atomic_store(&looks, 0);
    atomic_store(&hold, true);
    atomic_fetch_add(&now, CATALOG_CHECK_MS);
    ask_elsewhere(&first);
    side_by_side = comes_to(&held, AT_ONCE);
    atomic_fetch_add(&now, CATALOG_LOOKING_MS / 2);
    ask_elsewhere(&second);
    answered = comes_true(&second.answered);
    atomic_fetch_add(&now, CATALOG_LOOKING_MS);
    ask_elsewhere(&late);
    usleep(20000); /* long enough for a wrong answer to show, mostly */
    expect(!atomic_load(&late.answered));
    atomic_store(&hold, false);
    finish(&first, checkpoint);
    finish(&second, checkpoint);
    finish(&late, checkpoint);
    ck_assert(side_by_side);
    ck_assert(answered);
    ck_assert_uint_eq(atomic_load(&looks), SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

/* As often as needed and no more: in CATALOG_CHECK_MS once, or when it is asked for. */
START_TEST(looks_when_due)
{
    struct checkpoint *checkpoint, *again;

    ck_assert_int_eq(group_checkpoint(dir, group, &checkpoint), 0);
    atomic_store(&looks, 0);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(group_checkpoint(dir, group, &again), 0);
        ck_assert_ptr_eq(again, checkpoint);
        checkpoint_unref(again);
        atomic_fetch_add(&now, (CATALOG_CHECK_MS - 1) / 3);
    }
    ck_assert_uint_eq(atomic_load(&looks), 0);
    source_dir_expire(dir);
    ck_assert_int_eq(group_checkpoint(dir, group, &again), 0);
    ck_assert_ptr_eq(again, checkpoint);
    checkpoint_unref(again);
    ck_assert_uint_eq(atomic_load(&looks), SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

/* A look that began before source_dir_expire() is not enough for who asks after it. */
START_TEST(expired_while_it_looks)
{
    struct checkpoint *checkpoint;
    struct asker first, second;

    ck_assert_int_eq(group_checkpoint(dir, group, &checkpoint), 0);
    atomic_store(&looks, 0);
    atomic_store(&hold, true);
    atomic_fetch_add(&now, CATALOG_CHECK_MS);
    ask_elsewhere(&first);
    ck_assert(comes_to(&held, 1));
    atomic_fetch_add(&now, 1);
    source_dir_expire(dir);
    atomic_fetch_add(&now, 1);
    ask_elsewhere(&second);
    atomic_store(&hold, false);
    finish(&first, checkpoint);
    finish(&second, checkpoint);
    ck_assert_uint_eq(atomic_load(&looks), 2 * SHARDS);
    checkpoint_unref(checkpoint);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("look");
    TCase *tests = tcase_create("look");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, looks_without_a_lock);
    tcase_add_test(tests, looks_when_due);
    tcase_add_test(tests, expired_while_it_looks);
    suite_add_tcase(made, tests);
    return made;
}

#include "check_main.h"
