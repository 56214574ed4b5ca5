/* SPDX-License-Identifier: Apache-2.0 */
/* Which permissions of the source a caller needs for each call on the mount. */
#include "view_source.h"

static const struct caller caller = {.uid = 1000, .gid = 1000, .pid = 1};

/* The permission checks since the last comparison, as "PATH:MASK" joined by spaces; and their
 * results. */
static struct buffer asked;
static const char *refused_path; /* NULL: none */
static errint_t refusal;
static unsigned refusals_left;

static errint_t
record_queries(const struct caller *who, const struct permission_query *queries, size_t count)
{
    ck_assert_ptr_eq(who, &caller);
    ck_assert_uint_gt(count, 0);
    for (size_t i = 0; i < count; i++) {
        buffer_addf(&asked, "%s%s:%s%s", asked.length ? " " : "",
                    *queries[i].path ? queries[i].path : ".", queries[i].mask & R_OK ? "r" : "",
                    queries[i].mask & X_OK ? "x" : "");
        if (refused_path && strcmp(queries[i].path, refused_path) == 0 && refusals_left > 0) {
            refusals_left--;
            return refusal;
        }
    }
    return 0;
}

static void
assert_asked(const char *expected)
{
    ck_assert_str_eq(asked.data ? asked.data : "", expected);
    buffer_free(&asked);
}

static void
refuse(const char *path, errint_t error, unsigned times)
{
    refused_path = path;
    refusal = error;
    refusals_left = times;
}

static void
write_page(void *arg, bool for_owner, struct buffer *out)
{
    (void)arg;
    (void)for_owner;
    buffer_add_text(out, "page\n");
}

static void
setup(void)
{
    static const struct view_page pages[] = {
        {.name = "private", .mode = 0400, .write = write_page, .open = write_page},
        {.name = "public", .mode = 0444, .write = write_page, .open = write_page},
    };
    const struct view_options options = {
        .root = -1, .pages = pages, .page_count = 2, .owner = 500, .check = record_queries};

    refuse(NULL, 0, 0);
    make_source();
    add_directory("m");
    add_small_shard("m/model-00001-of-00002.safetensors", "a");
    add_small_shard("m/model-00002-of-00002.safetensors", "b");
    add_file("m/config.json", "{}", 2);
    open_view(&options);
}

static void
teardown(void)
{
    close_view();
    remove_source();
    buffer_free(&asked);
}

/* The node of a path, looked up without recording the checks. */
static node_id
node_at(const char *path)
{
    struct stat st;
    node_id id;

    ck_assert_int_eq(find_as(&caller, VIEW_ROOT_ID, path, &id, &st), 0);
    buffer_free(&asked);
    return id;
}

static errint_t
look_up(const char *directory, const char *name)
{
    node_id parent = node_at(directory), id;
    struct stat st;
    errint_t error = view_lookup(view, &caller, parent, name, &id, &st);

    if (!error)
        view_forget(view, id, 1);
    view_forget(view, parent, 1);
    return error;
}

#define SHARD(n) "m/model-0000" #n "-of-00002.safetensors"

START_TEST(lookups_need_the_files)
{
    ck_assert_int_eq(look_up("merged", "m"), 0);
    assert_asked("m:");
    ck_assert_int_eq(look_up("merged/m", "config.json"), 0);
    assert_asked("m/config.json:");
    ck_assert_int_eq(look_up("merged/m", "model.safetensors"), 0);
    assert_asked("m:x " SHARD(1) ":r " SHARD(2) ":r");
    ck_assert_int_eq(look_up("tensors/m", "model"), 0);
    assert_asked("m:x " SHARD(1) ": " SHARD(2) ":");
    ck_assert_int_eq(look_up("tensors/m/model", "b"), 0);
    assert_asked(SHARD(1) ": " SHARD(2) ": " SHARD(2) ":r");
    ck_assert_int_eq(look_up("shards/m", "model-00001-of-00002.safetensors"), 0);
    assert_asked(SHARD(1) ":");
}
END_TEST

/* Only callers who may look the name up in the source, or read all shards, are allowed to see that
 * it does not exist. */
START_TEST(lookups_of_missing_names)
{
    ck_assert_int_eq(look_up("merged/m", "missing"), -ENOENT);
    assert_asked("m/missing:");
    ck_assert_int_eq(look_up("tensors/m/model", "missing"), -ENOENT);
    assert_asked(SHARD(1) ":r " SHARD(2) ":r " SHARD(1) ":r " SHARD(2) ":r");
    refuse("m", -EACCES, 9);
    buffer_free(&asked);
    {
        struct stat st;
        node_id id, parent;

        refuse(NULL, 0, 0);
        parent = node_at("merged/m");
        refuse("m/missing", -EACCES, 9);
        ck_assert_int_eq(view_lookup(view, &caller, parent, "missing", &id, &st), -EACCES);
        view_forget(view, parent, 1);
    }
}
END_TEST

/* Whether a generated name exists depends on the content of the shards. */
START_TEST(refused_lookups)
{
    refuse(SHARD(2), -EACCES, 1); /* only to read it */
    ck_assert_int_eq(look_up("merged/m", "model.safetensors"), 0);
    refuse(SHARD(2), -EACCES, 9);
    ck_assert_int_eq(look_up("merged/m", "model.safetensors"), -ENOENT);
    ck_assert_int_eq(look_up("tensors/m", "model"), -ENOENT);
    ck_assert_int_eq(look_up("shards/m", "model-00001-of-00002.safetensors"), 0);
    refuse("m/config.json", -EACCES, 9);
    ck_assert_int_eq(look_up("merged/m", "config.json"), -EACCES);
    refuse("m", -EACCES, 9);
    ck_assert_int_eq(look_up("merged", "m"), -EACCES);
}
END_TEST

/* A refused lookup leaves no node behind. */
START_TEST(refused_lookups_keep_no_nodes)
{
    uint64_t nodes, sets;

    refuse("m/config.json", -EACCES, 9);
    ck_assert_int_eq(look_up("merged/m", "config.json"), -EACCES);
    refuse(SHARD(1), -EACCES, 9);
    ck_assert_int_eq(look_up("merged/m", "model.safetensors"), -ENOENT);
    view_counters(view, &nodes, &sets);
    ck_assert_uint_eq(nodes, 1);
    ck_assert_uint_eq(sets, 0);
}
END_TEST

/* If the source has changed, the call checks it once more. */
START_TEST(stale_answers_are_retried_once)
{
    refuse("m/config.json", -ESTALE, 1);
    ck_assert_int_eq(look_up("merged/m", "config.json"), 0);
    refuse("m/config.json", -ESTALE, 9);
    ck_assert_int_eq(look_up("merged/m", "config.json"), -ESTALE);
    ck_assert_uint_eq(refusals_left, 5); /* two attempts, each with a check of the name */
}
END_TEST

static errint_t
open_path(const char *path)
{
    node_id id = node_at(path);
    struct extent_list *list;
    bool live;
    errint_t error = view_open(view, &caller, id, &list, &live);

    if (!error)
        view_close(view, list);
    view_forget(view, id, 1);
    return error;
}

START_TEST(opens_need_read_permission)
{
    ck_assert_int_eq(open_path("merged/m/config.json"), 0);
    assert_asked("m/config.json:r");
    ck_assert_int_eq(open_path("merged/m/model.safetensors"), 0);
    assert_asked(SHARD(1) ":r " SHARD(2) ":r");
    ck_assert_int_eq(open_path("tensors/m/model/a"), 0);
    assert_asked(SHARD(1) ":r");
    ck_assert_int_eq(open_path("npy/m/model/b.npy"), 0);
    assert_asked(SHARD(2) ":r");
    ck_assert_int_eq(open_path(".fstfs/public"), 0);
    ck_assert_int_eq(open_path(".fstfs/private"), -EACCES);
    assert_asked("");
}
END_TEST

static errint_t
list_path(const char *path)
{
    node_id id = node_at(path);
    struct view_directory *directory;
    errint_t error = view_opendir(view, &caller, id, &directory);

    if (!error)
        view_closedir(view, directory);
    view_forget(view, id, 1);
    return error;
}

START_TEST(listings_need_read_permission)
{
    ck_assert_int_eq(list_path("merged/m"), 0);
    assert_asked("m:r " SHARD(1) ":r " SHARD(2) ":r"); /* for the merged file */
    ck_assert_int_eq(list_path("shards/m"), 0);
    assert_asked("m:r " SHARD(1) ":r " SHARD(2) ":r"); /* for the index */
    ck_assert_int_eq(list_path("tensors/m/model"), 0);
    assert_asked(SHARD(1) ":r " SHARD(2) ":r");
    ck_assert_int_eq(list_path(".fstfs"), 0);
    assert_asked("");
}
END_TEST

START_TEST(xattrs_need_read_permission)
{
    struct buffer value = BUFFER_INIT;
    node_id id = node_at("merged/m/model.safetensors");

    ck_assert_int_eq(view_getxattr(view, &caller, id, "user.fstfs.source", &value), 0);
    assert_asked(SHARD(1) ":r " SHARD(2) ":r");
    view_forget(view, id, 1);
    id = node_at("tensors/m/model/a");
    refuse(SHARD(1), -EACCES, 9);
    buffer_free(&value);
    ck_assert_int_eq(view_getxattr(view, &caller, id, "user.safetensors.name", &value), -EACCES);
    ck_assert_uint_eq(value.length, 0);
    view_forget(view, id, 1);
}
END_TEST

START_TEST(access_masks)
{
    static const struct {
        const char *path;
        int mask;
        errint_t error;
        const char *asked;
    } cases[] = {
        {"merged/m", W_OK, -EROFS, ""},
        {"merged/m", R_OK | X_OK, 0, "m:rx"},
        {"merged/m/config.json", R_OK, 0, "m/config.json:r"},
        {"merged/m/config.json", X_OK, 0, "m/config.json:x"},
        {"tensors/m/model", X_OK, 0, SHARD(1) ":r " SHARD(2) ":r"},
        {"tensors/m/model/a", R_OK, 0, SHARD(1) ":r"},
        {"tensors/m/model/a", X_OK, -EACCES, ""},
        {"tensors/m/model/a", F_OK, 0, ""},
        {".fstfs/public", R_OK, 0, ""},
        {".fstfs/public", X_OK, -EACCES, ""},
        {".fstfs/private", R_OK, -EACCES, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        node_id id = node_at(cases[i].path);

        ck_assert_msg(view_access(view, &caller, id, cases[i].mask) == cases[i].error,
                      "%s, mask %d", cases[i].path, cases[i].mask);
        assert_asked(cases[i].asked);
        view_forget(view, id, 1);
    }
}
END_TEST

/* The kernel must not cache the names whose lookup is checked. */
START_TEST(checked_names)
{
    static const char *const checked[] = {"merged", "merged/m", "tensors/m/model"};
    static const char *const unchecked[] = {".fstfs", "merged/m/config.json", "tensors/m/model/a"};

    ck_assert(!view_checks_names(view, VIEW_ROOT_ID));
    for (int i = 0; i < 3; i++) {
        node_id id = node_at(checked[i]);

        ck_assert(view_checks_names(view, id));
        view_forget(view, id, 1);
        id = node_at(unchecked[i]);
        ck_assert(!view_checks_names(view, id));
        view_forget(view, id, 1);
    }
}
END_TEST

/* A refused shard is checked like any other. A checkpoint of which no shard exists requires access
 * to its index. */
START_TEST(checkpoints_without_tensors)
{
    static const char missing[] = "{\"weight_map\": {\"a\": \"model-00001-of-00001.safetensors\"}}";

    add_directory("bad");
    add_file("bad/model.safetensors", "garbage garbage", 15);
    ck_assert_int_eq(look_up("tensors/bad", "model"), 0);
    assert_asked("bad:x bad/model.safetensors:");
    add_directory("none");
    add_file("none/model.safetensors.index.json", missing, strlen(missing));
    ck_assert_int_eq(look_up("tensors/none", "model"), 0);
    assert_asked("none:x none/model.safetensors.index.json:");
}
END_TEST

static Suite *
suite(void)
{
    Suite *suite = suite_create("rights");
    TCase *tests = tcase_create("rights");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, lookups_need_the_files);
    tcase_add_test(tests, lookups_of_missing_names);
    tcase_add_test(tests, refused_lookups);
    tcase_add_test(tests, refused_lookups_keep_no_nodes);
    tcase_add_test(tests, stale_answers_are_retried_once);
    tcase_add_test(tests, opens_need_read_permission);
    tcase_add_test(tests, listings_need_read_permission);
    tcase_add_test(tests, xattrs_need_read_permission);
    tcase_add_test(tests, access_masks);
    tcase_add_test(tests, checked_names);
    tcase_add_test(tests, checkpoints_without_tensors);
    suite_add_tcase(suite, tests);
    return suite;
}

#include "check_main.h"
