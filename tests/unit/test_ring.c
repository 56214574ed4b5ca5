/* SPDX-License-Identifier: Apache-2.0 */
/* A storage whose io_uring submissions fail after some time, as under a seccomp filter. The linker
 * replaces liburing's functions with the ones here (--wrap). */
#include "expect.h"
#include "io/storage.h"
#include "random.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCKS 400
#define BLOCK 4096
#define READS 2000

static char directory_path[sizeof("/tmp/fstfs-test-ring-XXXXXX")], path[100], *contents;
static struct backing *backing;
static struct storage *storage;
static atomic_int refusal; /* a negative errno, or 0 */
static atomic_int refusals_left; /* submissions still to refuse; negative: all */
static atomic_uint refused;

static bool
is_refused(void)
{
    int left;

    if (!atomic_load(&refusal))
        return false;
    left = atomic_load(&refusals_left);
    /* In one step: the other ring may take the last refusal. */
    while (left > 0 && !atomic_compare_exchange_weak(&refusals_left, &left, left - 1))
        continue;
    if (left == 0)
        return false;
    atomic_fetch_add(&refused, 1);
    return true;
}

int __real_io_uring_submit(struct io_uring *ring);
int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr);

int
__wrap_io_uring_submit(struct io_uring *ring)
{
    return is_refused() ? atomic_load(&refusal) : __real_io_uring_submit(ring);
}

int
__wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr)
{
    return is_refused() ? atomic_load(&refusal) : __real_io_uring_submit_and_wait(ring, wait_nr);
}

static void
setup(void)
{
    struct io_options options = {.rings = 2, .queue_depth = 8};
    struct file_identity identity;
    uint64_t seed = 1;
    int fd;

    strcpy(directory_path, "/tmp/fstfs-test-ring-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory_path));
    snprintf(path, sizeof(path), "%s/file", directory_path);
    contents = malloc(BLOCKS * BLOCK);
    for (size_t i = 0; i < BLOCKS * BLOCK; i++)
        contents[i] = (char)random_next(&seed, 256);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, contents, BLOCKS * BLOCK), BLOCKS * BLOCK);
    ck_assert_int_eq(fdatasync(fd), 0);
    ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ck_assert_int_eq(file_identity_from_fd(&identity, fd), 0);
    close(fd);
    backing = backing_new(AT_FDCWD, path, &identity);
    atomic_store(&refusal, 0);
    atomic_store(&refused, 0);
    ck_assert_int_eq(storage_new(&options, &storage), 0);
}

static void
teardown(void)
{
    storage_stop(storage);
    storage_free(storage);
    backing_unref(backing);
    free(contents);
    unlink(path);
    rmdir(directory_path);
    assert_expectations();
}

struct block_read {
    struct storage_read storage;
    uint64_t seed;
    atomic_uint *left;
};

static void
check_block(struct storage_read *storage_read, errint_t result)
{
    struct block_read *read = (struct block_read *)storage_read;

    expect(result == 0);
    expect(memcmp(storage_read->buffer, contents + storage_read->offset, BLOCK) == 0);
    free(storage_read->buffer);
    atomic_fetch_sub(read->left, 1);
}

/* Reads random blocks, and has submissions refused from read number `from` on. */
static void
read_blocks(unsigned from, int error, int refusals)
{
    struct block_read *reads = calloc(READS, sizeof(*reads));
    uint64_t seed = 7;
    atomic_uint left;

    atomic_init(&left, READS);
    for (unsigned i = 0; i < READS; i++) {
        struct storage_read *read = &reads[i].storage;

        if (i == from) {
            atomic_store(&refusals_left, refusals);
            atomic_store(&refusal, error);
        }
        reads[i].left = &left;
        read->backing = backing;
        read->offset = random_next(&seed, BLOCKS) * BLOCK;
        read->length = read->valid = BLOCK;
        read->buffer = aligned_alloc(BLOCK, BLOCK);
        atomic_init(&read->urgent, i % 3 > 0);
        read->complete = check_block;
        storage_read(storage, read);
    }
    while (atomic_load(&left) > 0)
        usleep(1000);
    free(reads);
}

static bool
status_has(const char *text)
{
    struct buffer status = BUFFER_INIT;
    bool has;

    storage_status(storage, &status);
    has = !buffer_failed(&status) && strstr(status.data, text);
    buffer_free(&status);
    return has;
}

/* Redirects standard error to a file until log_lines(). */
static int saved_error;

static void
redirect_log(void)
{
    char name[120];
    int fd;

    snprintf(name, sizeof(name), "%s/log", directory_path);
    fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    saved_error = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static unsigned
log_lines(void)
{
    char name[120], line[300];
    unsigned count = 0;
    FILE *file;

    dup2(saved_error, STDERR_FILENO);
    close(saved_error);
    snprintf(name, sizeof(name), "%s/log", directory_path);
    file = fopen(name, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, "io_uring") != NULL;
    fclose(file);
    unlink(name);
    return count;
}

/* Each ring submits once; the workers do the reads it has queued and all later ones. */
START_TEST(permanent_refusal_uses_workers)
{
    static const unsigned starts[] = {0, 1, 300};

    for (unsigned i = 0; i < 3; i++) {
        if (i > 0) {
            teardown();
            setup();
        }
        if (status_has("\"io_uring\":{\"on\":false"))
            return; /* no io_uring on this machine */
        redirect_log();
        read_blocks(starts[i], -EPERM, -1);
        ck_assert_uint_eq(log_lines(), 1);
        ck_assert_uint_ge(atomic_load(&refused), 1);
        ck_assert_uint_le(atomic_load(&refused), 2);
        ck_assert(status_has("\"io_uring\":{\"on\":false,\"why\":\"io_uring failed: "
                             "Operation not permitted\"}"));
    }
}
END_TEST

/* EAGAIN is temporary: the kernel is out of memory. */
START_TEST(temporary_refusal_is_retried)
{
    bool on = status_has("\"io_uring\":{\"on\":true");

    redirect_log();
    read_blocks(100, -EAGAIN, 20);
    ck_assert_uint_eq(log_lines(), 0);
    ck_assert_uint_eq(atomic_load(&refused), on ? 20 : 0);
    ck_assert(on == status_has("\"io_uring\":{\"on\":true"));
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("ring");
    TCase *tests = tcase_create("ring");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, permanent_refusal_uses_workers);
    tcase_add_test(tests, temporary_refusal_is_retried);
    suite_add_tcase(made, tests);
    return made;
}

#include "check_main.h"
