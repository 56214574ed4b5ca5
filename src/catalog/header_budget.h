/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget for memory whose size a file decides: the text of headers and indexes,
 * what parsing them takes, the tables, what is made of the tables, and the names that open
 * directories show.
 *
 * Such memory is charged before it is allocated. A charge begins as transient: its owner
 * works, and neither waits for storage nor takes another charge until it has settled
 * this one. So whoever has no room can wait for the transient charges of others. What
 * is left of a charge when it is settled is given back when the memory is freed.
 *
 * Any thread may call anything here.
 */
#ifndef FSTFS_CATALOG_HEADER_BUDGET_H
#define FSTFS_CATALOG_HEADER_BUDGET_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The smallest budget of a catalog: one header of ST_MAX_HEADER bytes fits. */
#define HEADER_BUDGET_LEAST (UINT64_C(1) << 30)

enum { HEADER_BUDGET_WAIT_SECONDS = 10 };

struct header_budget {
    pthread_mutex_t lock; /* guards the numbers; never held while reclaim() runs */
    pthread_cond_t released;
    uint64_t limit;
    uint64_t used; /* bytes charged now */
    uint64_t transient; /* of them, those not settled yet */
    uint64_t peak; /* the most that was ever charged */
    uint64_t releases; /* counts up with each release */
    uint64_t refusals;
    atomic_uint waiters;
    /* Frees something that nobody uses and gives its charge back; false: there is nothing. */
    bool (*reclaim)(void *arg);
    void *reclaim_arg;
};

void header_budget_init(struct header_budget *budget, uint64_t limit, bool (*reclaim)(void *arg),
                        void *arg);
void header_budget_destroy(struct header_budget *budget);

/* Below, a budget of NULL has no limit. */

/*
 * Makes a transient charge. Where there is no room, reclaims, then waits for the transient
 * charges of others. -ENOBUFS: still no room, and nothing was released for
 * HEADER_BUDGET_WAIT_SECONDS or nothing transient is left to wait for.
 */
errint_t header_budget_take(struct header_budget *budget, uint64_t bytes);
/* Settles a transient charge: `kept` of its `bytes` stay charged. */
void header_budget_settle(struct header_budget *budget, uint64_t bytes, uint64_t kept);
/* Gives back what was kept. */
void header_budget_give(struct header_budget *budget, uint64_t bytes);

struct header_budget_counters {
    uint64_t limit, used, peak, refusals;
};
void header_budget_count(struct header_budget *budget, struct header_budget_counters *counters);

#endif
