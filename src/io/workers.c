/* SPDX-License-Identifier: Apache-2.0 */
#include "io/workers.h"

#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct workers {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    struct fifo urgent, others;
    bool stopping;
    unsigned waiting; /* jobs in the queues */
    unsigned idle; /* threads that wait, or are about to wake */
    unsigned count; /* threads made */
    unsigned most;
    pthread_t threads[];
};

/* The next job, or NULL when there will be none. */
static struct job *
take(struct workers *workers)
{
    struct job *job;

    pthread_mutex_lock(&workers->lock);
    for (;;) {
        job = fifo_take(&workers->urgent);
        if (!job)
            job = fifo_take(&workers->others);
        workers->waiting -= job != NULL;
        if (job || workers->stopping)
            break;
        workers->idle++;
        pthread_cond_wait(&workers->work, &workers->lock);
        workers->idle--;
    }
    pthread_mutex_unlock(&workers->lock);
    return job;
}

static void *
work(void *arg)
{
    struct workers *workers = arg;
    struct job *job;

    pthread_setname_np(pthread_self(), "fstfs-work");
    while ((job = take(workers)))
        job->run(job);
    return NULL;
}

/* With the lock held. */
static errint_t
add_thread(struct workers *workers)
{
    errint_t error = thread_start(&workers->threads[workers->count], work, workers);

    if (error == 0)
        workers->count++;
    return error;
}

errint_t
workers_new(unsigned most, struct workers **workers)
{
    struct workers *made = calloc(1, sizeof(*made) + most * sizeof(made->threads[0]));
    errint_t result;

    if (!made)
        return -ENOMEM;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    made->most = most;
    /* One at least, so that no job can be left lying later. */
    pthread_mutex_lock(&made->lock);
    result = add_thread(made);
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
    workers->stopping = true;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->count; i++)
        pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->work);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

void
workers_add(struct workers *workers, struct job *job, bool urgent)
{
    pthread_mutex_lock(&workers->lock);
    fifo_add(urgent ? &workers->urgent : &workers->others, &job->node);
    workers->waiting++;
    /* No job may have to wait for another, which may be long. */
    if (workers->waiting > workers->idle && workers->count < workers->most && !workers->stopping)
        add_thread(workers);
    pthread_cond_signal(&workers->work);
    pthread_mutex_unlock(&workers->lock);
}
