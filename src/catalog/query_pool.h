/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread pool for operations on file systems that may hang.
 *
 * A query is answered by its run() on a thread of the pool. Queries wait in lanes, one for each
 * file system. A lane has at most QUERY_LANE_THREADS threads, and only one while at least half
 * of QUERY_THREADS are busy, so that file systems that hang leave threads to others. In a lane, the
 * queries of different askers take turns. Threads are started on demand and end when they have been
 * idle.
 *
 * Any thread may call any function.
 */
#ifndef FSTFS_CATALOG_QUERY_POOL_H
#define FSTFS_CATALOG_QUERY_POOL_H

#include "base/error.h"
#include "base/list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    QUERY_THREADS = 64, /* of all lanes */
    QUERY_LANE_THREADS = 4,
    QUERY_WAIT_MS = 1000, /* without an answer, after which query_pool_wait() may return */
    QUERY_IDLE_MS = 2000, /* how long an idle thread remains */
};

struct query_pool;
struct query_lane;
struct query_batch;
struct query_wait;
struct query;

struct query_kind {
    /* Answers the query. Returns 0, or the key of the file system that must be asked next: run() is
     * then called again, in that lane. */
    uint64_t (*run)(struct query *query);
    /* Called once, after the last run() or if there will be none, to release what run() needs.
     * `is_late`: query_pool_wait() returned without the answer. */
    void (*ended)(struct query *query, bool is_late);
    /* Frees the query, which has no references and has ended. */
    void (*free)(struct query *query);
};

/* Must be the first member of the caller's zero-initialized struct. What run() sets may be read
 * once query_is_answered() is true. */
struct query {
    const struct query_kind *kind;
    /* Private to the pool, guarded by its lock. */
    struct list node; /* in its batch, while it waits for a thread */
    struct query_batch *batch; /* NULL: it does not wait for a thread */
    struct query_lane *lane; /* NULL: not queued yet, or ended */
    const void *asker; /* of query_pool_ask() */
    uint64_t began; /* monotonic_ms() when run() was last called */
    struct query_wait *wait; /* the call that waits for it; NULL: none */
    unsigned references;
    bool was_waited_for;
    atomic_bool answered;
};

struct query_pool *query_pool_new(void); /* NULL: out of memory */
/* Drops queries that no thread has begun, and waits until the threads have ended. Returns false if
 * they have not after QUERY_WAIT_MS: all that queries refer to must then stay in memory. NULL is
 * allowed. */
bool query_pool_stop(struct query_pool *pool);
/* After query_pool_stop() returned true, and without queries. NULL is allowed. */
void query_pool_free(struct query_pool *pool);

/* Queues a query in the lane of `key`. `asker` identifies whose turn it takes, and is not
 * dereferenced. The caller gets a reference. On failure (out of memory, or the pool is stopped) the
 * query is not freed. */
errint_t query_pool_ask(struct query_pool *pool, struct query *query, uint64_t key,
                        const void *asker);

/*
 * Waits until all of these queries are answered, or none was answered for QUERY_WAIT_MS and each
 * that is left hangs: it has run for QUERY_WAIT_MS, or waits in a lane that has begun and answered
 * none for QUERY_WAIT_MS. A query is waited for only by the first call that names it. No call waits
 * for queries of a lane whose threads are all busy and have answered none for QUERY_WAIT_MS.
 */
void query_pool_wait(struct query_pool *pool, struct query *const *queries, size_t count);

static inline bool
query_is_answered(const struct query *query)
{
    return atomic_load_explicit(&query->answered, memory_order_acquire);
}

void query_ref(struct query_pool *pool, struct query *query);
/* Drops a reference of a caller. If it is the last one, a query that no thread has begun is not
 * run. */
void query_unref(struct query_pool *pool, struct query *query); /* NULL is allowed */

#endif
