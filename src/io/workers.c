/* SPDX-License-Identifier: Apache-2.0 */
#include "io/workers.h"

#include "base/thread.h"
#include "io/lanes.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Guarded by the lock of the workers. `users` counts jobs that are queued or running. */
struct worker_lane {
    struct lane lane;
    struct fifo urgent, background;
    unsigned running;
};

struct workers {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    struct list lanes;
    bool is_stopping;
    unsigned running; /* jobs, of all lanes */
    unsigned idle; /* threads that sleep, or are waking up */
    unsigned count; /* threads started */
    unsigned most; /* running jobs of one lane, if no other has any */
    unsigned threads_most;
    pthread_t threads[];
};

static void *worker_main(void *arg);

/* With the lock held. */
static errint_t
worker_start(struct workers *workers)
{
    errint_t error = thread_start(&workers->threads[workers->count], worker_main, workers);

    if (error == 0)
        workers->count++;
    return error;
}

/* How many queued jobs of a lane may run now. */
static unsigned
worker_lane_runnable(const struct workers *workers, struct worker_lane *lane)
{
    unsigned queued = atomic_load(&lane->lane.users) - lane->running;
    unsigned share = lane_share(workers->most, workers->running - lane->running);
    unsigned free = share > lane->running ? share - lane->running : 0;

    return queued < free ? queued : free;
}

/* With the lock held: wakes or starts a thread if a job may run, so that it does not wait for the
 * end of another, which may take long. */
static void
workers_provide_threads(struct workers *workers)
{
    unsigned runnable = 0;

    list_for_each(node, &workers->lanes)
    {
        runnable +=
            worker_lane_runnable(workers, container_of(node, struct worker_lane, lane.node));
    }
    if (runnable > workers->idle && workers->count < workers->threads_most && !workers->is_stopping)
        worker_start(workers);
    if (runnable > 0)
        pthread_cond_signal(&workers->work);
}

/* With the lock held: an urgent job that may run, else any other; the lanes take turns. NULL: none.
 */
static struct job *
workers_take_job(struct workers *workers, bool urgent)
{
    list_for_each(node, &workers->lanes)
    {
        struct worker_lane *lane = container_of(node, struct worker_lane, lane.node);
        struct job *job = NULL;

        if (worker_lane_runnable(workers, lane) > 0)
            job = fifo_take(urgent ? &lane->urgent : &lane->background);
        if (!job)
            continue;
        list_rotate(&workers->lanes, node);
        lane->running++;
        workers->running++;
        return job;
    }
    return urgent ? workers_take_job(workers, false) : NULL;
}

/* With the lock held: waits for the next job. NULL: the workers stop. A job that may not run yet is
 * left to the threads that run the other jobs of its lane. */
static struct job *
worker_wait_for_job(struct workers *workers)
{
    struct job *job;

    while (!(job = workers_take_job(workers, true)) && !workers->is_stopping) {
        workers->idle++;
        pthread_cond_wait(&workers->work, &workers->lock);
        workers->idle--;
    }
    return job;
}

static void *
worker_main(void *arg)
{
    struct workers *workers = arg;
    struct job *job;

    pthread_setname_np(pthread_self(), "fstfs-work");
    pthread_mutex_lock(&workers->lock);
    while ((job = worker_wait_for_job(workers))) {
        struct worker_lane *lane = job->lane;

        workers_provide_threads(workers);
        pthread_mutex_unlock(&workers->lock);
        job->run(job);
        pthread_mutex_lock(&workers->lock);
        lane->running--;
        workers->running--;
        atomic_fetch_sub(&lane->lane.users, 1);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

errint_t
workers_new(unsigned most, struct workers **workers)
{
    unsigned threads_most = 2 * most + WORKER_LANES;
    struct workers *made = calloc(1, sizeof(*made) + threads_most * sizeof(made->threads[0]));
    errint_t result;

    if (!made)
        return -ENOMEM;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    list_init(&made->lanes);
    made->most = most;
    made->threads_most = threads_most;
    /* At least one thread, so that jobs run even if no other can be started later. */
    pthread_mutex_lock(&made->lock);
    result = lanes_find(&made->lanes, 0, sizeof(struct worker_lane)) ? worker_start(made) : -ENOMEM;
    pthread_mutex_unlock(&made->lock);
    if (result < 0) {
        workers_free(made);
        return result;
    }
    *workers = made;
    return 0;
}

void
workers_free(struct workers *workers)
{
    if (!workers)
        return;
    pthread_mutex_lock(&workers->lock);
    workers->is_stopping = true;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->count; i++)
        pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->work);
    pthread_mutex_destroy(&workers->lock);
    lanes_free(&workers->lanes);
    free(workers);
}

void
workers_add(struct workers *workers, struct job *job, bool urgent)
{
    struct worker_lane *lane;

    pthread_mutex_lock(&workers->lock);
    lane = (struct worker_lane *)lanes_find(&workers->lanes, job->lane_key, sizeof(*lane));
    if (!lane) /* out of memory: any lane will do, and workers_new() has made one */
        lane = container_of(workers->lanes.next, struct worker_lane, lane.node);
    job->lane = lane;
    atomic_fetch_add(&lane->lane.users, 1);
    fifo_add(urgent ? &lane->urgent : &lane->background, &job->node);
    workers_provide_threads(workers);
    pthread_mutex_unlock(&workers->lock);
}
