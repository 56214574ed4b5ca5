/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/requests.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANE_BUCKETS = 4096,
    NAME_RUNNING = 4,
    NAMES_SHARE_FROM = 8, /* running in a directory; from here on, one per name */
    DIRECTORY_RUNNING = 32,
    DIRECTORIES_SHARE_FROM = 32, /* of a user in a file system; from here on, one per directory */
};

enum level { LEVEL_ALL, LEVEL_FILESYSTEM, LEVEL_USER, LEVEL_DIRECTORY, LEVEL_NAME };

/* A user's requests in all file systems. */
struct user {
    struct user *next;
    uint64_t id;
    unsigned lanes; /* that refer to it */
    unsigned running;
};

/*
 * A place in the source that has requests. Lanes form a tree: all, file systems, users,
 * directories, names. A lane exists while it or one below it has requests. Guarded by
 * requests->lock.
 */
struct lane {
    struct lane *next_in_bucket;
    struct lane *above; /* NULL at LEVEL_ALL */
    enum level level;
    uint64_t key;
    unsigned running, queued; /* requests here and below */
    struct user *user; /* at LEVEL_USER */
    struct list waiting; /* the lanes below that have queued requests, in the order of service */
    struct list node; /* in `waiting` of the lane above */
    /* LEVEL_NAME */
    struct list queue; /* of requests */
    uint64_t since; /* monotonic_ms() when a request last ended, or the lane was created */
};

struct requests {
    void *userdata;
    void (*release)(void *userdata, void *handle);
    struct view *view;
    pthread_mutex_t lock; /* guards the rest; not held over I/O; taken before view->lock */
    pthread_cond_t changed; /* an interrupt, or `stop`; wakes `answerer` */
    struct lane all;
    struct lane *buckets[LANE_BUCKETS];
    struct lane *spare; /* free lanes, linked by `next_in_bucket` */
    struct user *users; /* with lanes */
    struct list interrupted; /* requests not yet answered */
    uint64_t answered_interrupted; /* since the start */
    pthread_t answerer;
    bool has_answerer, stop, closed;
};

/* ---- lanes ---- */

static struct lane **
lane_bucket(struct requests *requests, enum level level, uint64_t key)
{
    return &requests->buckets[(key ^ level * 0x9e3779b97f4a7c15u) % LANE_BUCKETS];
}

/* Finds or makes a user, for one more lane. NULL: out of memory. */
static struct user *
user_get(struct requests *requests, uint64_t id)
{
    struct user *user = requests->users;

    while (user && user->id != id)
        user = user->next;
    if (!user) {
        user = malloc(sizeof(*user));
        if (!user)
            return NULL;
        *user = (struct user){.next = requests->users, .id = id};
        requests->users = user;
    }
    user->lanes++;
    return user;
}

static void
user_put(struct requests *requests, struct user *user)
{
    struct user **link = &requests->users;

    if (--user->lanes > 0)
        return;
    while (*link != user)
        link = &(*link)->next;
    *link = user->next;
    free(user);
}

/* Finds or makes a lane. NULL: out of memory. */
static struct lane *
lane_get(struct requests *requests, struct lane *above, enum level level, uint64_t key)
{
    struct lane **bucket = lane_bucket(requests, level, key), *lane;

    for (lane = *bucket; lane; lane = lane->next_in_bucket)
        if (lane->key == key && lane->level == level && lane->above == above)
            return lane;
    lane = requests->spare;
    if (lane)
        requests->spare = lane->next_in_bucket;
    else
        lane = malloc(sizeof(*lane));
    if (!lane)
        return NULL;
    *lane = (struct lane){.above = above, .level = level, .key = key};
    if (level == LEVEL_USER && !(lane->user = user_get(requests, key))) {
        free(lane);
        return NULL;
    }
    lane->next_in_bucket = *bucket;
    list_init(&lane->waiting);
    list_init(&lane->queue);
    lane->since = monotonic_ms();
    *bucket = lane;
    return lane;
}

/* Removes a lane that has no requests, and those above it that have none. */
static void
lane_put(struct requests *requests, struct lane *lane)
{
    while (lane->above && !lane->running && !lane->queued) {
        struct lane **link = lane_bucket(requests, lane->level, lane->key), *above = lane->above;

        while (*link != lane)
            link = &(*link)->next_in_bucket;
        *link = lane->next_in_bucket;
        if (lane->user)
            user_put(requests, lane->user);
        lane->next_in_bucket = requests->spare;
        requests->spare = lane;
        lane = above;
    }
}

static struct lane *
lane_of_place(struct requests *requests, const struct view_place *place, uid_t user)
{
    const uint64_t keys[] = {[LEVEL_FILESYSTEM] = place->filesystem,
                             [LEVEL_USER] = user,
                             [LEVEL_DIRECTORY] = place->directory,
                             [LEVEL_NAME] = place->name};
    struct lane *lane = &requests->all, *below;

    for (enum level level = LEVEL_FILESYSTEM; level <= LEVEL_NAME; level++) {
        below = lane_get(requests, lane, level, keys[level]);
        if (!below) {
            lane_put(requests, lane);
            return NULL;
        }
        lane = below;
    }
    return lane;
}

/*
 * In a file system a user may run three quarters of the threads that the file system may use and
 * other users do not. Over all file systems a user may run three quarters of the threads that other
 * users leave; above that, up to seven eighths, only one request in each further file system.
 */
static bool
user_has_room(const struct lane *user)
{
    const struct lane *filesystem = user->above, *all = filesystem->above;
    unsigned elsewhere = all->running - filesystem->running;
    unsigned others = filesystem->running - user->running;
    unsigned most = (REQUESTS_RUNNING - elsewhere) / 2;
    unsigned left = most > others ? most - others : 0;
    unsigned left_in_all = REQUESTS_RUNNING - (all->running - user->user->running);

    if (user->running == 0)
        return user->user->running < left_in_all - left_in_all / 8;
    return user->running < left - left / 4 && user->user->running < left_in_all - left_in_all / 4;
}

static bool
request_lane_has_room(const struct lane *lane)
{
    const struct lane *above = lane->above;

    switch (lane->level) {
    case LEVEL_NAME:
        return lane->running < (above->running < NAMES_SHARE_FROM ? NAME_RUNNING : 1);
    case LEVEL_DIRECTORY:
        return lane->running <
               (above->running < DIRECTORIES_SHARE_FROM ? (unsigned)DIRECTORY_RUNNING : 1u);
    case LEVEL_USER:
        return user_has_room(lane);
    case LEVEL_FILESYSTEM:
        return lane->running < REQUESTS_RUNNING - above->running;
    case LEVEL_ALL:
        break;
    }
    return lane->running < REQUESTS_RUNNING;
}

static void
lane_count_queued(struct lane *lane, bool add)
{
    for (; lane; lane = lane->above) {
        if (add && lane->queued++ == 0 && lane->above)
            list_add(&lane->above->waiting, &lane->node);
        if (!add && --lane->queued == 0 && lane->above)
            list_remove(&lane->node);
    }
}

static void
lane_push(struct lane *lane, struct request *request)
{
    request->state = REQUEST_QUEUED;
    list_add(&lane->queue, &request->node);
    lane_count_queued(lane, true);
}

/* Removes a request from anywhere in its lane's queue. */
static void
lane_dequeue(struct lane *lane, struct request *request)
{
    list_remove(&request->node);
    lane_count_queued(lane, false);
}

static struct lane *lane_find_ready(struct lane *lane);

/* lane_find_ready() among the lanes below that have requests running, or among those that have
 * none.
 */
static struct lane *
lane_find_ready_below(struct lane *lane, bool is_running)
{
    list_for_each(node, &lane->waiting)
    {
        struct lane *below = container_of(node, struct lane, node);
        struct lane *found = (below->running > 0) == is_running ? lane_find_ready(below) : NULL;

        if (!found)
            continue;
        list_rotate(&lane->waiting, node);
        return found;
    }
    return NULL;
}

/* Returns the next lane, in round-robin order, with a queued request that may run; NULL: none.
 * Lanes without running requests are first: only the end of another lane's request would start them
 * later, and that may not come. Skipped lanes have requests running, or their user has, so there
 * are few. */
static struct lane *
lane_find_ready(struct lane *lane)
{
    struct lane *found;

    if (!lane->queued || !request_lane_has_room(lane))
        return NULL;
    if (lane->level == LEVEL_NAME)
        return lane;
    found = lane_find_ready_below(lane, false);
    return found ? found : lane_find_ready_below(lane, true);
}

static bool
lanes_have_room(const struct lane *lane)
{
    for (; lane; lane = lane->above)
        if (!request_lane_has_room(lane))
            return false;
    return true;
}

static void
lane_count_running(struct lane *lane, bool add)
{
    for (; lane; lane = lane->above) {
        lane->running += add ? 1 : -1u;
        if (lane->user)
            lane->user->running += add ? 1 : -1u;
    }
}

/* ---- requests ---- */

struct request *
request_new(struct requests *requests, fuse_req_t req, node_id id, const char *name)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    size_t size = (name ? strlen(name) : 0) + 1;
    struct request *request = calloc(1, sizeof(*request) + size);

    if (!request) {
        fuse_reply_err(req, ENOMEM);
        return NULL;
    }
    request->requests = requests;
    request->req = req;
    request->id = id;
    request->caller = (struct caller){.uid = ctx->uid, .gid = ctx->gid, .pid = ctx->pid};
    request->references = 1;
    memcpy(request->name, name ? name : "", size);
    return request;
}

static void
caller_request_free(struct request *request)
{
    struct requests *requests = request->requests;

    if (request->handle)
        requests->release(requests->userdata, request->handle);
    if (request->holds_id)
        view_forget(requests->view, request->id, 1);
    free(request);
}

/* Called with requests->lock held; releases and reacquires it if the request is freed. */
static void
request_unref(struct requests *requests, struct request *request)
{
    if (--request->references > 0)
        return;
    pthread_mutex_unlock(&requests->lock);
    caller_request_free(request);
    pthread_mutex_lock(&requests->lock);
}

void *
request_userdata(const struct request *request)
{
    return request->requests->userdata;
}

static void
interrupted_add(struct requests *requests, struct request *request)
{
    list_add(&requests->interrupted, &request->interrupted_node);
    pthread_cond_signal(&requests->changed);
}

/* Called by libfuse, which holds the request's lock, so it cannot be answered here. */
static void
on_interrupt(fuse_req_t req, void *arg)
{
    struct request *request = arg;
    struct requests *requests = request->requests;

    (void)req;
    pthread_mutex_lock(&requests->lock);
    if (!request->interrupted && !request->claimed) {
        request->interrupted = true;
        if (request->state != REQUEST_NEW)
            interrupted_add(requests, request);
    }
    pthread_mutex_unlock(&requests->lock);
}

/* requests->lock held. From then on only the calling thread answers. */
static void
mark_claimed(struct request *request)
{
    request->claimed = true;
    if (list_is_linked(&request->interrupted_node))
        list_remove(&request->interrupted_node);
}

/* Returns the claimed kernel request. Removing the function waits for a running on_interrupt(), so
 * that the request can be freed afterwards. */
static fuse_req_t
stop_interrupts(const struct request *request)
{
    if (request->may_wait)
        fuse_req_interrupt_func(request->req, NULL, NULL);
    return request->req;
}

fuse_req_t
request_claim(struct request *request)
{
    struct requests *requests = request->requests;
    bool mine;

    if (!request->may_wait)
        return request->req;
    pthread_mutex_lock(&requests->lock);
    mine = !request->claimed;
    if (mine)
        mark_claimed(request);
    pthread_mutex_unlock(&requests->lock);
    return mine ? stop_interrupts(request) : NULL;
}

/* Claims a queued or running request and answers it with an error. Called with requests->lock held;
 * releases and reacquires it. */
static void
answer_waiting(struct requests *requests, struct request *request, int error)
{
    struct lane *lane = request->lane;
    bool queued = request->state == REQUEST_QUEUED;

    mark_claimed(request);
    if (queued) {
        lane_dequeue(lane, request);
        lane_put(requests, lane);
    } else {
        /* After the answer the kernel may forget the ID. */
        view_ref(requests->view, request->id);
        request->holds_id = true;
        request->references++;
    }
    pthread_mutex_unlock(&requests->lock);
    fuse_reply_err(stop_interrupts(request), error);
    pthread_mutex_lock(&requests->lock);
    request_unref(requests, request);
}

/* ---- running ---- */

/* Dequeues the first request of a lane and counts it as running. */
static struct request *
lane_start_request(struct lane *lane)
{
    struct request *request = container_of(list_first(&lane->queue), struct request, node);

    lane_dequeue(lane, request);
    request->state = REQUEST_RUNNING;
    lane_count_running(lane, true);
    return request;
}

/* requests->lock held. */
static void
end_request(struct requests *requests, struct request *request)
{
    struct lane *lane = request->lane;

    lane_count_running(lane, false);
    lane->since = monotonic_ms();
    lane_put(requests, lane);
    request_unref(requests, request);
}

static void
run_while_ready(struct requests *requests, struct request *request)
{
    struct lane *lane;

    while (request) {
        request->run(request);
        pthread_mutex_lock(&requests->lock);
        end_request(requests, request);
        lane = lane_find_ready(&requests->all);
        request = lane ? lane_start_request(lane) : NULL;
        pthread_mutex_unlock(&requests->lock);
    }
}

/* Whether the queue has room for another request of that user in that file system. */
static bool
may_queue(const struct requests *requests, const struct lane *lane)
{
    const struct lane *user = lane->above->above, *filesystem = user->above;
    unsigned left = REQUESTS_QUEUED - requests->all.queued;

    return filesystem->queued < left && user->queued < left - filesystem->queued;
}

/* Queues a new request. *ready: the request that this thread must run, or NULL. Returns 0 or an
 * errno. */
static int
enter_lane(struct requests *requests, struct request *request, struct request **ready)
{
    struct lane *lane = request->lane;
    bool room = lanes_have_room(lane);

    *ready = NULL;
    if (requests->closed || (!room && !may_queue(requests, lane))) {
        lane_put(requests, lane);
        return requests->closed ? ENOTCONN : EBUSY;
    }
    lane_push(lane, request);
    lane = lane_find_ready(&requests->all); /* there may be room for others, too */
    if (lane)
        *ready = lane_start_request(lane);
    if (request->interrupted)
        interrupted_add(requests, request);
    return 0;
}

static void
refuse_request(struct request *request, int error)
{
    fuse_req_t req = request_claim(request);

    if (req)
        fuse_reply_err(req, error);
    caller_request_free(request);
}

void
request_serve_at_once(struct request *request, void (*run)(struct request *request))
{
    run(request);
    caller_request_free(request);
}

void
request_serve(struct request *request, void (*run)(struct request *request), enum request_kind kind)
{
    struct requests *requests = request->requests;
    struct request *ready;
    struct view_place place;
    int error = ENOMEM;

    if (!view_place(requests->view, request->id, kind == REQUEST_LOOKUP ? request->name : NULL,
                    kind == REQUEST_OPEN, &place)) {
        request_serve_at_once(request, run);
        return;
    }
    request->run = run;
    request->may_wait = true;
    fuse_req_interrupt_func(request->req, on_interrupt, request);
    pthread_mutex_lock(&requests->lock);
    request->lane = lane_of_place(requests, &place, request->caller.uid);
    if (request->lane)
        error = enter_lane(requests, request, &ready);
    pthread_mutex_unlock(&requests->lock);
    if (error)
        refuse_request(request, error);
    else
        run_while_ready(requests, ready);
}

/* ---- interrupted requests ---- */

/* Returns an interrupted request that must be answered now, or NULL; *until: when the next one
 * must, UINT64_MAX: never. requests->lock held. */
static struct request *
find_due_interrupt(struct requests *requests, uint64_t *until)
{
    uint64_t now = monotonic_ms(), due;

    *until = UINT64_MAX;
    list_for_each(node, &requests->interrupted)
    {
        struct request *request = container_of(node, struct request, interrupted_node);

        due = request->lane->since + REQUESTS_GRACE_MS;
        if (due <= now)
            return request;
        if (due < *until)
            *until = due;
    }
    return NULL;
}

static void
wait_for_interrupt(struct requests *requests, uint64_t until)
{
    if (until == UINT64_MAX)
        pthread_cond_wait(&requests->changed, &requests->lock);
    else
        condition_wait(&requests->changed, &requests->lock, until * 1000000);
}

static void *
answer_interrupted(void *arg)
{
    struct requests *requests = arg;
    struct request *request;
    uint64_t until;

    pthread_mutex_lock(&requests->lock);
    while (!requests->stop) {
        request = find_due_interrupt(requests, &until);
        if (request) {
            requests->answered_interrupted++;
            answer_waiting(requests, request, EINTR);
        } else {
            wait_for_interrupt(requests, until);
        }
    }
    pthread_mutex_unlock(&requests->lock);
    return NULL;
}

/* ---- lifecycle ---- */

errint_t
requests_new(void *userdata, void (*release)(void *userdata, void *handle), struct requests **out)
{
    struct requests *requests = calloc(1, sizeof(*requests));

    if (!requests)
        return -ENOMEM;
    requests->userdata = userdata;
    requests->release = release;
    requests->all.level = LEVEL_ALL;
    list_init(&requests->all.waiting);
    list_init(&requests->interrupted);
    pthread_mutex_init(&requests->lock, NULL);
    condition_init(&requests->changed);
    *out = requests;
    return 0;
}

errint_t
requests_start(struct requests *requests, struct view *view)
{
    errint_t error;

    requests->view = view;
    error = thread_start(&requests->answerer, answer_interrupted, requests);
    requests->has_answerer = error == 0;
    return error;
}

void
requests_close(struct requests *requests)
{
    struct lane *lane;

    pthread_mutex_lock(&requests->lock);
    requests->closed = true;
    while (requests->all.queued) {
        lane = &requests->all;
        while (lane->level != LEVEL_NAME)
            lane = container_of(list_first(&lane->waiting), struct lane, node);
        answer_waiting(requests, container_of(list_first(&lane->queue), struct request, node),
                       ENOTCONN);
    }
    pthread_mutex_unlock(&requests->lock);
}

void
requests_free(struct requests *requests)
{
    struct lane *lane;

    if (!requests)
        return;
    if (requests->has_answerer) {
        pthread_mutex_lock(&requests->lock);
        requests->stop = true;
        pthread_cond_signal(&requests->changed);
        pthread_mutex_unlock(&requests->lock);
        pthread_join(requests->answerer, NULL);
    }
    while ((lane = requests->spare)) {
        requests->spare = lane->next_in_bucket;
        free(lane);
    }
    pthread_cond_destroy(&requests->changed);
    pthread_mutex_destroy(&requests->lock);
    free(requests);
}

void
requests_status(struct requests *requests, struct buffer *out)
{
    pthread_mutex_lock(&requests->lock);
    buffer_addf(out, "{\"running\":%u,\"queued\":%u,\"interrupted\":%" PRIu64 "}",
                requests->all.running, requests->all.queued, requests->answered_interrupted);
    pthread_mutex_unlock(&requests->lock);
}
