/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of fstfs.h: synchronous, polled, canceled and invalid reads, files that change,
 * many threads on one checkpoint. tests/client reads tensors of all shapes. */
#include "expect.h"
#include "fstfs.h"
#include "random.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENSORS 40
#define ROWS 500
#define COLUMNS 321
#define SIZE (ROWS * COLUMNS)
#define THREADS 6

static char place[sizeof("/tmp/fstfs-test-client-XXXXXX")], path[100];
static char *contents[TENSORS];
static struct fstfs *fstfs;
static struct fstfs_checkpoint *checkpoint;

static void
write_model(uint64_t seed)
{
    FILE *file = fopen(path, "we");
    char header[TENSORS * 100], *end = header + 8;
    uint64_t length;

    ck_assert_ptr_nonnull(file);
    *end++ = '{';
    for (unsigned i = 0; i < TENSORS; i++) {
        for (unsigned j = 0; j < SIZE; j++)
            contents[i][j] = (char)random_next(&seed, 256);
        end += sprintf(end,
                       "%s\"t%02u\":{\"dtype\":\"U8\",\"shape\":[%d,%d],\"data_offsets\":[%u,%u]}",
                       i ? "," : "", i, ROWS, COLUMNS, i * SIZE, (i + 1) * SIZE);
    }
    *end++ = '}';
    length = (uint64_t)(end - header - 8);
    memcpy(header, &length, 8);
    ck_assert_uint_eq(fwrite(header, 1, (size_t)(end - header), file), (size_t)(end - header));
    for (unsigned i = 0; i < TENSORS; i++)
        ck_assert_uint_eq(fwrite(contents[i], 1, SIZE, file), SIZE);
    ck_assert_int_eq(fflush(file), 0);
    /* Drop the page cache, so that the storage is read. */
    ck_assert_int_eq(fdatasync(fileno(file)), 0);
    ck_assert_int_eq(posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED), 0);
    fclose(file);
}

static void
setup(void)
{
    strcpy(place, "/tmp/fstfs-test-client-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    snprintf(path, sizeof(path), "%s/model.safetensors", place);
    for (unsigned i = 0; i < TENSORS; i++)
        contents[i] = malloc(SIZE);
    write_model(1);
    ck_assert_int_eq(fstfs_new(NULL, &fstfs), 0);
    ck_assert_int_eq(fstfs_open(fstfs, place, &checkpoint), 0);
    ck_assert_uint_eq(fstfs_count(checkpoint), TENSORS);
}

static void
teardown(void)
{
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    for (unsigned i = 0; i < TENSORS; i++)
        free(contents[i]);
    unlink(path);
    rmdir(place);
    assert_expectations();
}

static void
make_requests(struct fstfs_request requests[TENSORS])
{
    for (unsigned i = 0; i < TENSORS; i++)
        requests[i] =
            (struct fstfs_request){.tensor = fstfs_tensor(checkpoint, i), .to = calloc(1, SIZE)};
}

static void
free_requests(struct fstfs_request requests[TENSORS])
{
    for (unsigned i = 0; i < TENSORS; i++)
        free(requests[i].to);
}

static void
check_bytes(const struct fstfs_request requests[TENSORS])
{
    for (unsigned i = 0; i < TENSORS; i++)
        ck_assert_int_eq(memcmp(requests[i].to, contents[i], SIZE), 0);
}

struct progress_log {
    atomic_int inside;
    uint64_t done, total;
    int calls, answer;
};

static int
progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress_log *log = arg;

    expect(atomic_fetch_add(&log->inside, 1) == 0);
    expect(done >= log->done);
    log->done = done;
    log->total = total;
    log->calls++;
    atomic_fetch_sub(&log->inside, 1);
    return log->answer;
}

START_TEST(waited_for)
{
    struct fstfs_request requests[TENSORS];
    struct progress_log log = {0};
    struct fstfs_read_options options = {.progress = progress, .arg = &log};
    struct fstfs_read *read;

    make_requests(requests);
    ck_assert_int_eq(fstfs_start(checkpoint, requests, TENSORS, &options, &read), 0);
    ck_assert_int_eq(fstfs_wait(read, -1), 0);
    ck_assert_int_eq(fstfs_wait(read, 0), 0);
    ck_assert_uint_eq(fstfs_done(read), TENSORS * SIZE);
    ck_assert_uint_eq(log.done, TENSORS * SIZE);
    ck_assert_uint_eq(log.total, TENSORS * SIZE);
    fstfs_read_free(read);
    check_bytes(requests);
    free_requests(requests);
}
END_TEST

START_TEST(polled)
{
    struct fstfs_request requests[TENSORS];
    struct fstfs_read *read;
    int result;

    make_requests(requests);
    ck_assert_int_eq(fstfs_start(checkpoint, requests, TENSORS, NULL, &read), 0);
    while ((result = fstfs_wait(read, 0)) == -EINPROGRESS)
        poll(NULL, 0, 1);
    ck_assert_int_eq(result, 0);
    fstfs_read_free(read);
    check_bytes(requests);
    free_requests(requests);
}
END_TEST

/* Freeing cancels a read in flight; afterwards nothing writes to its memory. */
START_TEST(freed_in_flight)
{
    for (int i = 0; i < 50; i++) {
        struct fstfs_request requests[TENSORS];
        struct fstfs_read *read;

        make_requests(requests);
        ck_assert_int_eq(fstfs_start(checkpoint, requests, TENSORS, NULL, &read), 0);
        if (i % 2)
            fstfs_cancel(read);
        fstfs_read_free(read);
        free_requests(requests);
    }
}
END_TEST

START_TEST(cancelled_by_progress)
{
    struct fstfs_request requests[TENSORS];
    struct progress_log log = {.answer = 1};
    struct fstfs_read_options options = {.progress = progress, .arg = &log};

    make_requests(requests);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, &options), -ECANCELED);
    ck_assert_str_eq(fstfs_error(), "the read was cancelled");
    ck_assert_uint_lt(log.done, log.total);
    log.answer = 0;
    log.done = 0;
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, &options), 0);
    check_bytes(requests);
    free_requests(requests);
}
END_TEST

START_TEST(wrong_requests)
{
    struct fstfs_tensor other = *fstfs_tensor(checkpoint, 0);
    struct fstfs_request requests[] = {{.tensor = fstfs_tensor(checkpoint, 0)}, {.tensor = NULL}};
    uint64_t size;

    ck_assert_int_eq(fstfs_request_size(&requests[1], &size), -EINVAL);
    ck_assert_str_eq(fstfs_error(), "the request has no tensor");
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 1, NULL), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "no memory for t00"));
    requests[0].to = malloc(SIZE);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 2, NULL), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "request 1"));
    requests[1].tensor = &other;
    requests[1].to = requests[0].to;
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 2, NULL), -EINVAL);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 0, NULL), 0);
    free(requests[0].to);
    ck_assert_ptr_null(fstfs_find(checkpoint, "t"));
    ck_assert_ptr_null(fstfs_find(checkpoint, "t000"));
    ck_assert_ptr_eq(fstfs_find(checkpoint, "t07"), fstfs_tensor(checkpoint, 7));
    ck_assert_ptr_null(fstfs_tensor(checkpoint, TENSORS));
}
END_TEST

/* Reserved words must be zero in every structure, and in every request of an array. */
START_TEST(reserved_words)
{
    struct fstfs_request requests[] = {{.tensor = fstfs_tensor(checkpoint, 0)},
                                       {.tensor = fstfs_tensor(checkpoint, 1)}};
    struct fstfs_read_options reading = {.reserved = {[7] = 1}};
    struct fstfs_options options = {.reserved = {[0] = 1}};
    struct fstfs *none = NULL;
    struct fstfs_read *read = NULL;
    uint64_t size;

    ck_assert_int_eq(fstfs_new(&options, &none), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "fstfs_options: reserved[0] is 0x1, expected 0"));
    requests[0].to = malloc(SIZE);
    requests[1].to = malloc(SIZE);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 2, &reading), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "fstfs_read_options: reserved[7]"));
    requests[1].reserved[2] = 1;
    ck_assert_int_eq(fstfs_request_size(&requests[1], &size), -EINVAL);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 2, NULL), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "fstfs_request: reserved[2]"));
    ck_assert_int_eq(fstfs_start(checkpoint, requests, 2, NULL, &read), -EINVAL);
    requests[1].reserved[2] = 0;
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 2, NULL), 0);
    free(requests[0].to);
    free(requests[1].to);
}
END_TEST

struct giver {
    size_t calls, most;
    void *given[TENSORS];
};

static void *
allocate(void *arg, size_t request, uint64_t size)
{
    struct giver *giver = arg;

    ck_assert_uint_eq(size, SIZE);
    ck_assert_uint_eq(request, giver->calls);
    return giver->calls < giver->most ? giver->given[giver->calls++] = malloc(size) : NULL;
}

START_TEST(memory_by_callback)
{
    for (size_t most = 0; most <= TENSORS; most += TENSORS / 2) {
        struct fstfs_request requests[TENSORS];
        struct giver giver = {.most = most};
        struct fstfs_read_options options = {.allocate = allocate, .arg = &giver};

        for (unsigned i = 0; i < TENSORS; i++)
            requests[i] = (struct fstfs_request){.tensor = fstfs_tensor(checkpoint, i)};
        ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, &options),
                         most < TENSORS ? -ENOMEM : 0);
        for (unsigned i = 0; i < TENSORS; i++)
            ck_assert_ptr_eq(requests[i].to, giver.given[i]);
        if (most == TENSORS)
            check_bytes(requests);
        free_requests(requests);
    }
}
END_TEST

/* The file is rewritten in place, with the same size, while it is open. */
START_TEST(changed)
{
    struct fstfs_request requests[TENSORS];

    make_requests(requests);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 1, NULL), 0);
    write_model(2);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, NULL), -ESTALE);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), path));
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "changed"));
    fstfs_close(checkpoint);
    ck_assert_int_eq(fstfs_open(fstfs, path, &checkpoint), 0);
    for (unsigned i = 0; i < TENSORS; i++)
        requests[i].tensor = fstfs_tensor(checkpoint, i);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, NULL), 0);
    check_bytes(requests);
    free_requests(requests);
}
END_TEST

START_TEST(truncated)
{
    struct fstfs_request requests[TENSORS];

    make_requests(requests);
    ck_assert_int_eq(truncate(path, SIZE), 0);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, NULL), -ESTALE);
    free_requests(requests);
}
END_TEST

/* After another file takes the name, reads continue on the old file if its descriptors are open, or
 * fail with -ESTALE. */
START_TEST(replaced)
{
    struct fstfs_request requests[TENSORS];
    char old[120];
    int result;

    make_requests(requests);
    ck_assert_int_eq(fstfs_read(checkpoint, requests, 1, NULL), 0);
    snprintf(old, sizeof(old), "%s.old", path);
    ck_assert_int_eq(rename(path, old), 0);
    result = fstfs_read(checkpoint, requests, TENSORS, NULL);
    ck_assert(result == 0 || result == -ESTALE);
    if (result == 0)
        check_bytes(requests);
    ck_assert_int_eq(rename(old, path), 0);
    free_requests(requests);
}
END_TEST

static void *
read_often(void *arg)
{
    struct fstfs_request requests[TENSORS];
    unsigned seed = (unsigned)(uintptr_t)arg;

    make_requests(requests);
    for (int round = 0; round < 5; round++) {
        unsigned first = (unsigned)rand_r(&seed) % TENSORS;

        expect(fstfs_read(checkpoint, requests + first, TENSORS - first, NULL) == 0);
        for (unsigned i = first; i < TENSORS; i++) {
            expect(memcmp(requests[i].to, contents[i], SIZE) == 0);
            memset(requests[i].to, 0, SIZE);
        }
    }
    free_requests(requests);
    return NULL;
}

START_TEST(many_threads)
{
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_often, (void *)i), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

/* fstfs_error() is per thread. */
static void *
fail_elsewhere(void *arg)
{
    struct fstfs_checkpoint *none;

    expect(strcmp(fstfs_error(), "") == 0);
    expect(fstfs_open(fstfs, "/nowhere", &none) == -ENOENT);
    expect(strstr(fstfs_error(), "/nowhere") != NULL);
    return NULL;
}

START_TEST(errors_of_threads)
{
    struct fstfs_checkpoint *none;
    pthread_t thread;

    ck_assert_int_eq(fstfs_open(fstfs, "/here", &none), -ENOENT);
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "/here"));
}
END_TEST

/* Resident memory, in pages. */
static long
resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long all, here;

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%ld %ld", &all, &here), 2);
    fclose(file);
    return here;
}

/* No leak: opening, reading and closing 900 times more does not increase resident memory. */
START_TEST(no_growth)
{
    struct fstfs_request requests[TENSORS];
    struct fstfs_checkpoint *again;
    long before = 0;

    make_requests(requests);
    for (int i = 0; i < 1000; i++) {
        if (i == 100)
            before = resident();
        ck_assert_int_eq(fstfs_open(fstfs, path, &again), 0);
        for (unsigned j = 0; j < 2; j++)
            requests[j].tensor = fstfs_tensor(again, 20 * j);
        ck_assert_int_eq(fstfs_read(again, requests, 2, NULL), 0);
        fstfs_close(again);
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    /* Sanitizers retain freed memory. */
    ck_assert_int_le(resident() - before, 512);
#endif
    ck_assert_int_gt(before, 0);
    free_requests(requests);
}
END_TEST

START_TEST(status)
{
    char text[4096], little[10];
    int length = fstfs_status(fstfs, text, sizeof(text));

    ck_assert_int_gt(length, 0);
    ck_assert_int_eq((int)strlen(text), length);
    ck_assert(text[0] == '{' && text[length - 1] == '}');
    ck_assert_ptr_nonnull(strstr(text, "\"storage_bytes\":"));
    ck_assert_int_eq(fstfs_status(fstfs, little, sizeof(little)), length);
    ck_assert_uint_eq(strlen(little), sizeof(little) - 1);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("client");
    TCase *c = tcase_create("client");

    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, waited_for);
    tcase_add_test(c, polled);
    tcase_add_test(c, freed_in_flight);
    tcase_add_test(c, cancelled_by_progress);
    tcase_add_test(c, wrong_requests);
    tcase_add_test(c, reserved_words);
    tcase_add_test(c, memory_by_callback);
    tcase_add_test(c, changed);
    tcase_add_test(c, truncated);
    tcase_add_test(c, replaced);
    tcase_add_test(c, many_threads);
    tcase_add_test(c, errors_of_threads);
    tcase_add_test(c, no_growth);
    tcase_add_test(c, status);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
