/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include "base/clock.h"
#include "base/thread.h"

/* Waits for the next interval. */
static void
watch_wait_locked(struct watch *watch, double begun)
{
    double left = watch->interval - (monotonic_seconds() - begun);
    uint64_t until = monotonic_ns() + (uint64_t)(left > 0 ? left * 1e9 : 0);
    bool is_waiting = true;

    watch->is_idle = true;
    pthread_cond_broadcast(&watch->changed);
    while (!watch->ended && is_waiting)
        is_waiting = condition_wait(&watch->changed, &watch->lock, until);
    watch->is_idle = false;
}

static void *
run_watch(void *arg)
{
    struct watch *watch = arg;

    pthread_mutex_lock(&watch->lock);
    while (!watch->ended && !watch->error) {
        double begun = monotonic_seconds();
        struct sample sample;
        struct reason reason;
        errint_t error;

        pthread_mutex_unlock(&watch->lock);
        users_scan(watch->point, &watch->users);
        error = sample_take(watch->point, &sample, &reason);
        pthread_mutex_lock(&watch->lock);
        sample_free(&watch->sample);
        watch->sample = sample;
        watch->reason = reason;
        watch->error = error;
        watch->sample_count++;
        if (!error)
            watch_wait_locked(watch, begun);
    }
    watch->is_idle = true;
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
    return thread_start(&watch->thread, run_watch, watch);
}

bool
watch_await(struct watch *watch, unsigned seen)
{
    uint64_t until = monotonic_ns() + 200000000;

    pthread_mutex_lock(&watch->lock);
    while (watch->sample_count <= seen || !watch->is_idle)
        if (!condition_wait(&watch->changed, &watch->lock, until))
            break;
    if (watch->sample_count > seen && watch->is_idle)
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
    bool is_idle;

    pthread_mutex_lock(&watch->lock);
    watch->ended = true;
    is_idle = watch->is_idle;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
    if (!is_idle)
        return false;
    pthread_join(watch->thread, NULL);
    sample_free(&watch->sample);
    users_free(&watch->users);
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
    return true;
}
