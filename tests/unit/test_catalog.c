/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog of a directory: listings, checkpoints, sharing between their versions, and reported
 * problems. test_freshness.c tests when the catalog checks the source. */
#include "base/buffer.h"
#include "catalog/catalog.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char place[sizeof("/tmp/fstfs-test-catalog-XXXXXX")];
static struct catalog *catalog;
static struct source_dir *dir;

static void
setup(void)
{
    struct catalog_options options = {.source = place};

    strcpy(place, "/tmp/fstfs-test-catalog-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    ck_assert_int_eq(catalog_new(&options, &catalog), 0);
    dir = catalog_root(catalog);
    ck_assert_ptr_nonnull(dir);
}

static void
teardown(void)
{
    struct catalog_counters counters;
    char command[100];

    source_dir_unref(dir);
    catalog_counters(catalog, &counters);
    ck_assert_uint_eq(counters.checkpoints, 0);
    ck_assert_uint_eq(counters.tensors, 0);
    ck_assert_uint_eq(counters.table_bytes, 0);
    catalog_free(catalog);
    snprintf(command, sizeof(command), "rm -r %s", place);
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): a fixed command */
}

static void
path_in_place(const char *name, char path[200])
{
    snprintf(path, 200, "%s/%s", place, name);
}

static void
write_file(const char *name, const void *bytes, size_t length)
{
    char path[200];
    FILE *file;

    path_in_place(name, path);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static void
write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* A safetensors file with `count` tensors of one byte; the variable arguments are their names. */
static void
write_shard(const char *name, unsigned count, ...)
{
    struct buffer file = BUFFER_INIT;
    va_list names;

    va_start(names, count);
    st_header_begin(&file);
    for (uint64_t i = 0; i < count; i++) {
        const char *tensor = va_arg(names, const char *);
        const uint64_t one = 1;

        st_header_tensor(&file, tensor, strlen(tensor), "U8", 2, &one, 1, i, i + 1);
    }
    va_end(names);
    ck_assert_int_eq(st_header_finish(&file, 8), 0);
    buffer_add_repeat(&file, 'x', count);
    write_file(name, file.data, file.length);
    buffer_free(&file);
}

static struct listing *
new_listing(void)
{
    struct listing *listing;

    source_dir_expire(dir);
    ck_assert_int_eq(source_dir_listing(dir, &listing), 0);
    return listing;
}

/* The checkpoint of the listing's only group. */
static struct checkpoint *
only_checkpoint(void)
{
    struct listing *listing = new_listing();
    struct checkpoint *checkpoint;

    ck_assert_uint_eq(listing->group_count, 1);
    ck_assert_int_eq(group_checkpoint(dir, &listing->groups[0], &checkpoint), 0);
    listing_unref(listing);
    return checkpoint;
}

static void
assert_tensors(const struct checkpoint *checkpoint, const char *expected)
{
    struct buffer names = BUFFER_INIT;

    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];
        const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

        buffer_addf(&names, "%.*s@%u ", (int)tensor->name_length,
                    checkpoint->shards[ref.shard]->table->text + tensor->name, ref.shard);
    }
    ck_assert_str_eq(names.data ? names.data : "", expected);
    buffer_free(&names);
}

static void
assert_problem(const char *text)
{
    struct buffer page = BUFFER_INIT;

    catalog_write_problems(catalog, &page);
    ck_assert_msg(page.data && strstr(page.data, text), "%s is not in:\n%s", text,
                  page.data ? page.data : "");
    buffer_free(&page);
}

/* ---- listings ---- */

START_TEST(lists_sorted_names_by_kind)
{
    struct listing *listing;
    char path[200];

    write_text("config.json", "{}");
    write_text("a.txt", "a");
    path_in_place("folder", path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    path_in_place("again", path);
    ck_assert_int_eq(symlink("folder", path), 0);
    path_in_place("loop", path);
    ck_assert_int_eq(symlink(".", path), 0);
    path_in_place("dangling", path);
    ck_assert_int_eq(symlink("nowhere", path), 0);
    path_in_place("fifo", path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    listing = new_listing();
    ck_assert_uint_eq(listing->file_count, 2);
    ck_assert_str_eq(listing->files[0], "a.txt");
    ck_assert_str_eq(listing->files[1], "config.json");
    ck_assert_uint_eq(listing->directory_count, 2);
    ck_assert_str_eq(listing->directories[0], "again");
    ck_assert_str_eq(listing->directories[1], "folder");
    ck_assert_uint_eq(listing->group_count, 0);
    assert_problem("loop: left out");
    assert_problem("dangling: left out");
    assert_problem("fifo: left out");
    listing_unref(listing);
}
END_TEST

/* Makes the target of the link `name` usable, which does not change the directory, and checks that
 * the next listing shows the link. */
static void
expect_link_is_shown(const char *name, void (*repair)(void))
{
    struct listing *listing = new_listing();

    for (int tries = 0; tries < 200; tries++) { /* until the directory's time stamp is settled */
        struct listing *again = new_listing();
        bool is_same = again == listing;

        listing_unref(listing);
        listing = again;
        if (is_same)
            break;
        usleep(10000);
    }
    for (uint32_t i = 0; i < listing->file_count; i++)
        ck_assert_str_ne(listing->files[i], name);
    listing_unref(listing);
    repair();
    listing = new_listing();
    ck_assert_uint_eq(listing->file_count, 1);
    ck_assert_str_eq(listing->files[0], name);
    listing_unref(listing);
}

static void
replace_target(void)
{
    char path[200];

    path_in_place("elsewhere/target", path);
    ck_assert_int_eq(remove(path), 0);
    write_text("elsewhere/target", "x");
}

static void
link_to_target(void)
{
    char path[200];

    path_in_place("elsewhere", path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    path_in_place("link", path);
    ck_assert_int_eq(symlink("elsewhere/target", path), 0);
}

START_TEST(shows_a_link_whose_target_was_a_fifo)
{
    char path[200];

    link_to_target();
    path_in_place("elsewhere/target", path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    expect_link_is_shown("link", replace_target);
}
END_TEST

START_TEST(shows_a_link_whose_target_was_a_loop)
{
    char path[200];

    link_to_target();
    path_in_place("elsewhere/target", path);
    ck_assert_int_eq(symlink("target", path), 0);
    expect_link_is_shown("link", replace_target);
}
END_TEST

START_TEST(replaces_a_listing_that_changed)
{
    struct listing *before, *after;

    write_text("a", "");
    before = new_listing();
    after = new_listing();
    for (int tries = 0; tries < 200 && after != before; tries++) {
        usleep(10000); /* until another change is certain to update the directory's times */
        listing_unref(before);
        before = after;
        after = new_listing();
    }
    ck_assert_ptr_eq(after, before); /* unchanged: the same listing */
    listing_unref(after);
    write_text("b", "");
    source_dir_expire_listing(dir);
    ck_assert_int_eq(source_dir_listing(dir, &after), 0);
    ck_assert_uint_eq(after->file_count, 2);
    ck_assert_uint_eq(before->file_count, 1); /* the old one stays valid */
    ck_assert_str_eq(before->files[0], "a");
    listing_unref(after);
    listing_unref(before);
}
END_TEST

START_TEST(fails_for_a_missing_directory)
{
    struct source_dir *missing = source_dir_child(dir, "missing");
    struct file_identity file;
    struct listing *listing;
    struct file_identity identity;

    ck_assert_int_eq(source_dir_stat(missing, &identity), -ENOENT);
    ck_assert_int_eq(source_dir_listing(missing, &listing), -ENOENT);
    write_text("missing", "now a file");
    ck_assert_int_eq(source_dir_stat(missing, &identity), -ENOTDIR);
    ck_assert_int_eq(source_dir_file(dir, "missing", &file), 0);
    ck_assert_int_eq(source_dir_file(dir, ".", &file), -EISDIR);
    source_dir_unref(missing);
}
END_TEST

/* ---- checkpoints ---- */

#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"

START_TEST(merges_shards_by_name)
{
    struct checkpoint *checkpoint;
    char path[200];

    write_shard(FIRST, 2, "c", "a");
    write_shard(SECOND, 2, "b", "d");
    path_in_place(SECOND, path);
    ck_assert_int_eq(chmod(path, 0640), 0);
    path_in_place(FIRST, path);
    ck_assert_int_eq(chmod(path, 0604), 0);
    checkpoint = only_checkpoint();
    assert_tensors(checkpoint, "a@0 b@1 c@0 d@1 ");
    ck_assert_ptr_null(checkpoint->unsound);
    ck_assert_str_eq(checkpoint->stem, "model");
    ck_assert_str_eq(checkpoint->suffix, ".safetensors");
    ck_assert_uint_eq(checkpoint->ownership.mode, 0400); /* common bits, without write bits */
    ck_assert_uint_eq(catalog_count_problems(catalog), 0);
    checkpoint_unref(checkpoint);
}
END_TEST

START_TEST(drops_a_tensor_in_two_shards)
{
    struct checkpoint *checkpoint;

    write_shard(FIRST, 2, "both", "a");
    write_shard(SECOND, 2, "b", "both");
    checkpoint = only_checkpoint();
    assert_tensors(checkpoint, "a@0 b@1 ");
    ck_assert_ptr_nonnull(checkpoint->unsound);
    assert_problem("DuplicateTensorName: tensor both is also in " FIRST);
    checkpoint_unref(checkpoint);
}
END_TEST

START_TEST(refuses_one_shard_only)
{
    struct checkpoint *checkpoint;

    write_shard(FIRST, 1, "a");
    write_text(SECOND, "short");
    checkpoint = only_checkpoint();
    assert_tensors(checkpoint, "a@0 ");
    ck_assert_ptr_nonnull(checkpoint->unsound);
    ck_assert_ptr_null(checkpoint->shards[0]->refusal);
    ck_assert_int_eq(checkpoint->shards[1]->error, -EBADMSG);
    ck_assert(!checkpoint->shards[1]->temporary);
    assert_problem(SECOND ": refused: HeaderTooSmall");
    checkpoint_unref(checkpoint);
}
END_TEST

START_TEST(reports_a_missing_shard)
{
    struct checkpoint *checkpoint;

    write_shard(FIRST, 1, "a");
    checkpoint = only_checkpoint();
    assert_tensors(checkpoint, "a@0 ");
    ck_assert_ptr_nonnull(checkpoint->unsound);
    assert_problem("shard 2 of 2 of model does not exist");
    checkpoint_unref(checkpoint);
}
END_TEST

/* Problems are removed when the source is repaired. */
START_TEST(forgets_problems_of_a_repaired_shard)
{
    write_shard(FIRST, 1, "a");
    write_text(SECOND, "short");
    checkpoint_unref(only_checkpoint());
    ck_assert_uint_gt(catalog_count_problems(catalog), 0);
    write_shard(SECOND, 1, "b");
    checkpoint_unref(only_checkpoint());
    ck_assert_uint_eq(catalog_count_problems(catalog), 0);
}
END_TEST

START_TEST(shares_unchanged_shards_between_versions)
{
    struct checkpoint *before, *same, *after;
    uint64_t version;

    write_shard(FIRST, 1, "a");
    write_shard(SECOND, 1, "b");
    before = only_checkpoint();
    version = before->version;
    same = only_checkpoint();
    ck_assert_ptr_eq(same, before);
    write_shard(SECOND, 2, "c", "d");
    after = only_checkpoint();
    ck_assert_ptr_ne(after, before);
    ck_assert_uint_gt(after->serial, before->serial);
    ck_assert_uint_ne(after->version, version);
    ck_assert_ptr_eq(after->shards[0], before->shards[0]);
    ck_assert_ptr_eq(after->family, before->family);
    assert_tensors(after, "a@0 c@1 d@1 ");
    assert_tensors(before, "a@0 b@1 "); /* the old one stays valid */
    checkpoint_unref(before);
    checkpoint_unref(same);
    checkpoint_unref(after);
}
END_TEST

/* A file has one table, whatever the number of its names. */
START_TEST(shares_the_table_of_links)
{
    struct checkpoint *checkpoints[2];
    struct listing *listing;
    char path[200];

    write_shard("one.safetensors", 3, "x", "z", "y");
    path_in_place("two.safetensors", path);
    ck_assert_int_eq(symlink("one.safetensors", path), 0);
    listing = new_listing();
    ck_assert_uint_eq(listing->group_count, 2);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(group_checkpoint(dir, &listing->groups[i], &checkpoints[i]), 0);
    ck_assert_ptr_eq(checkpoints[0]->shards[0]->table, checkpoints[1]->shards[0]->table);
    ck_assert_ptr_eq(checkpoints[0]->tensors, checkpoints[1]->tensors);
    assert_tensors(checkpoints[1], "x@0 y@0 z@0 ");
    checkpoint_unref(checkpoints[0]);
    checkpoint_unref(checkpoints[1]);
    listing_unref(listing);
}
END_TEST

/* ---- indexes ---- */

#define INDEX "model.safetensors.index.json"

START_TEST(reads_an_index)
{
    struct checkpoint *checkpoint;
    struct reason reason;

    write_shard("x.safetensors", 1, "a");
    write_shard("y.safetensors", 1, "b");
    write_text(INDEX, "{\"metadata\":{\"total_size\":2},"
                      "\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}");
    checkpoint = only_checkpoint();
    assert_tensors(checkpoint, "a@0 b@1 ");
    ck_assert_ptr_null(checkpoint->unsound);
    ck_assert(checkpoint->has_total_size);
    ck_assert_uint_eq(checkpoint->total_size, 2);
    ck_assert_mem_eq(checkpoint->index_metadata, "{\"total_size\":2}",
                     checkpoint->index_metadata_length);
    ck_assert_int_eq(source_dir_check_index(dir, INDEX, &reason), 0);
    checkpoint_unref(checkpoint);
}
END_TEST

START_TEST(reports_differences_of_index_and_shards)
{
    struct checkpoint *checkpoint;

    write_shard("x.safetensors", 2, "a", "moved");
    write_shard("y.safetensors", 1, "unlisted");
    write_text(INDEX, "{\"weight_map\":{\"a\":\"x.safetensors\",\"moved\":\"y.safetensors\","
                      "\"absent\":\"x.safetensors\"}}");
    checkpoint = only_checkpoint();
    assert_tensors(checkpoint, "a@0 moved@0 unlisted@1 ");
    ck_assert_ptr_nonnull(checkpoint->unsound);
    assert_problem("names tensor absent, which is in no valid shard");
    assert_problem("tensor unlisted of y.safetensors is not in the index");
    assert_problem("lists tensor moved in y.safetensors; it is in x.safetensors");
    checkpoint_unref(checkpoint);
}
END_TEST

/* An index of which no shard exists yet, as during a download. */
START_TEST(no_room_for_a_checkpoint_without_shards)
{
    struct checkpoint *checkpoint;

    write_text(INDEX, "{\"weight_map\":{\"a\":\"x.safetensors\"}}");
    checkpoint = only_checkpoint();
    ck_assert_uint_eq(checkpoint->shard_count, 0);
    checkpoint_report_no_room(checkpoint, 0, "its list of tensors");
    assert_problem(INDEX ": NoMemoryForHeaders: no room for its list of tensors");
    checkpoint_unref(checkpoint);
}
END_TEST

/* The other shard, which the index names, exists. */
START_TEST(reports_a_shard_that_the_index_does_not_name)
{
    struct listing *listing;
    struct buffer page = BUFFER_INIT;

    write_shard(FIRST, 1, "a");
    write_shard(SECOND, 1, "b");
    write_text(INDEX, "{\"weight_map\":{\"a\":\"" FIRST "\"}}");
    listing = new_listing();
    ck_assert_uint_eq(listing->group_count, 2);
    assert_problem(SECOND ": an index names other shards of model, but not this one");
    catalog_write_problems(catalog, &page);
    ck_assert_ptr_null(strstr(page.data, "does not exist"));
    buffer_free(&page);
    listing_unref(listing);
}
END_TEST

START_TEST(refuses_an_index)
{
    struct reason reason;
    struct listing *listing;

    write_shard("model.safetensors", 1, "a");
    write_text(INDEX, "[]");
    listing = new_listing();
    ck_assert_uint_eq(listing->group_count, 1);
    ck_assert_int_eq((int)listing->groups[0].kind, (int)GROUP_SINGLE);
    assert_problem(INDEX ": refused: InvalidIndex");
    ck_assert_int_eq(source_dir_check_index(dir, INDEX, &reason), -EBADMSG);
    ck_assert_str_eq(reason.rule, "InvalidIndex");
    ck_assert_int_eq(source_dir_check_index(dir, "no.json", &reason), -ENOENT);
    listing_unref(listing);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("catalog");
    TCase *tests = tcase_create("catalog");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, lists_sorted_names_by_kind);
    tcase_add_test(tests, shows_a_link_whose_target_was_a_fifo);
    tcase_add_test(tests, shows_a_link_whose_target_was_a_loop);
    tcase_add_test(tests, replaces_a_listing_that_changed);
    tcase_add_test(tests, fails_for_a_missing_directory);
    tcase_add_test(tests, merges_shards_by_name);
    tcase_add_test(tests, drops_a_tensor_in_two_shards);
    tcase_add_test(tests, refuses_one_shard_only);
    tcase_add_test(tests, reports_a_missing_shard);
    tcase_add_test(tests, forgets_problems_of_a_repaired_shard);
    tcase_add_test(tests, shares_unchanged_shards_between_versions);
    tcase_add_test(tests, shares_the_table_of_links);
    tcase_add_test(tests, reads_an_index);
    tcase_add_test(tests, reports_differences_of_index_and_shards);
    tcase_add_test(tests, no_room_for_a_checkpoint_without_shards);
    tcase_add_test(tests, reports_a_shard_that_the_index_does_not_name);
    tcase_add_test(tests, refuses_an_index);
    suite_add_tcase(made, tests);
    return made;
}

#include "check_main.h"
