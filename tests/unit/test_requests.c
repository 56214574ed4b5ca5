/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: the limits of running and queued ones, their order, and interrupts. This file replaces
 * the functions of libfuse, of the view and of the clock that requests.c calls. */
#include "base/clock.h"
#include "fuse/requests.h"

#include "expect.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 20000, STACK_BYTES = 256 << 10 };

/* The caller's side of a request, and its result. Guarded by `lock`. */
struct fuse_req {
    struct fuse_ctx ctx;
    pthread_mutex_t interrupt_lock; /* held while `interrupt` is called, as by libfuse */
    fuse_interrupt_func_t interrupt;
    void *interrupt_arg;
    node_id place;
    void (*run)(struct request *request);
    pthread_t thread;
    bool has_thread;
    bool running, ended; /* run() was called, run() has returned */
    bool returned; /* from request_serve() */
    bool released; /* run() may return */
    bool was_claimed; /* by the interrupt: request_claim() returned NULL */
    unsigned answers;
    int error;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t test_thread;
static struct requests *requests;
static struct fuse_req *calls;
static unsigned call_count;
static uid_t user; /* of new calls */
static struct fuse_req *order[16]; /* calls of run_at_once() */
static unsigned order_count;
static int references; /* to nodes */
static bool had_references;
static atomic_uint_fast64_t now_ms;

#define WAIT(condition)                                                                            \
    do {                                                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        while (!(condition))                                                                       \
            pthread_cond_wait(&changed, &lock);                                                    \
        pthread_mutex_unlock(&lock);                                                               \
    } while (0)
#define SET(assignment)                                                                            \
    do {                                                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        assignment;                                                                                \
        pthread_cond_broadcast(&changed);                                                          \
        pthread_mutex_unlock(&lock);                                                               \
    } while (0)

/* ---- replaced functions ---- */

uint64_t
monotonic_ms(void)
{
    return atomic_load(&now_ms);
}

const struct fuse_ctx *
fuse_req_ctx(fuse_req_t req)
{
    return &req->ctx;
}

void
fuse_req_interrupt_func(fuse_req_t req, fuse_interrupt_func_t func, void *data)
{
    pthread_mutex_lock(&req->interrupt_lock);
    req->interrupt = func;
    req->interrupt_arg = data;
    pthread_mutex_unlock(&req->interrupt_lock);
}

int
fuse_reply_err(fuse_req_t req, int error)
{
    SET(req->answers++; req->error = error);
    return 0;
}

static node_id
place_of(unsigned filesystem, unsigned directory, unsigned name)
{
    return (uint64_t)filesystem << 40 | (uint64_t)directory << 20 | name;
}

bool
view_place(struct view *view, node_id id, const char *name, bool is_open, struct view_place *place)
{
    (void)view;
    (void)name;
    (void)is_open;
    *place = (struct view_place){id >> 40, id >> 20, id};
    return true;
}

void
view_ref(struct view *view, node_id id)
{
    (void)view;
    (void)id;
    SET(references++; had_references = true);
}

void
view_forget(struct view *view, node_id id, uint64_t count)
{
    (void)view;
    (void)id;
    SET(references -= (int)count);
}

/* ---- callers ---- */

static void
answer(struct request *request, struct fuse_req *call)
{
    fuse_req_t req = request_claim(request);

    if (req)
        fuse_reply_err(req, 0);
    else
        SET(call->was_claimed = true);
}

static void
run_until_released(struct request *request)
{
    struct fuse_req *call = request->req;

    SET(call->running = true);
    if (expect(!pthread_equal(pthread_self(), test_thread))) /* else begin_queued() fails */
        WAIT(call->released);
    answer(request, call);
    SET(call->ended = true);
}

static void
run_at_once(struct request *request)
{
    struct fuse_req *call = request->req;

    SET(order[order_count++] = call; call->running = true);
    answer(request, call);
    SET(call->ended = true);
}

static void *
serve(void *arg)
{
    struct fuse_req *call = arg;
    struct request *request = request_new(requests, call, call->place, NULL);

    if (expect(request != NULL))
        request_serve(request, call->run, REQUEST_NODE);
    SET(call->returned = true);
    return NULL;
}

static struct fuse_req *
call_new(node_id place, void (*run)(struct request *request))
{
    struct fuse_req *call = &calls[call_count++];

    pthread_mutex_init(&call->interrupt_lock, NULL);
    call->place = place;
    call->run = run;
    call->ctx.uid = user;
    return call;
}

/* Starts a call on its own thread. Returns when it runs, is queued or was refused. */
static struct fuse_req *
begin(node_id place, void (*run)(struct request *request))
{
    struct fuse_req *call = call_new(place, run);
    pthread_attr_t attributes;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    ck_assert_int_eq(pthread_create(&call->thread, &attributes, serve, call), 0);
    pthread_attr_destroy(&attributes);
    call->has_thread = true;
    WAIT(call->running || call->returned);
    return call;
}

/* Starts a call on this thread, which must be queued or refused. */
static struct fuse_req *
begin_queued(node_id place, void (*run)(struct request *request))
{
    struct fuse_req *call = call_new(place, run);

    serve(call);
    ck_assert(!call->running);
    return call;
}

static void
interrupt(struct fuse_req *call)
{
    pthread_mutex_lock(&call->interrupt_lock);
    if (call->interrupt)
        call->interrupt(call, call->interrupt_arg);
    pthread_mutex_unlock(&call->interrupt_lock);
}

/* Starts `count` calls for different names. Returns the number that run; the others are queued. */
static unsigned
begin_names(unsigned filesystem, unsigned directory, unsigned first, unsigned count)
{
    unsigned running = 0;

    for (unsigned i = 0; i < count; i++)
        running += begin(place_of(filesystem, directory, first + i), run_until_released)->running;
    return running;
}

/* The same for different directories. */
static unsigned
begin_directories(unsigned filesystem, unsigned count)
{
    unsigned running = 0;

    for (unsigned i = 0; i < count; i++)
        running += begin(place_of(filesystem, 1000 + i, 0), run_until_released)->running;
    return running;
}

/* The same, each by another user. */
static unsigned
begin_users(unsigned filesystem, unsigned count)
{
    unsigned running = 0;

    for (unsigned i = 0; i < count; i++, user++)
        running += begin_directories(filesystem, 1);
    return running;
}

static void
assert_counts(unsigned running, unsigned queued)
{
    struct buffer text = BUFFER_INIT;
    unsigned seen_running, seen_queued;

    requests_status(requests, &text);
    ck_assert_int_eq(
        sscanf(text.data, "{\"running\":%u,\"queued\":%u", &seen_running, &seen_queued), 2);
    buffer_free(&text);
    ck_assert_uint_eq(seen_running, running);
    ck_assert_uint_eq(seen_queued, queued);
}

static void
release(void *userdata, void *handle)
{
    (void)userdata;
    (void)handle;
}

static void
setup(void)
{
    atomic_store(&now_ms, monotonic_ns() / 1000000);
    calls = calloc(CALLS_MAX, sizeof(*calls));
    ck_assert_ptr_nonnull(calls);
    test_thread = pthread_self();
    call_count = order_count = user = 0;
    references = 0;
    had_references = false;
    ck_assert_int_eq(requests_new(NULL, release, &requests), 0);
    ck_assert_int_eq(requests_start(requests, NULL), 0);
}

/* Releases all calls, each of which must be answered once. */
static void
teardown(void)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < call_count; i++)
        calls[i].released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < call_count; i++)
        if (calls[i].has_thread)
            pthread_join(calls[i].thread, NULL);
    assert_counts(0, 0);
    requests_free(requests);
    for (unsigned i = 0; i < call_count; i++) {
        expect(calls[i].answers == 1);
        pthread_mutex_destroy(&calls[i].interrupt_lock);
    }
    expect(references == 0);
    free(calls);
    assert_expectations();
}

/* ---- bounds ---- */

START_TEST(test_name_runs_4)
{
    struct fuse_req *first = begin(place_of(1, 1, 1), run_until_released), *fifth;

    for (unsigned i = 1; i < 4; i++)
        ck_assert(begin(place_of(1, 1, 1), run_until_released)->running);
    fifth = begin_queued(place_of(1, 1, 1), run_until_released);
    assert_counts(4, 1);
    SET(first->released = true);
    WAIT(fifth->running);
    assert_counts(4, 0);
}
END_TEST

START_TEST(test_names_share_directory)
{
    for (unsigned i = 0; i < 8; i++)
        ck_assert(begin(place_of(1, 1, i / 4), run_until_released)->running);
    ck_assert(begin(place_of(1, 1, 7), run_until_released)->running);
    begin_queued(place_of(1, 1, 7), run_until_released);
    /* Another directory is not limited by it. */
    for (unsigned i = 0; i < 4; i++)
        ck_assert(begin(place_of(1, 2, 7), run_until_released)->running);
    assert_counts(13, 1);
}
END_TEST

START_TEST(test_directory_runs_32)
{
    for (unsigned i = 0; i < 8; i++)
        ck_assert(begin(place_of(1, 1, i / 4), run_until_released)->running);
    ck_assert_uint_eq(begin_names(1, 1, 100, 30), 24);
    assert_counts(32, 6);
}
END_TEST

START_TEST(test_directories_share_file_system)
{
    ck_assert_uint_eq(begin_names(1, 1, 0, 32), 32);
    ck_assert(begin(place_of(1, 2, 0), run_until_released)->running);
    begin_queued(place_of(1, 2, 1), run_until_released);
    /* Another file system is not limited by it. */
    ck_assert_uint_eq(begin_names(2, 2, 0, 2), 2);
    assert_counts(35, 1);
}
END_TEST

/* A user may take three quarters of what is left of a file system's threads. */
START_TEST(test_users_share_file_system)
{
    for (unsigned left = 128; left >= 4; left -= left - left / 4, user++) {
        ck_assert_uint_eq(begin_directories(1, left - left / 4), left - left / 4);
        begin_queued(place_of(1, 5000, 0), run_until_released);
    }
    /* Other file systems are not limited by it. */
    user = 0;
    ck_assert_uint_eq(begin_directories(2, 48), 48);
}
END_TEST

/* A user whose file systems all hang leaves an eighth of the threads to other users. */
START_TEST(test_user_of_many_file_systems)
{
    unsigned running = 0;

    for (unsigned i = 1; i <= 64; i++)
        running += begin_directories(i, 100);
    ck_assert_uint_eq(running, REQUESTS_RUNNING / 8 * 7);
    user++;
    ck_assert_uint_eq(begin_directories(65, 12), 12);
    ck_assert_uint_eq(begin_directories(66, 1), 1);
    user++;
    ck_assert_uint_eq(begin_directories(67, 1), 1);
}
END_TEST

/* Each file system may take half of what is left; the 257th request is queued in any case. */
START_TEST(test_all_run_256)
{
    unsigned all = 0;

    for (unsigned i = 0, left = 128; left > 0; i++, left /= 2) {
        ck_assert_uint_eq(begin_users(1 + i, left), left);
        begin_queued(place_of(1 + i, 5000, 0), run_until_released);
        all += left;
    }
    ck_assert(begin(place_of(20, 1, 0), run_until_released)->running);
    ck_assert_uint_eq(all + 1, REQUESTS_RUNNING);
    begin_queued(place_of(21, 1, 0), run_until_released);
    assert_counts(REQUESTS_RUNNING, 9);
}
END_TEST

START_TEST(test_full_queue_is_busy)
{
    const unsigned queued[] = {REQUESTS_QUEUED / 3 + 1, REQUESTS_QUEUED / 9 * 2 + 1};

    for (unsigned filesystem = 1; filesystem <= 2; filesystem++) {
        for (unsigned i = 0; i < 4; i++)
            ck_assert(begin(place_of(filesystem, 1, 1), run_until_released)->running);
        for (unsigned i = 0; i < queued[filesystem - 1]; i++)
            ck_assert_uint_eq(begin_queued(place_of(filesystem, 1, 1), run_until_released)->answers,
                              0);
        ck_assert_int_eq(begin_queued(place_of(filesystem, 1, 1), run_until_released)->error,
                         EBUSY);
        /* A request that can run is not refused. */
        ck_assert(begin(place_of(filesystem, 1, 2), run_until_released)->running);
    }
    assert_counts(10, queued[0] + queued[1]);
    /* Nor are those of another user. */
    user = 1;
    for (unsigned i = 0; i < 4; i++)
        ck_assert(begin(place_of(2, 1, 1), run_until_released)->running);
    ck_assert_uint_eq(begin_queued(place_of(2, 1, 1), run_until_released)->answers, 0);
}
END_TEST

/* ---- order ---- */

/* Queues two calls in each of two places. They must run in turn. */
static void
assert_in_turn(const node_id places[4], struct fuse_req *running)
{
    struct fuse_req *queued[4];

    for (unsigned i = 0; i < 4; i++)
        queued[i] = begin_queued(places[i], run_at_once);
    SET(running->released = true);
    WAIT(order_count == 4);
    ck_assert_ptr_eq(order[0], queued[0]);
    ck_assert_ptr_eq(order[1], queued[2]);
    ck_assert_ptr_eq(order[2], queued[1]);
    ck_assert_ptr_eq(order[3], queued[3]);
}

/* The end of a request makes one of each directory ready, until one of them runs: that must be the
 * one of the directory that has none running, which would wait for an unrelated end otherwise. */
START_TEST(test_directory_without_running_requests_is_first)
{
    struct fuse_req *ending, *busy, *idle;

    ck_assert_uint_eq(begin_directories(1, 30), 30);
    ck_assert(begin(place_of(1, 1, 0), run_until_released)->running);
    ending = begin(place_of(1, 2, 0), run_until_released);
    busy = begin_queued(place_of(1, 1, 1), run_until_released);
    idle = begin_queued(place_of(1, 2, 1), run_until_released);
    SET(ending->released = true);
    WAIT(busy->running || idle->running);
    ck_assert(idle->running);
    assert_counts(32, 1);
}
END_TEST

START_TEST(test_names_take_turns)
{
    struct fuse_req *running = begin(place_of(1, 1, 0), run_until_released);

    ck_assert_uint_eq(begin_names(1, 1, 1, 31), 31);
    assert_in_turn(
        (node_id[]){place_of(1, 1, 50), place_of(1, 1, 50), place_of(1, 1, 51), place_of(1, 1, 51)},
        running);
}
END_TEST

START_TEST(test_directories_take_turns)
{
    struct fuse_req *running = begin(place_of(1, 1, 0), run_until_released);

    ck_assert_uint_eq(begin_directories(1, 95), 95);
    assert_in_turn(
        (node_id[]){place_of(1, 50, 1), place_of(1, 50, 2), place_of(1, 51, 1), place_of(1, 51, 2)},
        running);
}
END_TEST

START_TEST(test_file_systems_take_turns)
{
    struct fuse_req *running;

    for (unsigned i = 0, left = 128; left > 0; i++, left /= 2)
        ck_assert_uint_eq(begin_users(1 + i, left), left);
    running = begin(place_of(20, 1, 0), run_until_released);
    ck_assert(running->running);
    assert_in_turn(
        (node_id[]){place_of(30, 1, 1), place_of(30, 2, 1), place_of(31, 1, 1), place_of(31, 2, 1)},
        running);
}
END_TEST

/* ---- interrupts ---- */

/* Starts four calls of one name that run, and returns a fifth that is queued. */
static struct fuse_req *
fill_name(node_id place, struct fuse_req **running)
{
    *running = begin(place, run_until_released);
    for (unsigned i = 1; i < 4; i++)
        ck_assert(begin(place, run_until_released)->running);
    return begin_queued(place, run_until_released);
}

START_TEST(test_interrupt_takes_effect_after_grace)
{
    struct fuse_req *running, *queued = fill_name(place_of(1, 1, 1), &running), *later_running,
                              *later_queued;

    atomic_fetch_add(&now_ms, REQUESTS_GRACE_MS / 2);
    later_queued = fill_name(place_of(1, 2, 1), &later_running);
    interrupt(queued);
    interrupt(running);
    /* Interrupted last, so examined first; their grace period has not ended. */
    interrupt(later_queued);
    interrupt(later_running);
    atomic_fetch_add(&now_ms, REQUESTS_GRACE_MS / 2);
    WAIT(queued->answers && running->answers);
    ck_assert_int_eq(queued->error, EINTR);
    ck_assert_int_eq(running->error, EINTR);
    ck_assert_uint_eq(later_queued->answers, 0);
    ck_assert_uint_eq(later_running->answers, 0);
    ck_assert(!queued->running);
    assert_counts(8, 1); /* an answered call occupies its thread until run() returns */
    ck_assert(had_references);
    SET(running->released = true);
    WAIT(running->ended);
    ck_assert(running->was_claimed);
}
END_TEST

/* While the storage of a name answers, interrupts have no effect. */
START_TEST(test_interrupt_without_effect_while_storage_answers)
{
    struct fuse_req *quiet, *running, *queued = fill_name(place_of(1, 1, 1), &running), *next;

    quiet = begin(place_of(1, 2, 1), run_until_released);
    interrupt(quiet);
    atomic_fetch_add(&now_ms, REQUESTS_GRACE_MS - 1);
    SET(running->released = true);
    WAIT(queued->running); /* so the name has answered just now */
    next = begin_queued(place_of(1, 1, 1), run_until_released);
    interrupt(next);
    atomic_fetch_add(&now_ms, 1);
    WAIT(quiet->answers); /* `next` was examined before it */
    ck_assert_uint_eq(next->answers, 0);
    SET(queued->released = true);
    WAIT(next->running);
    SET(next->released = true);
    WAIT(next->ended);
    ck_assert(!next->was_claimed);
    ck_assert_int_eq(next->error, 0);
}
END_TEST

/* ---- requests_close() ---- */

START_TEST(test_close_ends_queued_calls)
{
    struct fuse_req *running, *queued = fill_name(place_of(1, 1, 1), &running),
                              *interrupted = begin_queued(place_of(1, 1, 1), run_until_released);

    interrupt(interrupted);
    requests_close(requests);
    ck_assert_int_eq(queued->error, ENOTCONN);
    ck_assert_int_eq(interrupted->error, ENOTCONN);
    ck_assert_int_eq(begin_queued(place_of(2, 1, 1), run_until_released)->error, ENOTCONN);
    assert_counts(4, 0);
    SET(running->released = true);
    WAIT(running->ended);
    ck_assert_int_eq(running->error, 0);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("requests");
    TCase *bounds = tcase_create("bounds"), *turns = tcase_create("order"),
          *interrupts = tcase_create("interrupts");
    TCase *cases[] = {bounds, turns, interrupts};

    for (unsigned i = 0; i < 3; i++) {
        tcase_add_checked_fixture(cases[i], setup, teardown);
        tcase_set_timeout(cases[i], 300);
        suite_add_tcase(made, cases[i]);
    }
    tcase_add_test(bounds, test_name_runs_4);
    tcase_add_test(bounds, test_names_share_directory);
    tcase_add_test(bounds, test_directory_runs_32);
    tcase_add_test(bounds, test_directories_share_file_system);
    tcase_add_test(bounds, test_users_share_file_system);
    tcase_add_test(bounds, test_user_of_many_file_systems);
    tcase_add_test(bounds, test_all_run_256);
    tcase_add_test(bounds, test_full_queue_is_busy);
    tcase_add_test(turns, test_names_take_turns);
    tcase_add_test(turns, test_directory_without_running_requests_is_first);
    tcase_add_test(turns, test_directories_take_turns);
    tcase_add_test(turns, test_file_systems_take_turns);
    tcase_add_test(interrupts, test_interrupt_takes_effect_after_grace);
    tcase_add_test(interrupts, test_interrupt_without_effect_while_storage_answers);
    tcase_add_test(interrupts, test_close_ends_queued_calls);
    return made;
}

#include "check_main.h"
