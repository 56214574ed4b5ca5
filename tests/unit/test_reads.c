/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads in flight: which of them fail when storage does not answer. This file replaces the
 * functions of libfuse, of the engine and of the loads that reads.c calls; the linker replaces
 * waits and the log (--wrap).
 */
#include "base/log.h"
#include "base/thread.h"
#include "fuse/reads.h"
#include "fuse/run_delay.h"

#include "expect.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ROOM: the reads that must fail if all of the queue is in use. */
enum {
    QUEUE = 1200,
    CROWDED = 900,
    ROOM = QUEUE - CROWDED + 1,
    PACE = QUEUE / READS_PROGRESS, /* answers in READS_HANG_SECONDS that are progress */
    SYSTEMS = 2,
    CALLS = 8000,
    BYTES = 4096
};

/* A read of the kernel, and the engine's side of it. Guarded by `lock`. */
struct fuse_req {
    io_done done; /* NULL: the engine has answered, or has not been asked */
    void *arg;
    unsigned answers;
    int error;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct reads *reads;
static struct fuse_req calls[CALLS];
static unsigned call_count;
static struct fuse_req *asked; /* the read that the engine is asked for next */
static struct handle handles[SYSTEMS];
static int in_loads; /* reads that have begun and not ended */
static unsigned failed_loads; /* reads that have ended with EIO */
static unsigned looks; /* times that the watcher has looked at the reads, and waits */
static bool is_timed; /* it waits with a timeout */
static bool may_look; /* that timeout has passed */
static bool is_over; /* all timeouts pass at once */
static atomic_uint warnings;

/* ---- replaced functions ---- */

int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *held);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *held);
bool __wrap_condition_wait(pthread_cond_t *condition, pthread_mutex_t *held, uint64_t deadline);
void __wrap_log_line(enum log_level level, const char *format, ...);

bool
__wrap_condition_wait(pthread_cond_t *condition, pthread_mutex_t *held, uint64_t deadline)
{
    (void)condition;
    (void)deadline;
    pthread_mutex_unlock(held);
    pthread_mutex_lock(&lock);
    looks++;
    is_timed = true;
    pthread_cond_broadcast(&changed);
    while (!may_look && !is_over)
        pthread_cond_wait(&changed, &lock);
    is_timed = may_look = false;
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(held);
    return false;
}

int
__wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *held)
{
    if (held != &lock) { /* the watcher */
        pthread_mutex_lock(&lock);
        looks++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return __real_pthread_cond_wait(condition, held);
}

void
__wrap_log_line(enum log_level level, const char *format, ...)
{
    (void)level;
    (void)format;
    atomic_fetch_add(&warnings, 1);
}

const struct fuse_ctx *
fuse_req_ctx(fuse_req_t req)
{
    static const struct fuse_ctx ctx;

    (void)req;
    return &ctx;
}

int
fuse_reply_err(fuse_req_t req, int error)
{
    pthread_mutex_lock(&lock);
    req->answers++;
    req->error = error;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

int
fuse_reply_iov(fuse_req_t req, const struct iovec *iov, int count)
{
    (void)iov;
    (void)count;
    return fuse_reply_err(req, 0);
}

void
io_read(struct io *io, struct extent_list *list, uint64_t offset, size_t length, io_done done,
        void *arg)
{
    (void)io;
    (void)list;
    (void)offset;
    (void)length;
    pthread_mutex_lock(&lock);
    asked->done = done;
    asked->arg = arg;
    pthread_mutex_unlock(&lock);
}

struct load_read
loads_begin_read(struct loads *loads, struct load **load, pid_t thread)
{
    (void)loads;
    (void)load;
    (void)thread;
    in_loads++;
    return (struct load_read){NULL, 0};
}

void
loads_end_read(struct loads *loads, const struct load_read *read, const struct io_answer *answer,
               uint64_t bytes)
{
    (void)loads;
    (void)read;
    (void)bytes;
    in_loads--;
    failed_loads += answer->result == -EIO;
}

void
run_delay_restart(void)
{
}

/* ---- reads ---- */

static struct fuse_req *
begin(unsigned filesystem)
{
    ck_assert_uint_lt(call_count, CALLS);
    asked = &calls[call_count++];
    reads_serve(reads, asked, &handles[filesystem], 0, BYTES);
    return asked;
}

/* Begins `count` reads. Returns the first. */
static struct fuse_req *
begin_many(unsigned filesystem, unsigned count)
{
    struct fuse_req *first = &calls[call_count];

    for (unsigned i = 0; i < count; i++)
        begin(filesystem);
    return first;
}

/* The engine answers a read. */
static void
answer(struct fuse_req *req, errint_t result)
{
    io_done done = req->done;

    ck_assert_ptr_nonnull(done);
    req->done = NULL;
    done(req->arg, &(struct io_answer){.result = result});
}

static void
answer_all(void)
{
    for (unsigned i = 0; i < call_count; i++)
        if (calls[i].done)
            answer(&calls[i], 0);
}

/* Lets seconds pass, after each of which the watcher looks at the reads. The queue must be crowded:
 * else the watcher does not count seconds. */
static void
pass(unsigned seconds)
{
    unsigned before;

    pthread_mutex_lock(&lock);
    for (; seconds > 0; seconds--) {
        while (!is_timed)
            pthread_cond_wait(&changed, &lock);
        before = looks;
        may_look = true;
        pthread_cond_broadcast(&changed);
        while (looks == before)
            pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* Counts the answered ones of the `count` reads from `first` on; each must have got EIO once. */
static unsigned
count_failed(const struct fuse_req *first, unsigned count)
{
    unsigned failed = 0;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++) {
        ck_assert_uint_le(first[i].answers, 1);
        if (first[i].answers == 1)
            ck_assert_int_eq(first[i].error, EIO);
        failed += first[i].answers;
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

/* ---- fixture ---- */

static void
setup(void)
{
    memset(calls, 0, sizeof(calls));
    call_count = 0;
    looks = failed_loads = 0;
    is_timed = may_look = is_over = false;
    atomic_store(&warnings, 0);
    for (unsigned i = 0; i < SYSTEMS; i++) {
        const struct file_identity identity = {.device = i + 1, .inode = 1, .size = BYTES};
        struct backing *backing = backing_new(AT_FDCWD, "model.safetensors", &identity);
        struct extent_builder builder = EXTENT_BUILDER_INIT;

        ck_assert_ptr_nonnull(backing);
        extent_builder_add_backing(&builder, backing, 0, BYTES);
        backing_unref(backing);
        handles[i].list = extent_builder_finish(&builder);
        ck_assert_ptr_nonnull(handles[i].list);
    }
    ck_assert_int_eq(reads_new(NULL, NULL, QUEUE, &reads), 0);
    pthread_mutex_lock(&lock);
    while (looks == 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void
teardown(void)
{
    answer_all();
    pthread_mutex_lock(&lock);
    is_over = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    reads_free(reads);
    ck_assert_int_eq(in_loads, 0);
    for (unsigned i = 0; i < call_count; i++)
        ck_assert_uint_eq(calls[i].answers, 1);
    for (unsigned i = 0; i < SYSTEMS; i++)
        extent_list_unref(handles[i].list);
    assert_expectations();
}

/* ---- tests ---- */

START_TEST(test_reads_are_answered)
{
    struct fuse_req *fine = begin(0), *stale = begin(0), *interrupted = begin(1);

    answer(fine, 0);
    answer(stale, -ESTALE);
    answer(interrupted, -EINTR);
    ck_assert_int_eq(fine->error, 0);
    ck_assert_int_eq(stale->error, ESTALE);
    ck_assert_int_eq(interrupted->error, EIO);
}
END_TEST

/* Reads do not fail while the queue has room. */
START_TEST(test_queue_has_room)
{
    struct fuse_req *first = begin_many(0, CROWDED);

    pass(READS_GRACE_SECONDS - 1);
    answer(first, 0);
    pass(1);
    ck_assert_uint_eq(count_failed(first + 1, CROWDED - 1), 0);
}
END_TEST

START_TEST(test_oldest_reads_fail)
{
    struct fuse_req *first = begin_many(0, QUEUE);

    pass(READS_GRACE_SECONDS - 1);
    ck_assert_uint_eq(count_failed(first, QUEUE), 0);
    pass(1);
    ck_assert_uint_eq(count_failed(first, ROOM), ROOM);
    ck_assert_uint_eq(count_failed(first + ROOM, QUEUE - ROOM), 0);
    ck_assert_uint_eq(atomic_load(&warnings), 1);
    /* The engine's answers to them are discarded. */
    answer(first, 0);
    answer(first + QUEUE - 1, 0);
    ck_assert_int_eq(first[0].error, EIO);
    ck_assert_int_eq(first[QUEUE - 1].error, 0);
    ck_assert_uint_eq(failed_loads, 1);
}
END_TEST

/* While the engine has a queue full of reads of a file system that hangs, new ones fail at once. */
START_TEST(test_new_reads_fail)
{
    struct fuse_req *first = begin_many(0, QUEUE), *more;

    pass(READS_GRACE_SECONDS);
    ck_assert_uint_eq(count_failed(begin(0), 1), 1);
    ck_assert_uint_eq(count_failed(begin(1), 1), 0);
    for (unsigned i = 0; i < PACE; i++)
        answer(&first[i], 0); /* late reads: progress */
    more = begin_many(0, 2 * PACE);
    ck_assert_uint_eq(count_failed(more, 2 * PACE), 0);
}
END_TEST

/* Many reads alone, none of which has failed, do not make new ones fail. */
START_TEST(test_more_reads_than_queue)
{
    struct fuse_req *first = begin_many(0, 2 * QUEUE);

    ck_assert_uint_eq(count_failed(first, 2 * QUEUE), 0);
}
END_TEST

static unsigned
count_all_failed(void)
{
    unsigned failed = 0;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < call_count; i++)
        failed += calls[i].error == EIO;
    pthread_mutex_unlock(&lock);
    return failed;
}

/* Answers `count` of the oldest reads every nine seconds, and begins as many, until a read fails or
 * all reads were answered. Returns how many have failed. */
static unsigned
serve_slowly(unsigned count)
{
    struct fuse_req *next = begin_many(0, QUEUE), *end = next + QUEUE;

    while (next < end) {
        for (unsigned i = 0; i < READS_HANG_SECONDS - 1 && count_all_failed() == 0; i++)
            pass(1);
        if (count_all_failed() > 0)
            break;
        for (unsigned i = 0; i < count; i++)
            answer(next++, 0);
        begin_many(0, count);
    }
    return count_all_failed();
}

START_TEST(test_slow_storage)
{
    ck_assert_uint_eq(serve_slowly(PACE), 0);
}
END_TEST

START_TEST(test_too_slow_storage)
{
    ck_assert_uint_ge(serve_slowly(PACE / 2), ROOM);
}
END_TEST

/* Every second, a read of another part of the storage is answered. */
START_TEST(test_storage_that_hangs_in_part)
{
    struct fuse_req *first = begin_many(0, QUEUE);

    for (unsigned i = 0; i < READS_GRACE_SECONDS; i++) {
        ck_assert_uint_eq(count_failed(first, QUEUE), 0);
        answer(begin(0), 0);
        pass(1);
    }
    ck_assert_uint_eq(count_failed(first, QUEUE), ROOM);
}
END_TEST

START_TEST(test_largest_fails_first)
{
    struct fuse_req *smaller = begin_many(0, 420), *larger = begin_many(1, 780);

    pass(READS_GRACE_SECONDS);
    ck_assert_uint_eq(count_failed(larger, 780), ROOM);
    ck_assert_uint_eq(count_failed(smaller, 420), 0);
    ck_assert_uint_eq(atomic_load(&warnings), 1);
}
END_TEST

/* Half of what a slow file system leaves. */
START_TEST(test_share)
{
    struct fuse_req *hung = begin_many(0, 240), *slow = begin_many(1, 960);

    for (unsigned i = 0; i < READS_GRACE_SECONDS; i++) {
        answer(&slow[i], 0);
        begin(1);
        pass(1);
    }
    ck_assert_uint_eq(count_failed(hung, 240), 240 - (QUEUE - 960) / 2);
    ck_assert_uint_eq(count_failed(slow + READS_GRACE_SECONDS, 960 - READS_GRACE_SECONDS), 0);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("reads");
    TCase *cases = tcase_create("reads");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_set_timeout(cases, 300);
    suite_add_tcase(made, cases);
    tcase_add_test(cases, test_reads_are_answered);
    tcase_add_test(cases, test_queue_has_room);
    tcase_add_test(cases, test_oldest_reads_fail);
    tcase_add_test(cases, test_new_reads_fail);
    tcase_add_test(cases, test_more_reads_than_queue);
    tcase_add_test(cases, test_slow_storage);
    tcase_add_test(cases, test_too_slow_storage);
    tcase_add_test(cases, test_storage_that_hangs_in_part);
    tcase_add_test(cases, test_largest_fails_first);
    tcase_add_test(cases, test_share);
    return made;
}

#include "check_main.h"
