/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() uses the library while other threads of its parent held any lock of the
 * library. The linker replaces pthread_mutex_unlock() by a function that forks before it unlocks:
 * the child then finds the lock locked, as if another thread of its parent held it.
 */
#include "fork_child.h"
#include "fstfs.h"

#include <pthread.h>

static char path[100];

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

/* Whether a new object reads the tensor. */
static bool
load(void)
{
    struct fstfs_checkpoint *checkpoint = NULL;
    struct fstfs *fstfs = NULL;
    char found[TENSOR_SIZE] = "";
    bool done = false;

    if (fstfs_new(NULL, &fstfs) == 0 && fstfs_open(fstfs, path, &checkpoint) == 0) {
        struct fstfs_request request = {.tensor = fstfs_tensor(checkpoint, 0), .to = found};

        done = fstfs_read(checkpoint, &request, 1, NULL) == 0 &&
               memcmp(found, content, TENSOR_SIZE) == 0;
    }
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    return done;
}

int
__wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    load_in_child(load);
    return __real_pthread_mutex_unlock(lock);
}

START_TEST(child_while_a_lock_is_held)
{
    make_place();
    snprintf(path, sizeof(path), "%s/model.safetensors", place);
    write_shard(path, "t");
    load_and_fork(load);
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
