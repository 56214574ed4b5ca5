/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include "base/clock.h"
#include "base/thread.h"

/* Sleeps until the next turn begins. */
static void
rest_locked(struct watch *watch, double begun)
{
    double left = watch->interval - (monotonic_seconds() - begun);
    uint64_t until = monotonic_ns() + (uint64_t)(left > 0 ? left * 1e9 : 0);
    bool resting = true;

    watch->resting = true;
    pthread_cond_broadcast(&watch->changed);
    while (!watch->ended && resting)
        resting = condition_wait(&watch->changed, &watch->lock, until);
    watch->resting = false;
}

static void *
run(void *arg)
{
    struct watch *watch = arg;

    pthread_mutex_lock(&watch->lock);
    while (!watch->ended && !watch->error) {
        double begun = monotonic_seconds();
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
    *watch = (struct watch){.point = point, .interval = interval};
    pthread_mutex_init(&watch->lock, NULL);
    condition_init(&watch->changed);
    return thread_start(&watch->thread, run, watch);
}

bool
watch_await(struct watch *watch, unsigned turns)
{
    uint64_t until = monotonic_ns() + 200000000;

    pthread_mutex_lock(&watch->lock);
    while (watch->turns <= turns || !watch->resting)
        if (!condition_wait(&watch->changed, &watch->lock, until))
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
