/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: jobs run concurrently, and jobs that hang do not block those of other file systems. */
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
#define TIMEOUT_SECONDS 300

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t started; /* `running` has changed */
static int running; /* jobs of wait_for_all() that have started */
static bool is_late;

static void
return_at_once(struct job *job)
{
}

/* Returns when THREADS of these jobs are running. */
static void
wait_for_all(struct job *job)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += TIMEOUT_SECONDS;
    pthread_mutex_lock(&lock);
    running++;
    pthread_cond_broadcast(&started);
    while (running < THREADS && !is_late)
        is_late = pthread_cond_timedwait(&started, &lock, &until) == ETIMEDOUT;
    pthread_cond_broadcast(&started);
    pthread_mutex_unlock(&lock);
}

static void
init_monotonic_condition(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

START_TEST(jobs_run_concurrently)
{
    init_monotonic_condition(&started);
    for (int i = 0; i < ROUNDS && !is_late; i++) {
        struct job jobs[THREADS] = {{.run = wait_for_all},
                                    {.run = wait_for_all},
                                    {.run = wait_for_all},
                                    {.run = wait_for_all}};
        struct job first = {.run = return_at_once};
        struct workers *workers;

        running = 0;
        ck_assert_int_eq(workers_new(THREADS, &workers), 0);
        workers_add(workers, &first, false);
        nanosleep(&(struct timespec){0, 1000000}, NULL); /* its thread becomes idle */
        for (int j = 0; j < THREADS; j++)
            workers_add(workers, &jobs[j], j % 2);
        workers_free(workers);
        ck_assert_msg(!is_late, "round %d: %d of %d jobs run concurrently", i, running, THREADS);
    }
    pthread_cond_destroy(&started);
}
END_TEST

#define HUNG_SYSTEMS 5
#define HUNG_JOBS 100 /* on each file system */

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

/* Many jobs hang on several file systems; one of another file system runs. */
START_TEST(hung_file_systems_do_not_block_others)
{
    struct job jobs[HUNG_SYSTEMS * HUNG_JOBS];
    struct job job = {.run = wait_for_all, .lane_key = HUNG_SYSTEMS + 1};
    struct workers *workers;
    struct timespec until;

    pthread_cond_init(&answered, NULL);
    init_monotonic_condition(&started);
    running = THREADS - 1; /* so wait_for_all() returns at once */
    ck_assert_int_eq(workers_new(THREADS, &workers), 0);
    for (int i = 0; i < HUNG_SYSTEMS * HUNG_JOBS; i++) {
        jobs[i] = (struct job){.run = hang, .lane_key = 1 + (uint64_t)i % HUNG_SYSTEMS};
        workers_add(workers, &jobs[i], true);
    }
    workers_add(workers, &job, false);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += TIMEOUT_SECONDS;
    pthread_mutex_lock(&lock);
    while (running < THREADS && pthread_cond_timedwait(&started, &lock, &until) != ETIMEDOUT)
        continue;
    expect(running == THREADS);
    expect(hung <= 2 * THREADS + HUNG_SYSTEMS);
    hangs = false;
    pthread_cond_broadcast(&answered);
    pthread_mutex_unlock(&lock);
    workers_free(workers);
    expect(hung == HUNG_SYSTEMS * HUNG_JOBS);
    assert_expectations();
    pthread_cond_destroy(&started);
    pthread_cond_destroy(&answered);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("workers");
    TCase *t = tcase_create("workers");

    tcase_set_timeout(t, 0);
    tcase_add_test(t, jobs_run_concurrently);
    tcase_add_test(t, hung_file_systems_do_not_block_others);
    suite_add_tcase(s, t);
    return s;
}

#include "check_main.h"
