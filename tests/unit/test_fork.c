/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() uses the library while other threads of its parent held any lock of the
 * library. The linker replaces pthread_mutex_unlock() by a function that forks before it unlocks:
 * the child then finds the lock locked, as if another thread of its parent held it.
 */
#include "expect.h"
#include "fstfs.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4096, CHILD_SECONDS = 20 };

static char place[sizeof("/tmp/fstfs-test-fork-XXXXXX")], path[100], content[SIZE];
static _Thread_local bool forks;
static atomic_uint children;

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

static void
write_model(void)
{
    char header[100];
    uint64_t length;
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    length = (uint64_t)snprintf(header, sizeof(header),
                                "{\"t\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
                                SIZE, SIZE);
    for (int i = 0; i < SIZE; i++)
        content[i] = (char)(i * 7);
    ck_assert_uint_eq(fwrite(&length, 8, 1, file), 1);
    ck_assert_uint_eq(fwrite(header, length, 1, file), 1);
    ck_assert_uint_eq(fwrite(content, SIZE, 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
}

/* Whether a new object reads the tensor. */
static bool
load(void)
{
    struct fstfs_checkpoint *checkpoint = NULL;
    struct fstfs *fstfs = NULL;
    char found[SIZE] = "";
    bool done = false;

    if (fstfs_new(NULL, &fstfs) == 0 && fstfs_open(fstfs, path, &checkpoint) == 0) {
        struct fstfs_request request = {.tensor = fstfs_tensor(checkpoint, 0), .to = found};

        done = fstfs_read(checkpoint, &request, 1, NULL) == 0 && memcmp(found, content, SIZE) == 0;
    }
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    return done;
}

int
__wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    pid_t child;
    int status;

    if (forks) {
        forks = false; /* the child, and fork() itself, unlock as usual */
        child = fork();
        if (child == 0) {
            alarm(CHILD_SECONDS); /* kills a child that waits for ever */
            _exit(!load());
        }
        expect(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        atomic_fetch_add(&children, 1);
        forks = true;
    }
    return __real_pthread_mutex_unlock(lock);
}

START_TEST(child_while_a_lock_is_held)
{
    strcpy(place, "/tmp/fstfs-test-fork-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    snprintf(path, sizeof(path), "%s/model.safetensors", place);
    write_model();
    forks = true;
    expect(load());
    forks = false;
    ck_assert_uint_gt(atomic_load(&children), 10);
    unlink(path);
    rmdir(place);
    assert_expectations();
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("fork");
    TCase *tc = tcase_create("fork");

    tcase_add_test(tc, child_while_a_lock_is_held);
    suite_add_tcase(s, tc);
    return s;
}

#include "check_main.h"
