/* SPDX-License-Identifier: Apache-2.0 */
/* What the mount shows: names, attributes, extents and xattrs of files, in every view. */
#include "view_source.h"

#include <linux/limits.h>

static const struct tensor_spec weights[] = {{"a", "F32", 4, 16}, {"b/c", "U8", 10, 10}};

static void
write_page(void *arg, bool for_owner, struct buffer *out)
{
    (void)arg;
    (void)for_owner;
    buffer_add_text(out, "page\n");
}

static const struct view_page pages[] = {
    {.name = "status", .mode = 0444, .write = write_page, .open = write_page}};

static const struct view_options all_views = {.root = -1, .pages = pages, .page_count = 1};

static void
setup(void)
{
    make_source();
    add_directory("one");
    add_shard("one/model.safetensors", weights, 2);
    add_file("one/config.json", "{}", 2);
    add_directory("two");
    add_shard("two/model-00001-of-00002.safetensors", weights, 2);
    add_small_shard("two/model-00002-of-00002.safetensors", "d");
    open_view(&all_views);
}

static void
teardown(void)
{
    close_view();
    remove_source();
}

static void
reopen(const struct view_options *options)
{
    close_view();
    open_view(options);
}

/* ---- directories ---- */

/* The names in a directory, joined by spaces. */
static char *
names_in(const char *path)
{
    node_id id = *path ? must_find(path, NULL) : VIEW_ROOT_ID;
    struct view_directory *directory;
    struct buffer names = BUFFER_INIT;
    const char *name;
    struct stat st;

    ck_assert_int_eq(view_opendir(view, NULL, id, &directory), 0);
    for (uint64_t i = 2; view_readdir(view, directory, i, &name, &st) == 0; i++) {
        if (i > 2)
            buffer_add_char(&names, ' ');
        buffer_add_text(&names, name);
    }
    view_closedir(view, directory);
    forget_unless_root(id);
    buffer_add(&names, "", 0);
    return names.data;
}

static void
assert_names(const char *path, const char *expected)
{
    char *names = names_in(path);

    ck_assert_msg(strcmp(names ? names : "", expected) == 0, "%s has %s", path, names);
    free(names);
}

START_TEST(every_view_lists_its_files)
{
    assert_names("", ".fstfs merged npy shards tensors");
    assert_names(".fstfs", "status");
    assert_names("tensors", "one two");
    assert_names("tensors/one", "model model.index.json");
    assert_names("tensors/one/model", "a b%2Fc");
    assert_names("npy/two", "model");
    assert_names("npy/two/model", "a.npy b%2Fc.npy d.npy");
    assert_names("merged/one", "config.json model.safetensors");
    assert_names("merged/two", "model.safetensors");
    assert_names("shards/one", "config.json model.safetensors");
    assert_names("shards/two", "model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
                               "model.safetensors.index.json");
}
END_TEST

/* Calls `visit` for each file and directory below a directory. */
static void
walk(node_id id, const char *path, void (*visit)(const char *path, node_id id, struct stat *st))
{
    struct view_directory *directory;
    char child_path[2000], before[300] = "";
    const char *name;
    struct stat entry, st;
    node_id child;

    ck_assert_int_eq(view_opendir(view, NULL, id, &directory), 0);
    for (uint64_t i = 2; view_readdir(view, directory, i, &name, &entry) == 0; i++) {
        ck_assert_str_lt(before, name);
        strcpy(before, name);
        snprintf(child_path, sizeof(child_path), "%s/%s", path, name);
        ck_assert_int_eq(view_lookup(view, NULL, id, name, &child, &st), 0);
        ck_assert_msg(st.st_ino == entry.st_ino, "%s has two inode numbers", child_path);
        ck_assert_uint_eq(st.st_mode & S_IFMT, entry.st_mode);
        visit(child_path, child, &st);
        if (S_ISDIR(st.st_mode))
            walk(child, child_path, visit);
        view_forget(view, child, 1);
    }
    view_closedir(view, directory);
}

static void
check_file(const char *path, node_id id, struct stat *st)
{
    struct extent_list *list;
    struct stat again;
    bool live;

    ck_assert_int_eq(st->st_mode & 0222, 0);
    ck_assert_int_eq(view_getattr(view, NULL, id, &again), 0);
    ck_assert_uint_eq(again.st_ino, st->st_ino);
    ck_assert_uint_eq(again.st_mode, st->st_mode);
    ck_assert_int_eq(again.st_size, st->st_size);
    if (!S_ISREG(st->st_mode)) {
        ck_assert_int_eq(view_open(view, NULL, id, &list, &live), -EISDIR);
        return;
    }
    ck_assert_int_eq(view_open(view, NULL, id, &list, &live), 0);
    ck_assert_msg(list->size == (uint64_t)st->st_size, "%s: stat and open differ", path);
    ck_assert(live == (strncmp(path, "/.fstfs", 7) == 0));
    view_close(view, list);
}

/* Sorted names, one inode number for each file, sizes as read, and no write bits. */
START_TEST(listing_lookup_and_open_agree)
{
    static const struct view_options recut = {
        .root = -1, .shards = 3, .pages = pages, .page_count = 1};

    walk(VIEW_ROOT_ID, "", check_file);
    reopen(&recut);
    walk(VIEW_ROOT_ID, "", check_file);
}
END_TEST

START_TEST(directory_positions)
{
    node_id id = must_find("merged/one", NULL), file;
    struct stat parent, self, st;
    struct view_directory *directory;
    const char *name;

    view_forget(view, must_find("merged", &parent), 1);
    ck_assert_int_eq(view_getattr(view, NULL, id, &self), 0);
    ck_assert_int_eq(view_opendir(view, NULL, id, &directory), 0);
    ck_assert_int_eq(view_readdir(view, directory, 3, &name, &st), 0);
    ck_assert_str_eq(name, "model.safetensors");
    ck_assert_int_eq(view_readdir(view, directory, 4, &name, &st), -ENOENT);
    ck_assert_int_eq(view_readdir(view, directory, 0, &name, &st), 0);
    ck_assert_str_eq(name, ".");
    ck_assert_uint_eq(st.st_ino, self.st_ino);
    ck_assert_int_eq(view_readdir(view, directory, 1, &name, &st), 0);
    ck_assert_str_eq(name, "..");
    ck_assert_uint_eq(st.st_ino, parent.st_ino);
    ck_assert_int_eq(view_readdir(view, directory, UINT64_MAX, &name, &st), -ENOENT);
    ck_assert_int_eq(view_readdir_lookup(view, directory, 1, &file, &st), -ENOENT);
    ck_assert_int_eq(view_readdir_lookup(view, directory, 2, &file, &st), 0);
    ck_assert_int_eq(st.st_size, 2);
    view_forget(view, file, 1);
    view_closedir(view, directory);
    view_forget(view, id, 1);
}
END_TEST

/* An open tensor directory shows one version; the next open shows the next version. */
START_TEST(directory_follows_the_source)
{
    node_id id = must_find("tensors/one/model", NULL);
    struct view_directory *before;
    const char *name;
    struct stat st;

    ck_assert_int_eq(view_opendir(view, NULL, id, &before), 0);
    add_small_shard("one/model.safetensors", "new");
    usleep((CATALOG_CHECK_MS + 100) * 1000);
    assert_names("tensors/one/model", "new");
    ck_assert_int_eq(view_readdir(view, before, 2, &name, &st), 0);
    ck_assert_str_eq(name, "a");
    view_closedir(view, before);
    view_forget(view, id, 1);
}
END_TEST

/* ---- lookup ---- */

START_TEST(names_that_do_not_exist)
{
    char name[300];

    ck_assert_int_eq(find_error("nothing"), ENOENT);
    ck_assert_int_eq(find_error("tensors/one/nothing"), ENOENT);
    ck_assert_int_eq(find_error("tensors/one/model/z"), ENOENT);
    ck_assert_int_eq(find_error("tensors/one/config.json"), ENOENT);
    ck_assert_int_eq(find_error("npy/one/model.index.json"), ENOENT);
    ck_assert_int_eq(find_error("npy/one/model/a"), ENOENT);
    ck_assert_int_eq(find_error("merged/two/model-00001-of-00002.safetensors"), ENOENT);
    ck_assert_int_eq(find_error("merged/two/model.safetensors.index.json"), ENOENT);
    ck_assert_int_eq(find_error(".fstfs/nothing"), ENOENT);
    ck_assert_int_eq(find_error("merged/one/config.json/x"), ENOTDIR);
    ck_assert_int_eq(find_error("tensors/one/model/a/x"), ENOTDIR);
    memset(name, 'x', 299);
    name[256] = '\0';
    ck_assert_int_eq(find_error(name), ENAMETOOLONG);
}
END_TEST

START_TEST(a_new_file_is_found_at_once)
{
    /* The node keeps the listing. */
    node_id directory = must_find("merged/one", NULL);

    usleep(100000); /* until then the directory is read each time, see `unsettled` of listing.c */
    ck_assert_int_eq(find_error("merged/one/config.json"), 0);
    add_file("one/late", "x", 1);
    ck_assert_int_eq(find_error("merged/one/late"), 0);
    usleep(100000);
    ck_assert_int_eq(find_error("tensors/one/model/a"), 0);
    add_small_shard("one/other.safetensors", "t");
    ck_assert_int_eq(find_error("tensors/one/other/t"), 0);
    view_forget(view, directory, 1);
}
END_TEST

START_TEST(links_are_shown_as_what_they_refer_to)
{
    char path[600];
    struct stat st;

    source_path("link", path);
    ck_assert_int_eq(symlink("one", path), 0);
    source_path("one/alias.json", path);
    ck_assert_int_eq(symlink("config.json", path), 0);
    source_path("one/dangling", path);
    ck_assert_int_eq(symlink("nothing", path), 0);
    view_forget(view, must_find("tensors/link/model/a", &st), 1);
    ck_assert_int_eq(st.st_size, 16);
    view_forget(view, must_find("merged/link/alias.json", &st), 1);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0440);
    ck_assert_int_eq(find_error("merged/one/dangling"), ENOENT);
}
END_TEST

static void
assert_xattr(const char *path, const char *name, const char *expected)
{
    node_id id = must_find(path, NULL);
    struct buffer value = BUFFER_INIT;

    ck_assert_int_eq(view_getxattr(view, NULL, id, name, &value), 0);
    ck_assert_uint_eq(value.length, strlen(expected));
    ck_assert_mem_eq(value.data ? value.data : "", expected, value.length);
    buffer_free(&value);
    view_forget(view, id, 1);
}

START_TEST(tensor_names_are_escaped)
{
    static const struct {
        const char *name, *file;
    } cases[] = {
        {"%41", "%2541"}, {".hidden", "%2Ehidden"}, {"line\n", "line%0A"}, {"\xc3\xa9", "\xc3\xa9"},
        {"", "%"},        {"a..b", "a..b"},
    };
    struct tensor_spec tensors[sizeof(cases) / sizeof(cases[0])];
    char path[600];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        tensors[i] = (struct tensor_spec){cases[i].name, "U8", 1, 1};
    add_shard("names.safetensors", tensors, sizeof(cases) / sizeof(cases[0]));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(path, sizeof(path), "tensors/names/%s", cases[i].file);
        assert_xattr(path, "user.safetensors.name", cases[i].name);
        snprintf(path, sizeof(path), "npy/names/%s.npy", cases[i].file);
        assert_xattr(path, "user.safetensors.name", cases[i].name);
    }
    ck_assert_int_eq(find_error("tensors/names/.hidden"), ENOENT);
    ck_assert_int_eq(find_error("tensors/names/%41"), ENOENT);
}
END_TEST

/* Names that are equal in their first 300 bytes have different files. */
START_TEST(long_tensor_names_are_truncated)
{
    char names[2][302], file[1000], *both, *second;
    struct tensor_spec tensors[2];

    for (int i = 0; i < 2; i++) {
        memset(names[i], 'n', 300);
        names[i][300] = (char)('0' + i);
        names[i][301] = '\0';
        tensors[i] = (struct tensor_spec){names[i], "U8", 1, 1};
    }
    add_shard("long.safetensors", tensors, 2);
    both = names_in("tensors/long");
    second = strchr(both, ' ');
    ck_assert_ptr_nonnull(second);
    *second++ = '\0';
    ck_assert_uint_eq(strlen(both), 255);
    ck_assert_uint_eq(strlen(second), 255);
    ck_assert_int_eq(both[255 - 17], '~');
    snprintf(file, sizeof(file), "tensors/long/%s", both);
    for (int i = 0; i < 2; i++) {
        struct buffer value = BUFFER_INIT;
        node_id id;

        snprintf(file, sizeof(file), "tensors/long/%s", i ? second : both);
        id = must_find(file, NULL);
        ck_assert_int_eq(view_getxattr(view, NULL, id, "user.safetensors.name", &value), 0);
        ck_assert_uint_eq(value.length, 301);
        ck_assert_int_eq(value.data[0], 'n');
        buffer_free(&value);
        view_forget(view, id, 1);
    }
    free(both);
}
END_TEST

START_TEST(recut_shards)
{
    static const struct view_options by_number = {.root = VIEW_SHARDS, .shards = 3};
    static const struct view_options by_size = {.root = VIEW_SHARDS, .shard_size = 1 << 20};
    static const char index[] = "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
                                "\"d\": \"model-00002-of-00002.safetensors\"}}";

    reopen(&by_number);
    assert_names("two", "model-00001-of-00003.safetensors model-00002-of-00003.safetensors "
                        "model-00003-of-00003.safetensors model.safetensors.index.json");
    assert_names("one", "config.json model.safetensors");
    ck_assert_int_eq(find_error("two/model-00003-of-00003.safetensors"), 0);
    ck_assert_int_eq(find_error("two/model-00004-of-00003.safetensors"), ENOENT);
    ck_assert_int_eq(find_error("two/model-00001-of-00002.safetensors"), ENOENT);
    ck_assert_int_eq(find_error("two/model-1-of-3.safetensors"), ENOENT);
    ck_assert_int_eq(find_error("two/model.safetensors"), ENOENT);
    ck_assert_int_eq(find_error("two/other.safetensors.index.json"), ENOENT);
    reopen(&by_size);
    assert_names("two", "model.safetensors");
    ck_assert_int_eq(find_error("two/model.safetensors.index.json"), ENOENT);
    add_small_shard("two/other.safetensors", "o");
    usleep((CATALOG_CHECK_MS + 100) * 1000);
    assert_names("two", "model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
                        "other.safetensors"); /* an index would hide the other file */
    add_file("two/model.safetensors.index.json", index, strlen(index));
    usleep((CATALOG_CHECK_MS + 100) * 1000);
    assert_names("two", "model.safetensors model.safetensors.index.json other.safetensors");
    ck_assert_int_eq(find_error("two/model.safetensors.index.json"), 0);
}
END_TEST

/* A directory of tensors whose name is taken has the name of the checkpoint's first file. */
START_TEST(a_stem_that_is_taken)
{
    add_directory("one/model");
    assert_names("tensors/one", "model model.index.json model.safetensors");
    assert_names("tensors/one/model.safetensors", "a b%2Fc");
    assert_names("npy/one", "model model.safetensors");
}
END_TEST

START_TEST(refused_shards)
{
    struct extent_list *list;
    node_id id;
    bool live;

    add_directory("bad");
    add_file("bad/model-00001-of-00002.safetensors", "garbage garbage", 15);
    add_small_shard("bad/model-00002-of-00002.safetensors", "t");
    assert_names("merged/bad", "");
    assert_names("tensors/bad/model", "t");
    assert_names("shards/bad", "model-00001-of-00002.safetensors model-00002-of-00002.safetensors");
    ck_assert_int_eq(find_error("merged/bad/model.safetensors"), ENOENT);
    id = must_find("shards/bad/model-00001-of-00002.safetensors", NULL);
    ck_assert_int_eq(view_open(view, NULL, id, &list, &live), -EIO);
    view_forget(view, id, 1);
}
END_TEST

/* What the kernel caches for a node belongs to one version of the file. */
START_TEST(a_new_version_is_a_new_node)
{
    node_id before = must_find("merged/one/config.json", NULL), after;
    struct stat st;

    after = must_find("merged/one/config.json", NULL);
    ck_assert_uint_eq(before, after);
    view_forget(view, after, 1);
    add_file("one/config.json", "{\"a\": 1}", 8);
    usleep((CATALOG_CHECK_MS + 100) * 1000);
    after = must_find("merged/one/config.json", &st);
    ck_assert_uint_ne(before, after);
    ck_assert_int_eq(st.st_size, 8);
    ck_assert_int_eq(view_getattr(view, NULL, before, &st), 0);
    ck_assert_int_eq(st.st_size, 2);
    view_forget(view, after, 1);
    view_forget(view, before, 1);
}
END_TEST

/* Lookups that are forgotten leave no nodes and no directories of tensors behind. */
START_TEST(forgotten_nodes_are_freed)
{
    uint64_t nodes, sets;
    node_id id;

    id = must_find("tensors/one/model/a", NULL);
    view_ref(view, id);
    view_forget(view, id, 1);
    view_counters(view, &nodes, &sets);
    ck_assert_uint_eq(sets, 1);
    view_forget(view, id, 1);
    view_forget(view, must_find("merged/two/model.safetensors", NULL), 1);
    ck_assert_int_eq(find_error("tensors/one/model/missing"), ENOENT);
    view_counters(view, &nodes, &sets);
    ck_assert_uint_eq(nodes, 1); /* the root */
    ck_assert_uint_eq(sets, 0);
}
END_TEST

/* ---- attributes ---- */

START_TEST(attributes_of_files)
{
    struct stat first, second, st;
    char path[600];

    source_path("two/model-00001-of-00002.safetensors", path);
    ck_assert_int_eq(stat(path, &first), 0);
    ck_assert_int_eq(chmod(path, 0600), 0);
    source_path("two/model-00002-of-00002.safetensors", path);
    ck_assert_int_eq(stat(path, &second), 0);
    view_forget(view, must_find("tensors/two/model/b%2Fc", &st), 1);
    ck_assert_int_eq(st.st_size, 10);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0400);
    ck_assert_uint_eq(st.st_uid, first.st_uid);
    ck_assert_uint_eq(st.st_gid, first.st_gid);
    ck_assert_uint_eq(st.st_nlink, 1);
    ck_assert_uint_eq(st.st_blocks, 1);
    ck_assert_int_eq(st.st_mtim.tv_sec, first.st_mtim.tv_sec);
    ck_assert_int_eq(st.st_mtim.tv_nsec, first.st_mtim.tv_nsec);
    view_forget(view, must_find("npy/two/model/d.npy", &st), 1);
    ck_assert_int_eq(st.st_size, 128 + 8);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0440);
    /* A file made of both shards has the mode bits that both have, and the newer time. */
    view_forget(view, must_find("merged/two/model.safetensors", &st), 1);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0400);
    ck_assert_int_eq(st.st_mtim.tv_nsec, second.st_mtim.tv_nsec);
    ck_assert_int_eq(st.st_size, 4096 + 16 + 10 + 8);
    view_forget(view, must_find("tensors/two/model", &st), 1);
    ck_assert_uint_eq(st.st_mode, S_IFDIR | 0500);
    view_forget(view, must_find("merged/two", &st), 1);
    ck_assert_uint_eq(st.st_mode, S_IFDIR | 0555);
    view_forget(view, must_find(".fstfs/status", &st), 1);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0444);
    ck_assert_int_eq(st.st_size, 5);
}
END_TEST

static char inode_paths[64][200];
static uint64_t inode_numbers[64];
static size_t inode_count;
static bool inodes_are_known;

static void
compare_inode(const char *path, node_id id, struct stat *st)
{
    (void)id;
    ck_assert_uint_lt(inode_count, 64);
    if (!inodes_are_known) {
        for (size_t i = 0; i < inode_count; i++)
            ck_assert_uint_ne(inode_numbers[i], st->st_ino);
        strcpy(inode_paths[inode_count], path);
        inode_numbers[inode_count] = st->st_ino;
    }
    ck_assert_str_eq(inode_paths[inode_count], path);
    ck_assert_uint_eq(inode_numbers[inode_count], st->st_ino);
    inode_count++;
}

START_TEST(inode_numbers_are_stable_and_unique)
{
    inodes_are_known = false;
    inode_count = 0;
    walk(VIEW_ROOT_ID, "", compare_inode);
    ck_assert_uint_gt(inode_count, 20);
    reopen(&all_views);
    inodes_are_known = true;
    inode_count = 0;
    walk(VIEW_ROOT_ID, "", compare_inode);
}
END_TEST

START_TEST(npy_leaves_out_unknown_dtypes)
{
    const struct tensor_spec tensors[] = {{"known", "U8", 1, 1}, {"new", "F3_NEW", 1, 4}};

    add_shard("mixed.safetensors", tensors, 2);
    assert_names("tensors/mixed", "known new");
    assert_names("npy/mixed", "known.npy");
    ck_assert_int_eq(find_error("npy/mixed/new.npy"), ENOENT);
}
END_TEST

/* ---- xattrs ---- */

/* The text of an xattr; the caller frees it. */
static char *
xattr_of(const char *path, const char *name)
{
    node_id id = must_find(path, NULL);
    struct buffer value = BUFFER_INIT;

    ck_assert_int_eq(view_getxattr(view, NULL, id, name, &value), 0);
    ck_assert_uint_lt(value.length, XATTR_SIZE_MAX);
    view_forget(view, id, 1);
    return value.data;
}

static void
assert_in_xattr(const char *path, const char *name, const char *expected)
{
    char *value = xattr_of(path, name);

    ck_assert_msg(strstr(value, expected) != NULL, "%s of %s is %s", name, path, value);
    free(value);
}

static void
assert_xattr_names(const char *path, const char *expected, size_t length)
{
    node_id id = must_find(path, NULL);
    struct buffer names = BUFFER_INIT, value = BUFFER_INIT;

    ck_assert_int_eq(view_listxattr(view, id, &names), 0);
    ck_assert_uint_eq(names.length, length);
    ck_assert_mem_eq(names.data ? names.data : "", expected, length);
    for (size_t at = 0; at < length; at += strlen(names.data + at) + 1)
        ck_assert_int_eq(view_getxattr(view, NULL, id, names.data + at, &value), 0);
    ck_assert_int_eq(view_getxattr(view, NULL, id, "user.other", &value), -ENODATA);
    buffer_free(&names);
    buffer_free(&value);
    view_forget(view, id, 1);
}

START_TEST(xattr_lists)
{
    static const char of_tensor[] = "user.safetensors.name\0user.safetensors.dtype\0"
                                    "user.safetensors.shape\0user.fstfs.extents";
    static const char of_file[] = "user.fstfs.extents", made[] = "user.fstfs.source";

    assert_xattr_names("tensors/one/model/a", of_tensor, sizeof(of_tensor));
    assert_xattr_names("npy/one/model/a.npy", of_tensor, sizeof(of_tensor));
    assert_xattr_names("merged/one/config.json", of_file, sizeof(of_file));
    assert_xattr_names("shards/one/model.safetensors", of_file, sizeof(of_file));
    assert_xattr_names("merged/one/model.safetensors", made, sizeof(made));
    assert_xattr_names("tensors/one/model", made, sizeof(made));
    assert_xattr_names("tensors/one/model.index.json", "", 0);
    assert_xattr_names("merged/one", "", 0);
    assert_xattr_names(".fstfs/status", "", 0);
}
END_TEST

START_TEST(xattr_values)
{
    assert_xattr("tensors/one/model/b%2Fc", "user.safetensors.name", "b/c");
    assert_xattr("tensors/one/model/a", "user.safetensors.dtype", "F32");
    assert_xattr("tensors/one/model/a", "user.safetensors.shape", "[4]");
    assert_in_xattr("tensors/one/model/a", "user.fstfs.extents", "/one/model.safetensors\"");
    assert_in_xattr("tensors/one/model/a", "user.fstfs.extents", "\"length\": 16");
    assert_in_xattr("merged/one/config.json", "user.fstfs.extents",
                    "\"offset\": 0, \"length\": 2, \"version\": \"");
    assert_in_xattr(
        "merged/two/model.safetensors", "user.fstfs.source",
        "\"tensors\": 3, "
        "\"shards\": [{\"file\": \"model-00001-of-00002.safetensors\", \"version\": \"");
    add_directory("b\xff");
    add_file("b\xff/x", "y", 1);
    assert_in_xattr("merged/b\xff/x", "user.fstfs.extents", "\"path_hex\": \"2f746d70");
    assert_in_xattr("merged/b\xff/x", "user.fstfs.extents", "62ff2f78\"");
}
END_TEST

/* The shards are omitted if the value would be longer than the kernel allows. */
START_TEST(xattr_of_many_shards)
{
    enum { SHARDS = 300 };
    char name[400], stem[200], path[300];

    memset(stem, 's', 199);
    stem[199] = '\0';
    add_directory("many");
    for (int i = 1; i <= SHARDS; i++) {
        snprintf(name, sizeof(name), "many/%s-%05d-of-%05d.safetensors", stem, i, SHARDS);
        snprintf(path, sizeof(path), "t%d", i);
        add_small_shard(name, path);
    }
    snprintf(path, sizeof(path), "tensors/many/%s", stem);
    assert_in_xattr(path, "user.fstfs.source", "\"version\": \"");
    {
        char *value = xattr_of(path, "user.fstfs.source");

        ck_assert_ptr_null(strstr(value, "shards\""));
        ck_assert_int_eq(value[strlen(value) - 1], '}');
        free(value);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *suite = suite_create("view");
    TCase *tests = tcase_create("view");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, every_view_lists_its_files);
    tcase_add_test(tests, listing_lookup_and_open_agree);
    tcase_add_test(tests, directory_positions);
    tcase_add_test(tests, directory_follows_the_source);
    tcase_add_test(tests, names_that_do_not_exist);
    tcase_add_test(tests, a_new_file_is_found_at_once);
    tcase_add_test(tests, links_are_shown_as_what_they_refer_to);
    tcase_add_test(tests, tensor_names_are_escaped);
    tcase_add_test(tests, long_tensor_names_are_truncated);
    tcase_add_test(tests, recut_shards);
    tcase_add_test(tests, a_stem_that_is_taken);
    tcase_add_test(tests, refused_shards);
    tcase_add_test(tests, a_new_version_is_a_new_node);
    tcase_add_test(tests, forgotten_nodes_are_freed);
    tcase_add_test(tests, attributes_of_files);
    tcase_add_test(tests, inode_numbers_are_stable_and_unique);
    tcase_add_test(tests, npy_leaves_out_unknown_dtypes);
    tcase_add_test(tests, xattr_lists);
    tcase_add_test(tests, xattr_values);
    tcase_add_test(tests, xattr_of_many_shards);
    suite_add_tcase(suite, tests);
    return suite;
}

#include "check_main.h"
