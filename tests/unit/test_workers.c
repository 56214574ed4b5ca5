/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: a job that hangs keeps no other from being run while threads may be made. */
#include "io/workers.h"

#include "expect.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define ROUNDS 50
#define THREADS 4
#define PATIENCE 300 /* seconds; who waits for ever is found out all the same */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived; /* by the clock that does not jump */
static int here; /* jobs that run now or have run */
static bool late;

static void
nothing(struct job *job)
{
}

/* Ends when as many run as there may be threads. */
static void
meet(struct job *job)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE;
    pthread_mutex_lock(&lock);
    here++;
    pthread_cond_broadcast(&arrived);
    while (here < THREADS && !late)
        late = pthread_cond_timedwait(&arrived, &lock, &until) == ETIMEDOUT;
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&lock);
}

START_TEST(all_at_once)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < ROUNDS && !late; i++) {
        struct job jobs[THREADS] = {{.run = meet}, {.run = meet}, {.run = meet}, {.run = meet}};
        struct job first = {.run = nothing};
        struct workers *workers;

        here = 0;
        ck_assert_int_eq(workers_new(THREADS, &workers), 0);
        workers_add(workers, &first, false);
        nanosleep(&(struct timespec){0, 1000000}, NULL); /* its thread becomes idle */
        for (int j = 0; j < THREADS; j++)
            workers_add(workers, &jobs[j], j % 2);
        workers_free(workers);
        ck_assert_msg(!late, "round %d: %d of %d jobs run at once", i, here, THREADS);
    }
    pthread_cond_destroy(&arrived);
}
END_TEST

#define HUNG_SYSTEMS 5
#define HUNG_JOBS 100 /* of each */

static pthread_cond_t answered;
static bool hangs = true;
static int hung; /* jobs that wait for storage */

/* Waits for storage that does not answer. */
static void
hang(struct job *job)
{
    pthread_mutex_lock(&lock);
    hung++;
    while (hangs)
        pthread_cond_wait(&answered, &lock);
    pthread_mutex_unlock(&lock);
}

/* Whatever hangs on several file systems, a job of another one is run. */
START_TEST(others_hang)
{
    struct job jobs[HUNG_SYSTEMS * HUNG_JOBS];
    struct job job = {.run = meet, .device = HUNG_SYSTEMS + 1};
    struct workers *workers;
    struct timespec until;

    pthread_cond_init(&answered, NULL);
    pthread_cond_init(&arrived, NULL);
    here = THREADS - 1; /* meet() waits for no other */
    ck_assert_int_eq(workers_new(THREADS, &workers), 0);
    for (int i = 0; i < HUNG_SYSTEMS * HUNG_JOBS; i++) {
        jobs[i] = (struct job){.run = hang, .device = 1 + (uint64_t)i % HUNG_SYSTEMS};
        workers_add(workers, &jobs[i], true);
    }
    workers_add(workers, &job, false);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&lock);
    while (here < THREADS && pthread_cond_timedwait(&arrived, &lock, &until) != ETIMEDOUT)
        continue;
    expect(here == THREADS);
    expect(hung <= 2 * THREADS + HUNG_SYSTEMS);
    hangs = false;
    pthread_cond_broadcast(&answered);
    pthread_mutex_unlock(&lock);
    workers_free(workers);
    expect(hung == HUNG_SYSTEMS * HUNG_JOBS);
    assert_expectations();
    pthread_cond_destroy(&arrived);
    pthread_cond_destroy(&answered);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("workers");
    TCase *t = tcase_create("workers");

    tcase_set_timeout(t, 0);
    tcase_add_test(t, all_at_once);
    tcase_add_test(t, others_hang);
    suite_add_tcase(s, t);
    return s;
}

#include "check_main.h"
