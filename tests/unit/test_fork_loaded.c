/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() uses the library, which the program has loaded with dlopen(), as Python does.
 * The free() of this program forks after it has freed: the child then finds each pointer to freed
 * memory that its parent has not cleared yet.
 */
#include "fork_child.h"
#include "fstfs.h"

#include <dlfcn.h>

enum { SHARDS = 2 };

static struct {
    __typeof__(fstfs_new) *new;
    __typeof__(fstfs_free) *free;
    __typeof__(fstfs_open) *open;
    __typeof__(fstfs_close) *close;
    __typeof__(fstfs_tensor) *tensor;
    __typeof__(fstfs_read) *read;
} library;

void __libc_free(void *memory);

static void
shard_path(int shard, char *path, size_t size)
{
    snprintf(path, size, "%s/model-%05d-of-%05d.safetensors", place, shard + 1, SHARDS);
}

/* Whether a new object reads a tensor of each shard. */
static bool
load(void)
{
    struct fstfs_checkpoint *checkpoint = NULL;
    char found[SHARDS][TENSOR_SIZE] = {0};
    struct fstfs *fstfs = NULL;
    bool done = false;

    if (library.new(NULL, &fstfs) == 0 && library.open(fstfs, place, &checkpoint) == 0) {
        struct fstfs_request requests[SHARDS] = {0};

        for (int i = 0; i < SHARDS; i++) {
            requests[i].tensor = library.tensor(checkpoint, i);
            requests[i].to = found[i];
        }
        done = library.read(checkpoint, requests, SHARDS, NULL) == 0;
        for (int i = 0; i < SHARDS; i++)
            done &= memcmp(found[i], content, TENSOR_SIZE) == 0;
    }
    library.close(checkpoint);
    library.free(fstfs);
    return done;
}

void
free(void *memory)
{
    __libc_free(memory);
    if (memory)
        load_in_child(load);
}

static void
load_library(void)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    ck_assert_msg(handle != NULL, "%s", dlerror());
    *(void **)&library.new = dlsym(handle, "fstfs_new");
    *(void **)&library.free = dlsym(handle, "fstfs_free");
    *(void **)&library.open = dlsym(handle, "fstfs_open");
    *(void **)&library.close = dlsym(handle, "fstfs_close");
    *(void **)&library.tensor = dlsym(handle, "fstfs_tensor");
    *(void **)&library.read = dlsym(handle, "fstfs_read");
}

START_TEST(child_after_each_free)
{
    char path[100], name[20];

    load_library();
    make_place();
    for (int i = 0; i < SHARDS; i++) {
        shard_path(i, path, sizeof(path));
        snprintf(name, sizeof(name), "t%d", i);
        write_shard(path, name);
    }
    ck_assert(load()); /* the next one's threads reuse the stacks of its threads */
    load_and_fork(load);
    for (int i = 0; i < SHARDS; i++) {
        shard_path(i, path, sizeof(path));
        unlink(path);
    }
    rmdir(place);
    assert_expectations();
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("fork_loaded");
    TCase *tc = tcase_create("fork_loaded");

    tcase_add_test(tc, child_after_each_free);
    suite_add_tcase(s, tc);
    return s;
}

#include "check_main.h"
