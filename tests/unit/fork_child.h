/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests whose program forks inside of a function that it replaces: a child loads a checkpoint
 * that the test has written, while other threads of its parent use the library.
 */
#ifndef FSTFS_TESTS_FORK_CHILD_H
#define FSTFS_TESTS_FORK_CHILD_H

#include "expect.h"

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSOR_SIZE = 4096, CHILD_SECONDS = 20 };

static char place[sizeof("/tmp/fstfs-test-fork-XXXXXX")], content[TENSOR_SIZE];
static _Thread_local bool forks; /* whether this thread forks */
static atomic_uint children;

/* Creates `place` and fills `content`. */
static void
make_place(void)
{
    strcpy(place, "/tmp/fstfs-test-fork-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    for (int i = 0; i < TENSOR_SIZE; i++)
        content[i] = (char)(i * 7);
}

/* Writes a safetensors file with the tensor `name`, whose bytes are `content`. */
static void
write_shard(const char *path, const char *name)
{
    FILE *file = fopen(path, "we");
    char header[100];
    uint64_t length;

    ck_assert_ptr_nonnull(file);
    length =
        (uint64_t)snprintf(header, sizeof(header),
                           "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
                           name, TENSOR_SIZE, TENSOR_SIZE);
    ck_assert_uint_eq(fwrite(&length, 8, 1, file), 1);
    ck_assert_uint_eq(fwrite(header, length, 1, file), 1);
    ck_assert_uint_eq(fwrite(content, TENSOR_SIZE, 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
}

/* If this thread forks: expects that load() returns true in a child. */
static void
load_in_child(bool (*load)(void))
{
    pid_t child;
    int status;

    if (!forks)
        return;
    forks = false; /* in the child, and in fork() itself */
    child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS); /* kills a child that waits for ever */
        _exit(!load());
    }
    expect(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    atomic_fetch_add(&children, 1);
    forks = true;
}

/* Loads in this thread, which forks, and checks that it has. */
static void
load_and_fork(bool (*load)(void))
{
    forks = true;
    expect(load());
    forks = false;
    ck_assert_uint_gt(atomic_load(&children), 10);
}

#endif
