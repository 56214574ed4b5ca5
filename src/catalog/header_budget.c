/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/header_budget.h"

#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>

void
header_budget_init(struct header_budget *budget, uint64_t limit, bool (*reclaim)(void *arg),
                   void *arg)
{
    *budget = (struct header_budget){.limit = limit, .reclaim = reclaim, .reclaim_arg = arg};
    pthread_mutex_init(&budget->lock, NULL);
    condition_init(&budget->released);
}

void
header_budget_destroy(struct header_budget *budget)
{
    pthread_cond_destroy(&budget->released);
    pthread_mutex_destroy(&budget->lock);
}

static bool
charge_locked(struct header_budget *budget, uint64_t bytes)
{
    if (budget->used > budget->limit - bytes)
        return false;
    budget->used += bytes;
    budget->transient += bytes;
    if (budget->used > budget->peak)
        budget->peak = budget->used;
    return true;
}

/* Reclaims until `bytes` are charged or nothing is left to reclaim. Releases the lock while it
 * reclaims. */
static bool
charge_or_reclaim_locked(struct header_budget *budget, uint64_t bytes)
{
    bool reclaimed = budget->reclaim != NULL;

    while (!charge_locked(budget, bytes)) {
        if (!reclaimed)
            return false;
        pthread_mutex_unlock(&budget->lock);
        reclaimed = budget->reclaim(budget->reclaim_arg);
        pthread_mutex_lock(&budget->lock);
    }
    return true;
}

/* Waits for a release after number `seen`. Returns false after the deadline. */
static bool
wait_for_release_locked(struct header_budget *budget, uint64_t seen, uint64_t deadline)
{
    atomic_fetch_add(&budget->waiters, 1);
    while (seen == budget->releases)
        if (!condition_wait(&budget->released, &budget->lock, deadline))
            break;
    atomic_fetch_sub(&budget->waiters, 1);
    return seen != budget->releases && monotonic_ns() < deadline;
}

static errint_t
take_locked(struct header_budget *budget, uint64_t bytes)
{
    /* Releases do not extend the deadline: other charges may come and go while those that hold the
     * memory hang. */
    uint64_t deadline = monotonic_ns() + HEADER_BUDGET_WAIT_SECONDS * UINT64_C(1000000000);
    bool is_late = false;

    if (bytes > budget->limit)
        return -ENOBUFS; /* can never fit: reclaim nothing */
    for (;;) {
        uint64_t seen = budget->releases;

        if (charge_or_reclaim_locked(budget, bytes))
            return 0;
        if (budget->transient == 0 || is_late)
            return -ENOBUFS;
        is_late = !wait_for_release_locked(budget, seen, deadline);
    }
}

errint_t
header_budget_take(struct header_budget *budget, uint64_t bytes)
{
    errint_t error;

    if (!budget)
        return 0;
    pthread_mutex_lock(&budget->lock);
    error = take_locked(budget, bytes);
    if (error)
        budget->refusals++;
    pthread_mutex_unlock(&budget->lock);
    return error;
}

static void
release_locked(struct header_budget *budget, uint64_t bytes)
{
    budget->used -= bytes;
    budget->releases++;
    pthread_cond_broadcast(&budget->released);
}

void
header_budget_settle(struct header_budget *budget, uint64_t bytes, uint64_t kept)
{
    if (!budget)
        return;
    pthread_mutex_lock(&budget->lock);
    budget->transient -= bytes;
    release_locked(budget, bytes - kept);
    pthread_mutex_unlock(&budget->lock);
}

void
header_budget_give(struct header_budget *budget, uint64_t bytes)
{
    if (!budget)
        return;
    pthread_mutex_lock(&budget->lock);
    release_locked(budget, bytes);
    pthread_mutex_unlock(&budget->lock);
}

void
header_budget_count(struct header_budget *budget, struct header_budget_counters *counters)
{
    pthread_mutex_lock(&budget->lock);
    *counters =
        (struct header_budget_counters){budget->limit, budget->used, budget->peak, budget->refusals,
                                        budget->advice ? budget->advice : ""};
    pthread_mutex_unlock(&budget->lock);
}
