/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread pool for operations on file systems that may hang.
 *
 * A query is answered by its run() on a thread of the pool. Queries wait in lanes, one for each
 * file system. In a lane, the queries of different askers take turns. A lane has at most
 * QUERY_LANE_THREADS threads, and only one while at least half of QUERY_THREADS are busy, so that
 * file systems that hang leave threads to others. An asker has at most QUERY_ASKER_THREADS threads
 * of a lane, so that files that hang leave threads to other files of their file system. Threads are
 * started on demand and end when they have been idle.
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
    QUERY_LANE_THREADS = 8,
    QUERY_ASKER_THREADS = 4,
    QUERY_WAIT_MS = 1000, /* after this time without progress a query counts as hanging */
    QUERY_IDLE_MS = 2000, /* how long an idle thread remains */
};

struct query_pool;
struct query_lane;
struct query_batch;
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
    struct list node; /* in its batch's queue, while it waits for a thread */
    struct query_batch *batch; /* NULL if `lane` is */
    struct query_lane *lane; /* NULL: not queued yet, or ended */
    const void *asker; /* of query_pool_ask() */
    uint64_t progress; /* monotonic_ms() when run() was called, or reported progress */
    unsigned references;
    bool is_given_up; /* a call has returned, or will return, without the answer */
    atomic_bool answered;
};

struct query_pool *query_pool_new(void); /* NULL: out of memory */
/* Drops queries that no thread has begun, and waits until the threads have ended. Returns false if
 * they have not after QUERY_WAIT_MS: all that queries refer to must then stay in memory. NULL is
 * allowed. */
bool query_pool_stop(struct query_pool *pool);
/* After query_pool_stop() returned true, and without queries. NULL is allowed. */
void query_pool_free(struct query_pool *pool);

/* Queues a query in the lane of `key`. Queries with the same `asker` share one turn; `asker` is
 * only compared. The caller gets a reference. On failure (out of memory, or the pool is stopped)
 * the query is not freed. */
errint_t query_pool_ask(struct query_pool *pool, struct query *query, uint64_t key,
                        const void *asker);

/*
 * Waits until all of these queries are answered, or none was answered for QUERY_WAIT_MS and all
 * that remain hang. A running query hangs if it has made no progress for QUERY_WAIT_MS; one that is
 * queued, if its lane has neither begun nor ended a query for that time. Nobody waits for a query
 * again after a call has returned without its answer, nor for one in a lane whose threads are all
 * busy and hang.
 */
void query_pool_wait(struct query_pool *pool, struct query *const *queries, size_t count);

static inline bool
query_is_answered(const struct query *query)
{
    return atomic_load_explicit(&query->answered, memory_order_acquire);
}

/* Called by run() when a part of a long query is done: the query does not hang. */
void query_pool_progress(struct query_pool *pool, struct query *query);

void query_ref(struct query_pool *pool, struct query *query);
/* Drops a reference of a caller. If it is the last one, a query that no thread has begun is not
 * run. */
void query_unref(struct query_pool *pool, struct query *query); /* NULL is allowed */

#endif
