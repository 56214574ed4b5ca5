/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/query_pool.h"

#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    CHECK_MS = 100, /* how often a call that waits for long looks for progress */
    BATCH_BUCKETS = 1024,
};

/* The queries of one asker in a lane. */
struct query_batch {
    struct list node; /* in lane->batches, while queries wait */
    struct query_batch *next_in_bucket;
    const struct query_lane *lane;
    const void *asker;
    struct list queries; /* that wait for a thread */
    unsigned running; /* threads that answer others */
};

struct query_lane {
    struct list node; /* in pool->lanes */
    uint64_t key;
    struct list batches; /* those that wait, in the order in which they are served */
    unsigned running; /* threads that answer queries of the lane */
    uint64_t progress; /* monotonic_ms() when a thread last began or ended a query */
};

struct query_pool {
    pthread_mutex_t lock;
    pthread_cond_t work; /* a lane may have become ready, or the pool is closed */
    pthread_cond_t ended; /* the last thread has ended */
    pthread_cond_t answered; /* a query has been answered */
    struct list lanes; /* with queries, in the order in which they are served */
    struct query_batch *buckets[BATCH_BUCKETS];
    unsigned threads, idle, running;
    bool closed;
};

/* ---- lanes; pool->lock is held ---- */

static struct query_lane *
query_lane_get(struct query_pool *pool, uint64_t key)
{
    struct query_lane *lane;

    list_for_each(node, &pool->lanes)
    {
        lane = container_of(node, struct query_lane, node);
        if (lane->key == key)
            return lane;
    }
    lane = calloc(1, sizeof(*lane));
    if (!lane)
        return NULL;
    lane->key = key;
    lane->progress = monotonic_ms();
    list_init(&lane->batches);
    list_add(&pool->lanes, &lane->node);
    return lane;
}

static void
query_lane_put(struct query_lane *lane)
{
    if (lane->running || list_first(&lane->batches))
        return;
    list_remove(&lane->node);
    free(lane);
}

static struct query_batch **
batch_bucket(struct query_pool *pool, const struct query_lane *lane, const void *asker)
{
    uint64_t hash = ((uintptr_t)lane ^ (uintptr_t)asker) * 0x9e3779b97f4a7c15u;

    return &pool->buckets[hash >> 32 & (BATCH_BUCKETS - 1)];
}

static struct query_batch *
query_batch_get(struct query_pool *pool, struct query_lane *lane, const void *asker)
{
    struct query_batch **bucket = batch_bucket(pool, lane, asker), *batch;

    for (batch = *bucket; batch; batch = batch->next_in_bucket)
        if (batch->lane == lane && batch->asker == asker)
            return batch;
    batch = malloc(sizeof(*batch));
    if (!batch)
        return NULL;
    *batch = (struct query_batch){.next_in_bucket = *bucket, .lane = lane, .asker = asker};
    *bucket = batch;
    list_init(&batch->queries);
    return batch;
}

/* Removes a batch that has no queries. */
static void
query_batch_put(struct query_pool *pool, struct query_batch *batch)
{
    struct query_batch **link = batch_bucket(pool, batch->lane, batch->asker);

    if (batch->running || list_first(&batch->queries))
        return;
    while (*link != batch)
        link = &(*link)->next_in_bucket;
    *link = batch->next_in_bucket;
    free(batch);
}

/* Queues a query in the lane of `key`. Returns false if out of memory. */
static bool
enqueue_query(struct query_pool *pool, struct query *query, uint64_t key)
{
    struct query_lane *lane = query_lane_get(pool, key);
    struct query_batch *batch = lane ? query_batch_get(pool, lane, query->asker) : NULL;

    if (!batch) {
        if (lane)
            query_lane_put(lane);
        return false;
    }
    query->lane = lane;
    query->batch = batch;
    if (!list_first(&batch->queries))
        list_add(&lane->batches, &batch->node);
    list_add(&batch->queries, &query->node);
    return true;
}

/* Whether the query waits for a thread. */
static bool
query_is_queued(const struct query *query)
{
    return list_is_linked(&query->node);
}

/* Takes a query that waits out of the queue of its batch. */
static void
dequeue_query(struct query_batch *batch, struct query *query)
{
    list_remove(&query->node);
    if (!list_first(&batch->queries))
        list_remove(&batch->node);
}

/* Takes a query that neither waits nor runs out of its lane. */
static void
query_leave(struct query_pool *pool, struct query *query)
{
    struct query_batch *batch = query->batch;
    struct query_lane *lane = query->lane;

    query->batch = NULL;
    query->lane = NULL;
    query_batch_put(pool, batch);
    query_lane_put(lane);
}

/* The next batch whose asker may have another thread. NULL: none. */
static struct query_batch *
next_batch(const struct query_lane *lane)
{
    list_for_each(node, &lane->batches)
    {
        struct query_batch *batch = container_of(node, struct query_batch, node);

        if (batch->running < QUERY_ASKER_THREADS)
            return batch;
    }
    return NULL;
}

/* Takes the next query of a lane that has one. */
static struct query *
next_query(struct query_lane *lane)
{
    struct query_batch *batch = next_batch(lane);
    struct query *query = container_of(list_first(&batch->queries), struct query, node);

    list_remove(&batch->node);
    list_add(&lane->batches, &batch->node);
    dequeue_query(batch, query);
    return query;
}

static unsigned
lane_thread_limit(const struct query_pool *pool)
{
    return pool->running < QUERY_THREADS / 2 ? QUERY_LANE_THREADS : 1;
}

static struct query_lane *
find_ready_lane(const struct query_pool *pool)
{
    if (pool->running >= QUERY_THREADS)
        return NULL;
    list_for_each(node, &pool->lanes)
    {
        struct query_lane *lane = container_of(node, struct query_lane, node);

        if (lane->running < lane_thread_limit(pool) && next_batch(lane))
            return lane;
    }
    return NULL;
}

/* Whether its threads are all busy and have not answered for QUERY_WAIT_MS. */
static bool
lane_is_silent(const struct query_pool *pool, const struct query_lane *lane)
{
    return lane->running >= lane_thread_limit(pool) &&
           monotonic_ms() - lane->progress >= QUERY_WAIT_MS;
}

/* ---- threads ---- */

static void *answer_queries(void *arg);

/* Wakes or starts a thread for a lane that has become ready. pool->lock is held. */
static void
wake_thread(struct query_pool *pool)
{
    pthread_t thread;

    if (pool->idle) {
        pthread_cond_signal(&pool->work);
    } else if (pool->threads < QUERY_THREADS && find_ready_lane(pool) &&
               thread_start(&thread, answer_queries, pool) == 0) {
        pthread_detach(thread);
        pool->threads++;
    }
}

/* Drops the pool's reference to a query that is in no lane. pool->lock is not held. */
static void
end_query(struct query_pool *pool, struct query *query, bool is_late)
{
    bool is_last;

    query->kind->ended(query, is_late);
    pthread_mutex_lock(&pool->lock);
    is_last = --query->references == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_last)
        query->kind->free(query);
}

/* Marks the query as answered, or queues it in the next lane. Called with pool->lock held; may
 * release and reacquire it. */
static void
settle_query(struct query_pool *pool, struct query *query, uint64_t next)
{
    bool is_late;

    query_leave(pool, query);
    if (next && !pool->closed && enqueue_query(pool, query, next))
        return;
    /* If there is no memory for the queue, or the pool is closed, the query stays unanswered. */
    is_late = !next && query->is_given_up;
    if (!next) {
        atomic_store_explicit(&query->answered, true, memory_order_release);
        pthread_cond_broadcast(&pool->answered);
    }
    pthread_mutex_unlock(&pool->lock);
    end_query(pool, query, is_late);
    pthread_mutex_lock(&pool->lock);
}

/* Runs the first query of a lane. Called with pool->lock held; releases and reacquires it. */
static void
run_query(struct query_pool *pool, struct query_lane *lane)
{
    struct query *query = next_query(lane);
    uint64_t next;

    list_rotate(&pool->lanes, &lane->node);
    lane->running++;
    query->batch->running++;
    pool->running++;
    lane->progress = query->progress = monotonic_ms();
    if (find_ready_lane(pool))
        wake_thread(pool); /* this thread may never return */
    pthread_mutex_unlock(&pool->lock);
    next = query->kind->run(query);
    pthread_mutex_lock(&pool->lock);
    lane->progress = monotonic_ms();
    lane->running--;
    query->batch->running--;
    pool->running--;
    settle_query(pool, query, next);
}

/* Waits for a lane that is ready. NULL: the thread must end. pool->lock is held. */
static struct query_lane *
await_ready_lane(struct query_pool *pool)
{
    uint64_t until = monotonic_ns() + QUERY_IDLE_MS * UINT64_C(1000000);
    struct query_lane *lane;
    bool in_time = true;

    while (!pool->closed && !(lane = find_ready_lane(pool))) {
        if (!in_time)
            return NULL;
        pool->idle++;
        in_time = condition_wait(&pool->work, &pool->lock, until);
        pool->idle--;
    }
    return pool->closed ? NULL : lane;
}

static void *
answer_queries(void *arg)
{
    struct query_pool *pool = arg;
    struct query_lane *lane;

    pthread_setname_np(pthread_self(), "fstfs-query");
    pthread_mutex_lock(&pool->lock);
    while ((lane = await_ready_lane(pool)))
        run_query(pool, lane);
    if (--pool->threads == 0)
        pthread_cond_signal(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- queries ---- */

errint_t
query_pool_ask(struct query_pool *pool, struct query *query, uint64_t key, const void *asker)
{
    errint_t error = -ENOMEM;

    query->asker = asker;
    pthread_mutex_lock(&pool->lock);
    if (!pool->closed && enqueue_query(pool, query, key)) {
        query->references = 2; /* the caller's and the pool's */
        wake_thread(pool);
        error = 0;
    }
    pthread_mutex_unlock(&pool->lock);
    return error;
}

/* Whether a call waits for the query. pool->lock is held. */
static bool
query_is_open(const struct query *query)
{
    return query->lane && !query->is_given_up && !query_is_answered(query);
}

/* pool->lock is held. */
static bool
query_hangs(const struct query *query)
{
    uint64_t since = query_is_queued(query) ? query->lane->progress : query->progress;

    return monotonic_ms() - since >= QUERY_WAIT_MS;
}

/* The queries of a call. pool->lock is held. */
struct query_wait {
    struct query *const *queries;
    size_t count;
    size_t first; /* those before it are not open */
    uint64_t since; /* monotonic_ms() when `first` last moved */
};

/* Returns whether a query is open, and sets *hang to whether all of them hang. */
static bool
wait_is_open(struct query_wait *wait, bool *hang)
{
    *hang = true;
    while (wait->first < wait->count && !query_is_open(wait->queries[wait->first])) {
        wait->first++;
        wait->since = monotonic_ms();
    }
    for (size_t i = wait->first; *hang && i < wait->count; i++)
        *hang = !query_is_open(wait->queries[i]) || query_hangs(wait->queries[i]);
    return wait->first < wait->count;
}

static void
wait_give_up(const struct query_wait *wait)
{
    for (size_t i = wait->first; i < wait->count; i++)
        wait->queries[i]->is_given_up |= query_is_open(wait->queries[i]);
}

void
query_pool_wait(struct query_pool *pool, struct query *const *queries, size_t count)
{
    struct query_wait wait = {.queries = queries, .count = count};
    uint64_t now, until;
    bool hang;

    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < count; i++)
        queries[i]->is_given_up |=
            query_is_open(queries[i]) && lane_is_silent(pool, queries[i]->lane);
    wait.since = monotonic_ms();
    while (wait_is_open(&wait, &hang)) {
        now = monotonic_ms();
        until = hang ? wait.since + QUERY_WAIT_MS : now + CHECK_MS;
        if (now >= until) {
            wait_give_up(&wait);
            break;
        }
        condition_wait(&pool->answered, &pool->lock, until * 1000000);
    }
    pthread_mutex_unlock(&pool->lock);
}

void
query_pool_progress(struct query_pool *pool, struct query *query)
{
    pthread_mutex_lock(&pool->lock);
    query->progress = query->lane->progress = monotonic_ms();
    pthread_mutex_unlock(&pool->lock);
}

void
query_ref(struct query_pool *pool, struct query *query)
{
    pthread_mutex_lock(&pool->lock);
    query->references++;
    pthread_mutex_unlock(&pool->lock);
}

void
query_unref(struct query_pool *pool, struct query *query)
{
    bool is_unasked, is_last;

    if (!query)
        return;
    pthread_mutex_lock(&pool->lock);
    is_unasked = query->references == 2 && query_is_queued(query);
    if (is_unasked) {
        dequeue_query(query->batch, query);
        query_leave(pool, query);
    }
    is_last = --query->references == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_unasked)
        end_query(pool, query, false);
    else if (is_last)
        query->kind->free(query);
}

/* ---- lifecycle ---- */

struct query_pool *
query_pool_new(void)
{
    struct query_pool *pool = calloc(1, sizeof(*pool));

    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    condition_init(&pool->work);
    condition_init(&pool->ended);
    condition_init(&pool->answered);
    list_init(&pool->lanes);
    return pool;
}

/* Moves queries that no thread has begun out of their lanes. pool->lock is held. */
static void
take_queued(struct query_pool *pool, struct list *taken)
{
    list_for_each(node, &pool->lanes)
    {
        struct query_lane *lane = container_of(node, struct query_lane, node);

        list_for_each(batch_node, &lane->batches)
        {
            struct query_batch *batch = container_of(batch_node, struct query_batch, node);

            list_for_each(query_node, &batch->queries)
            {
                struct query *query = container_of(query_node, struct query, node);

                list_remove(query_node);
                list_add(taken, query_node);
                query->batch = NULL;
                query->lane = NULL;
            }
            list_remove(batch_node);
            query_batch_put(pool, batch);
        }
        query_lane_put(lane);
    }
}

bool
query_pool_stop(struct query_pool *pool)
{
    uint64_t until = monotonic_ns() + QUERY_WAIT_MS * UINT64_C(1000000);
    struct list taken = LIST_INIT(taken), *first;
    bool ended;

    if (!pool)
        return true;
    pthread_mutex_lock(&pool->lock);
    pool->closed = true;
    take_queued(pool, &taken);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    while ((first = list_first(&taken))) {
        list_remove(first);
        end_query(pool, container_of(first, struct query, node), false);
    }
    pthread_mutex_lock(&pool->lock);
    while (pool->threads > 0 && condition_wait(&pool->ended, &pool->lock, until))
        continue;
    ended = pool->threads == 0;
    pthread_mutex_unlock(&pool->lock);
    return ended;
}

void
query_pool_free(struct query_pool *pool)
{
    if (!pool)
        return;
    pthread_cond_destroy(&pool->answered);
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
