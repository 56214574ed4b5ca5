/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: order, the limits of reads in flight, the first error, complete() from workers. */
#include "io/batch.h"

#include <check.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define READS 500
#define DEPTH 7
#define FAILING 123

static struct batch *batch;
static struct workers *workers;
static struct job jobs[READS];
static struct batch_read *pending[READS];
static unsigned next, failing; /* index of the read that fails; READS: none */
static atomic_uint in_flight, most_in_flight, completed, ended, ended_in_flight;

static bool
next_read(void *arg, struct batch_read *read)
{
    unsigned count = atomic_fetch_add(&in_flight, 1) + 1;

    if (next == READS) {
        atomic_fetch_sub(&in_flight, 1);
        return false;
    }
    if (count > atomic_load(&most_in_flight))
        atomic_store(&most_in_flight, count);
    read->offset = next++;
    read->length = 1;
    return true;
}

static void
/* cppcheck-suppress constParameter ; workers_add() gives the type */
run_read(struct job *job)
{
    size_t i = (size_t)(job - jobs);

    usleep(i % 5 * 20);
    batch_completed(pending[i], i == failing ? -EIO : 0);
}

/* Most reads complete on another thread, in any order; some while they are submitted. */
static void
start_read(struct batch_read *read)
{
    size_t i = (size_t)read->offset;

    pending[i] = read;
    jobs[i].run = run_read;
    if (i % 3 == 0)
        batch_completed(read, i == failing ? -EIO : 0);
    else
        workers_add(workers, &jobs[i], true);
}

static void
complete_read(struct batch_read *read, const struct iovec *vectors, int count)
{
    atomic_fetch_add(&completed, 1);
    atomic_fetch_sub(&in_flight, 1);
    batch_release(read);
}

static void
batch_ended(void *arg)
{
    atomic_store(&ended_in_flight, atomic_load(&in_flight));
    atomic_fetch_add(&ended, 1);
}

static void
make_batch(struct batch_options options)
{
    next = 0;
    failing = READS;
    in_flight = most_in_flight = completed = ended = ended_in_flight = 0;
    ck_assert_int_eq(workers_new(4, &workers), 0);
    options.depth = DEPTH;
    options.next = next_read;
    options.read = start_read;
    ck_assert_int_eq(batch_new(&options, &batch), 0);
}

static void
free_batch(void)
{
    workers_free(workers);
    batch_free(batch);
}

START_TEST(ordered)
{
    struct batch_read *read;
    unsigned count = 0;

    make_batch((struct batch_options){.is_ordered = true});
    while ((read = batch_take(batch))) {
        ck_assert_uint_eq(read->offset, count++);
        atomic_fetch_sub(&in_flight, 1);
        batch_release(read);
    }
    ck_assert_uint_eq(count, READS);
    ck_assert_uint_le(most_in_flight, DEPTH);
    ck_assert_uint_gt(most_in_flight, 1);
    ck_assert_int_eq(batch_error(batch, NULL), 0);
    free_batch();
}
END_TEST

/* A read stays in flight until it is released. */
START_TEST(depth_includes_reads_that_were_taken)
{
    struct batch_read *taken[DEPTH];

    make_batch((struct batch_options){0});
    for (unsigned i = 0; i < DEPTH; i++)
        ck_assert_ptr_nonnull(taken[i] = batch_take(batch));
    ck_assert_uint_eq(next, DEPTH);
    batch_stop(batch, -EINTR, 0);
    for (unsigned i = 0; i < DEPTH; i++)
        batch_release(taken[i]);
    ck_assert_ptr_null(batch_take(batch));
    ck_assert_uint_eq(next, DEPTH);
    free_batch();
}
END_TEST

START_TEST(first_error_stops)
{
    struct batch_read *read;
    uint64_t offset = 0;

    make_batch((struct batch_options){.is_ordered = true});
    failing = FAILING;
    while ((read = batch_take(batch))) {
        ck_assert_uint_lt(read->offset, FAILING);
        batch_release(read);
    }
    ck_assert_int_eq(batch_error(batch, &offset), -EIO);
    ck_assert_uint_eq(offset, FAILING);
    ck_assert(!batch_stop(batch, -EINTR, 0));
    ck_assert_uint_le(next, FAILING + DEPTH);
    free_batch();
}
END_TEST

/* end() is called once, when nothing is in flight, by the thread that completes last. */
START_TEST(completed_by_workers)
{
    struct workers *submitters;

    for (int round = 0; round < 20; round++) {
        ck_assert_int_eq(workers_new(3, &submitters), 0);
        make_batch((struct batch_options){.complete = complete_read,
                                          .end = batch_ended,
                                          .workers = submitters,
                                          .worker_count = 3});
        batch_start(batch, 2, true);
        while (atomic_load(&ended) == 0)
            usleep(100);
        workers_free(submitters);
        ck_assert_uint_eq(atomic_load(&completed), READS);
        ck_assert_uint_eq(atomic_load(&ended), 1);
        ck_assert_uint_eq(atomic_load(&ended_in_flight), 0);
        ck_assert_uint_le(most_in_flight, DEPTH);
        free_batch();
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("batch");
    TCase *c = tcase_create("batch");

    tcase_add_test(c, ordered);
    tcase_add_test(c, depth_includes_reads_that_were_taken);
    tcase_add_test(c, first_error_stops);
    tcase_add_test(c, completed_by_workers);
    tcase_set_timeout(c, 120);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
