/* SPDX-License-Identifier: Apache-2.0 */
/* The query pool: queries of lanes that hang leave threads to other lanes, and callers do not wait
 * for them again. */
#include "base/clock.h"
#include "catalog/query_pool.h"
#include "expect.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TIMEOUT_MS = 20000,
    HUNG_LANE = 100,
    WELL_LANE = 99,
    SLOW_LANE = 98,
    LONG_LANE = 97,
    MANY = 200
};

static struct query_pool *pool;
static atomic_bool hangs; /* run() of lanes from HUNG_LANE on waits while it is set */
static atomic_int running, most_running, runs, late, freed;
static atomic_int released; /* queries of hung lanes that may end */

struct test_query {
    struct query query;
    uint64_t lanes[2]; /* asked one after another; 0: none */
    unsigned next;
    atomic_bool has_begun;
};

/* Takes one of `released`. */
static bool
take_release(void)
{
    int left = atomic_load(&released);

    return left > 0 && atomic_compare_exchange_strong(&released, &left, left - 1);
}

static uint64_t
run_test_query(struct query *base)
{
    struct test_query *query = (struct test_query *)base;
    uint64_t lane = query->lanes[query->next++];
    int now = atomic_fetch_add(&running, 1) + 1, most = atomic_load(&most_running);

    atomic_store(&query->has_begun, true);
    atomic_fetch_add(&runs, 1);
    while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now))
        continue;
    while (lane >= HUNG_LANE && atomic_load(&hangs) && !take_release())
        usleep(1000);
    if (lane == SLOW_LANE)
        usleep(QUERY_WAIT_MS * 1000 / 5);
    for (int part = 0; lane == LONG_LANE && part < 10; part++) {
        usleep(QUERY_WAIT_MS * 1000 / 5);
        query_pool_progress(pool, base);
    }
    atomic_fetch_sub(&running, 1);
    return query->next < 2 ? query->lanes[query->next] : 0;
}

static void
end_test_query(struct query *query, bool is_late)
{
    (void)query;
    atomic_fetch_add(&late, is_late);
}

static void
free_test_query(struct query *query)
{
    atomic_fetch_add(&freed, 1);
    free(query);
}

static const struct query_kind test_kind = {run_test_query, end_test_query, free_test_query};

static struct query *
ask_as(const void *asker, uint64_t lane, uint64_t next)
{
    struct test_query *query = calloc(1, sizeof(*query));

    if (!expect(query != NULL))
        abort();
    query->query.kind = &test_kind;
    query->lanes[0] = lane;
    query->lanes[1] = next;
    expect(query_pool_ask(pool, &query->query, lane, asker) == 0);
    return &query->query;
}

static struct query *
ask(uint64_t lane, uint64_t next)
{
    return ask_as(NULL, lane, next);
}

static bool
becomes(atomic_int *value, int wanted)
{
    for (uint64_t until = monotonic_ms() + TIMEOUT_MS; monotonic_ms() < until; usleep(1000))
        if (atomic_load(value) == wanted)
            return true;
    return false;
}

/* Waits for as long as a loaded machine needs. */
static bool
becomes_answered(const struct query *query)
{
    for (uint64_t until = monotonic_ms() + TIMEOUT_MS; monotonic_ms() < until; usleep(1000))
        if (query_is_answered(query))
            return true;
    return false;
}

static void
set_up(void)
{
    pool = query_pool_new();
    ck_assert_ptr_nonnull(pool);
    atomic_store(&hangs, true);
    atomic_store(&most_running, 0);
    atomic_store(&runs, 0);
    atomic_store(&released, 0);
    atomic_store(&late, 0);
    atomic_store(&freed, 0);
}

static void
tear_down(void)
{
    atomic_store(&hangs, false);
    ck_assert(query_pool_stop(pool));
    query_pool_free(pool);
    assert_expectations();
}

START_TEST(all_are_answered)
{
    struct query *queries[MANY];

    for (int i = 0; i < MANY; i++)
        queries[i] = ask((uint64_t)i % 10, i % 3 ? 0 : 50);
    query_pool_wait(pool, queries, MANY);
    for (int i = 0; i < MANY; i++) {
        ck_assert(becomes_answered(queries[i]));
        query_unref(pool, queries[i]);
    }
    ck_assert(becomes(&freed, MANY));
    ck_assert_int_eq(atomic_load(&runs), MANY + (MANY + 2) / 3);
    ck_assert_int_le(atomic_load(&most_running), QUERY_THREADS);
}
END_TEST

START_TEST(hung_lanes_leave_threads_to_others)
{
    struct query *hung[MANY], *well[MANY];
    uint64_t began;
    int late_before;

    for (int i = 0; i < MANY; i++)
        hung[i] = ask(HUNG_LANE + (uint64_t)i % 10, 0);
    query_pool_wait(pool, hung, MANY);
    /* Each of the ten lanes had at least one thread before half of all were busy. */
    ck_assert(becomes(&running, QUERY_THREADS / 2));
    for (int i = 0; i < MANY; i++)
        well[i] = ask(WELL_LANE, i % 2 ? 0 : HUNG_LANE - 2);
    query_pool_wait(pool, well, MANY);
    for (int i = 0; i < MANY; i++) {
        ck_assert(!query_is_answered(hung[i]));
        ck_assert(becomes_answered(well[i]));
        query_unref(pool, well[i]);
    }
    /* A loaded machine may answer some of them late. They are counted before they are freed. */
    ck_assert(becomes(&freed, MANY));
    late_before = atomic_load(&late);
    /* Queries that a caller has already waited for, and new queries in a lane that does not answer,
     * are not waited for. */
    began = monotonic_ms();
    for (int i = 0; i < 50; i++)
        query_pool_wait(pool, hung, MANY);
    for (int i = 0; i < 50; i++) {
        struct query *another = ask(HUNG_LANE, 0);

        query_pool_wait(pool, &another, 1);
        query_unref(pool, another);
    }
    ck_assert_uint_lt(monotonic_ms() - began, 50 * QUERY_WAIT_MS / 2);
    atomic_store(&hangs, false);
    ck_assert(becomes(&late, late_before + MANY));
    for (int i = 0; i < MANY; i++) {
        ck_assert(query_is_answered(hung[i]));
        query_unref(pool, hung[i]);
    }
    ck_assert(becomes(&freed, 2 * MANY + 50));
}
END_TEST

/* Waits for the last of many queries: each takes a fifth of QUERY_WAIT_MS, so it is answered long
 * after that time, while the lane answers others. */
START_TEST(a_slow_lane_is_waited_for)
{
    struct query *queries[5 * 4 * QUERY_LANE_THREADS], *last;
    const int count = sizeof(queries) / sizeof(*queries);

    for (int i = 0; i < count; i++)
        queries[i] = ask(SLOW_LANE, 0);
    last = ask(SLOW_LANE, 0);
    query_pool_wait(pool, &last, 1);
    ck_assert(query_is_answered(last));
    query_unref(pool, last);
    for (int i = 0; i < count; i++)
        query_unref(pool, queries[i]);
    ck_assert(becomes(&freed, count + 1));
}
END_TEST

/* A query that takes long, but reports progress. */
START_TEST(a_long_query_is_waited_for)
{
    struct query *query = ask(LONG_LANE, 0);

    query_pool_wait(pool, &query, 1);
    ck_assert(query_is_answered(query));
    query_unref(pool, query);
    ck_assert(becomes(&freed, 1));
}
END_TEST

/* An asker whose queries hang leaves threads to others. When no thread is left, a new asker is
 * served after at most one query of each other asker. */
START_TEST(askers_take_turns)
{
    enum { ASKERS = QUERY_LANE_THREADS / QUERY_ASKER_THREADS, EACH = 3 * QUERY_ASKER_THREADS };
    struct query *queries[ASKERS][EACH], *last;
    int ended;

    for (int i = 0; i < ASKERS; i++) {
        for (int j = 0; j < EACH; j++)
            queries[i][j] = ask_as(&queries[i], HUNG_LANE, 0);
        ck_assert(becomes(&running, (i + 1) * QUERY_ASKER_THREADS));
    }
    last = ask_as(&last, HUNG_LANE, 0);
    for (ended = 0; !atomic_load(&((struct test_query *)last)->has_begun); ended++) {
        ck_assert_int_le(ended, ASKERS);
        atomic_fetch_add(&released, 1);
        ck_assert(becomes(&runs, QUERY_LANE_THREADS + ended + 1));
    }
    atomic_store(&hangs, false);
    query_unref(pool, last);
    for (int i = 0; i < ASKERS; i++)
        for (int j = 0; j < EACH; j++)
            query_unref(pool, queries[i][j]);
    ck_assert(becomes(&freed, ASKERS * EACH + 1));
}
END_TEST

START_TEST(a_chain_hangs_in_its_second_lane)
{
    struct query *chain[10], *well;

    for (int i = 0; i < 10; i++)
        chain[i] = ask(WELL_LANE, HUNG_LANE);
    query_pool_wait(pool, chain, 10);
    ck_assert(becomes(&running, QUERY_ASKER_THREADS));
    well = ask(WELL_LANE, 0);
    ck_assert(becomes_answered(well));
    query_unref(pool, well);
    for (int i = 0; i < 10; i++)
        query_unref(pool, chain[i]);
    /* Queries that no thread has begun are not run. */
    ck_assert(becomes(&freed, 10 - QUERY_ASKER_THREADS + 1));
    atomic_store(&hangs, false);
    ck_assert(becomes(&freed, 11));
    ck_assert_int_eq(atomic_load(&runs), 10 + QUERY_ASKER_THREADS + 1);
}
END_TEST

START_TEST(a_pool_that_hangs_is_not_stopped)
{
    struct query *hung = ask(HUNG_LANE, 0), *queued[QUERY_ASKER_THREADS];

    for (int i = 0; i < QUERY_ASKER_THREADS; i++)
        queued[i] = ask(HUNG_LANE, 0);
    ck_assert(becomes(&running, QUERY_ASKER_THREADS));
    ck_assert(!query_pool_stop(pool));
    query_unref(pool, hung);
    for (int i = 0; i < QUERY_ASKER_THREADS; i++)
        query_unref(pool, queued[i]);
    atomic_store(&hangs, false);
    ck_assert(becomes(&freed, QUERY_ASKER_THREADS + 1));
}
END_TEST

/* Asks, waits and gives up concurrently with others. */
static void *
ask_and_wait(void *arg)
{
    struct query *queries[20];

    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 20; i++)
            queries[i] = ask((uint64_t)i % 7, round % 2 ? 3 : 0);
        if (round % 3)
            query_pool_wait(pool, queries, 20);
        for (int i = 0; i < 20; i++)
            query_unref(pool, queries[i]);
    }
    return arg;
}

START_TEST(many_askers)
{
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_and_wait, NULL), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    ck_assert(becomes(&freed, 8 * 20 * 20));
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("query_pool");
    TCase *queries = tcase_create("queries");

    tcase_add_checked_fixture(queries, set_up, tear_down);
    tcase_set_timeout(queries, 120);
    tcase_add_test(queries, all_are_answered);
    tcase_add_test(queries, hung_lanes_leave_threads_to_others);
    tcase_add_test(queries, a_slow_lane_is_waited_for);
    tcase_add_test(queries, a_long_query_is_waited_for);
    tcase_add_test(queries, askers_take_turns);
    tcase_add_test(queries, a_chain_hangs_in_its_second_lane);
    tcase_add_test(queries, a_pool_that_hangs_is_not_stopped);
    tcase_add_test(queries, many_askers);
    suite_add_tcase(made, queries);
    return made;
}

#include "check_main.h"
