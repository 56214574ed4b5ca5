/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <errno.h>
#include <time.h>

static struct timespec
in_seconds(double seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Sleeps until the next turn begins. */
static void
rest_locked(struct watch *watch, double begun)
{
    double left = watch->interval - (sample_now() - begun);
    struct timespec until = in_seconds(left > 0 ? left : 0);
    int result = 0;

    watch->resting = true;
    pthread_cond_broadcast(&watch->changed);
    while (!watch->ended && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&watch->changed, &watch->lock, &until);
    watch->resting = false;
}

static void *
run(void *arg)
{
    struct watch *watch = arg;

    pthread_mutex_lock(&watch->lock);
    while (!watch->ended && !watch->error) {
        double begun = sample_now();
        struct sample sample;
        struct reason reason;
        errint_t error;

        pthread_mutex_unlock(&watch->lock);
        users_look(watch->point, &watch->users);
        error = sample_take(watch->point, &sample, &reason);
        pthread_mutex_lock(&watch->lock);
        sample_free(&watch->sample);
        watch->sample = sample;
        watch->reason = reason;
        watch->error = error;
        watch->turns++;
        if (!error)
            rest_locked(watch, begun);
    }
    watch->resting = true;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

errint_t
watch_begin(struct watch *watch, const char *point, double interval)
{
    pthread_condattr_t monotonic;

    *watch = (struct watch){.point = point, .interval = interval};
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return -pthread_create(&watch->thread, NULL, run, watch);
}

bool
watch_await(struct watch *watch, unsigned turns)
{
    struct timespec until = in_seconds(0.2);

    pthread_mutex_lock(&watch->lock);
    while (watch->turns <= turns || !watch->resting)
        if (pthread_cond_timedwait(&watch->changed, &watch->lock, &until) == ETIMEDOUT)
            break;
    if (watch->turns > turns && watch->resting)
        return true;
    pthread_mutex_unlock(&watch->lock);
    return false;
}

void
watch_done(struct watch *watch)
{
    pthread_mutex_unlock(&watch->lock);
}

bool
watch_end(struct watch *watch)
{
    bool resting;

    pthread_mutex_lock(&watch->lock);
    watch->ended = true;
    resting = watch->resting;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
    if (!resting)
        return false;
    pthread_join(watch->thread, NULL);
    sample_free(&watch->sample);
    users_free(&watch->users);
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
    return true;
}
