/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget for memory whose size is determined by files of the source: the text of headers and
 * indexes, the memory for parsing them, tables and the objects built from them, and the names in
 * open directories.
 *
 * Such memory is charged before it is allocated. A charge is transient at first: until its owner
 * settles it, the owner takes no other charge, so that others can wait for it without a deadlock.
 * It may read the header or index from storage meanwhile, so others wait for a limited time only.
 * The part that stays charged after that is returned when the memory is freed.
 *
 * Any thread may call any function.
 */
#ifndef FSTFS_CATALOG_HEADER_BUDGET_H
#define FSTFS_CATALOG_HEADER_BUDGET_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The smallest budget of a catalog: a header of ST_MAX_HEADER bytes fits. */
#define HEADER_BUDGET_LEAST (UINT64_C(1) << 30)

enum { HEADER_BUDGET_WAIT_SECONDS = 10 };

struct header_budget {
    pthread_mutex_t lock; /* guards the numbers; not held while reclaim() runs */
    pthread_cond_t released;
    uint64_t limit;
    uint64_t used; /* bytes charged now */
    uint64_t transient; /* of these, not settled yet */
    uint64_t peak; /* maximum of `used` */
    uint64_t releases; /* number of releases since the start */
    uint64_t refusals;
    atomic_uint waiters;
    const char *advice; /* see struct header_budget_counters; NULL: none */
    /* Frees an unused object and returns its charge. Returns false if there is none. May be NULL.
     */
    bool (*reclaim)(void *arg);
    void *reclaim_arg;
};

void header_budget_init(struct header_budget *budget, uint64_t limit, bool (*reclaim)(void *arg),
                        void *arg);
void header_budget_destroy(struct header_budget *budget);

/* In the functions below, a NULL budget is unlimited. */

/*
 * Takes a transient charge. If there is no room, reclaims, then waits for the transient charges of
 * others, for HEADER_BUDGET_WAIT_SECONDS at most. -ENOBUFS: there is still no room, or no transient
 * charge is left to wait for; or `bytes` exceeds the whole budget, for which nothing is reclaimed.
 */
errint_t header_budget_take(struct header_budget *budget, uint64_t bytes);
/* Settles a transient charge: `kept` of its `bytes` stay charged. */
void header_budget_settle(struct header_budget *budget, uint64_t bytes, uint64_t kept);
/* Returns bytes that stayed charged. */
void header_budget_give(struct header_budget *budget, uint64_t bytes);

struct header_budget_counters {
    uint64_t limit, used, peak, refusals;
    const char *advice; /* end of a message that there is no room: "; raise --memory", or "" */
};
void header_budget_count(struct header_budget *budget, struct header_budget_counters *counters);

#endif
