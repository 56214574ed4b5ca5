/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() uses the library, which the program has loaded with dlopen(), as Python does.
 * The free() of this program forks after it has freed: the child then finds each pointer to the
 * memory that its parent had yet to clear.
 */
#include "expect.h"
#include "fstfs.h"

#include <check.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4096, SHARDS = 2, CHILD_SECONDS = 20 };

static char place[sizeof("/tmp/fstfs-test-fork-XXXXXX")], content[SIZE];
static _Thread_local bool forks;
static atomic_uint children;

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

static void
write_shard(int shard)
{
    char header[100], path[100];
    uint64_t length;
    FILE *file;

    shard_path(shard, path, sizeof(path));
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    length = (uint64_t)snprintf(header, sizeof(header),
                                "{\"t%d\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]"
                                "}}",
                                shard, SIZE, SIZE);
    ck_assert_uint_eq(fwrite(&length, 8, 1, file), 1);
    ck_assert_uint_eq(fwrite(header, length, 1, file), 1);
    ck_assert_uint_eq(fwrite(content, SIZE, 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
}

/* Whether a new object reads a tensor of each shard. */
static bool
load(void)
{
    struct fstfs_checkpoint *checkpoint = NULL;
    char found[SHARDS][SIZE] = {0};
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
            done &= memcmp(found[i], content, SIZE) == 0;
    }
    library.close(checkpoint);
    library.free(fstfs);
    return done;
}

void
free(void *memory)
{
    pid_t child;
    int status;

    __libc_free(memory);
    if (!memory || !forks)
        return;
    forks = false; /* the child, and fork() itself, free as usual */
    child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS); /* kills a child that waits for ever */
        _exit(!load());
    }
    expect(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    atomic_fetch_add(&children, 1);
    forks = true;
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
    char path[100];

    load_library();
    strcpy(place, "/tmp/fstfs-test-fork-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    for (int i = 0; i < SIZE; i++)
        content[i] = (char)(i * 7);
    for (int i = 0; i < SHARDS; i++)
        write_shard(i);
    ck_assert(load()); /* the next one's threads reuse the stacks of its threads */
    forks = true;
    expect(load());
    forks = false;
    ck_assert_uint_gt(atomic_load(&children), 10);
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
