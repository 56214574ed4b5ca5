/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/reads.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "fuse/reply.h"
#include "fuse/run_delay.h"
#include "io/lanes.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUEUE_MOST = 65535, /* the largest that FUSE allows */
    QUEUE_UNKNOWN = 1024, /* requested if the kernel's limit cannot be read */
    REPLIES_AT_ONCE = 64, /* with the lock held */
};
#define TICK_NS UINT64_C(1000000000)

/* The reads of one file system. Guarded by reads->lock. */
struct read_lane {
    struct lane lane; /* first; its `users` are the reads that the engine has not answered */
    struct list unanswered; /* reads that the kernel waits for, oldest first */
    unsigned count; /* of these */
    unsigned ended; /* late reads that the engine has answered since `progressed` */
    unsigned progressed; /* reads->ticks when the lane last made progress */
    bool was_reported; /* since then */
};

struct reads {
    struct io *io;
    struct loads *loads;
    unsigned queue_size; /* of the kernel's queue */
    unsigned crowded; /* while as many reads are unanswered, lanes are limited to their share */
    pthread_mutex_t lock; /* guards the rest; not held over I/O, except for replies */
    pthread_cond_t changed; /* `count` has reached `crowded`, or `stop` */
    struct list lanes; /* of struct read_lane */
    unsigned count; /* unanswered, in all lanes */
    unsigned ticks; /* seconds in which the queue was crowded; none while the daemon is stopped */
    uint64_t failed; /* reads answered with EIO, since the start */
    bool is_idle; /* the watcher waits until the queue is crowded */
    pthread_t watcher;
    bool stop;
};

/* A read that the engine has not answered. */
struct pending_read {
    struct reads *reads;
    struct read_lane *lane;
    struct list node; /* in lane->unanswered until `req` is answered */
    fuse_req_t req;
    unsigned since; /* reads->ticks */
    const struct extent_list *list; /* the engine holds a reference */
    uint64_t offset;
    size_t size;
    struct load_read load;
};

/* ---- lanes: with the lock held ---- */

/* The number of reads that a lane may have in flight while the queue is crowded. */
static unsigned
read_lane_share(const struct reads *reads, const struct read_lane *lane)
{
    return lane_share(reads->queue_size / 2, reads->count - lane->count);
}

static void
read_lane_progress(const struct reads *reads, struct read_lane *lane)
{
    lane->ended = 0;
    lane->progressed = reads->ticks;
    lane->was_reported = false;
}

static bool
read_lane_hangs(const struct reads *reads, const struct read_lane *lane)
{
    return reads->ticks - lane->progressed >= READS_HANG_SECONDS;
}

/* Whether new reads must fail: reads of the lane have failed, and the engine still has a queue full
 * of them. Even if the lane makes progress, the engine continues at most twice that number. */
static bool
read_lane_is_blocked(const struct reads *reads, const struct read_lane *lane)
{
    unsigned in_engine = atomic_load(&lane->lane.users);
    unsigned most = reads->queue_size * (read_lane_hangs(reads, lane) ? 1 : 2);

    return in_engine > lane->count && in_engine >= most;
}

static void
mark_answered(struct pending_read *read)
{
    list_remove(&read->node);
    read->lane->count--;
    read->reads->count--;
}

/* ---- reads ---- */

static errint_t
begin_pending_read(struct pending_read *read)
{
    struct reads *reads = read->reads;
    uint64_t key = extent_list_lane(read->list, read->offset, read->size);
    struct read_lane *lane;
    errint_t error = -ENOMEM;

    pthread_mutex_lock(&reads->lock);
    lane = (struct read_lane *)lanes_find(&reads->lanes, key, sizeof(*lane));
    if (lane && !list_is_linked(&lane->unanswered))
        list_init(&lane->unanswered);
    if (lane && atomic_load(&lane->lane.users) == 0)
        read_lane_progress(reads, lane);
    if (lane)
        error = read_lane_is_blocked(reads, lane) ? -EIO : 0;
    if (!error) {
        read->lane = lane;
        read->since = reads->ticks;
        atomic_fetch_add(&lane->lane.users, 1);
        list_add(&lane->unanswered, &read->node);
        lane->count++;
        reads->count++;
        if (reads->is_idle && reads->count >= reads->crowded)
            pthread_cond_signal(&reads->changed);
    }
    reads->failed += error == -EIO;
    pthread_mutex_unlock(&reads->lock);
    return error;
}

/* Returns whether the kernel still waits for the read; the calling thread must then answer. */
static bool
end_pending_read(struct pending_read *read)
{
    struct read_lane *lane = read->lane;
    struct reads *reads = read->reads;
    bool is_unanswered;

    pthread_mutex_lock(&reads->lock);
    is_unanswered = list_is_linked(&read->node);
    if (is_unanswered)
        mark_answered(read);
    if (reads->ticks - read->since >= READS_LATE_SECONDS &&
        ++lane->ended >= lane->count / READS_PROGRESS)
        read_lane_progress(reads, lane);
    atomic_fetch_sub(&lane->lane.users, 1);
    pthread_mutex_unlock(&reads->lock);
    return is_unanswered;
}

static void
reply_to_read(void *arg, const struct io_answer *answer)
{
    const struct io_answer discarded = {.result = -EIO, .waited = answer->waited};
    struct pending_read *read = arg;

    if (!end_pending_read(read))
        answer = &discarded;
    else if (answer->result)
        reply_error(read->req, answer->result);
    else
        fuse_reply_iov(read->req, answer->vectors, answer->count);
    loads_end_read(read->reads->loads, &read->load, answer, read->size);
    free(read);
}

void
reads_serve(struct reads *reads, fuse_req_t req, struct handle *handle, uint64_t offset,
            size_t size)
{
    struct extent_list *list = handle->list;
    struct pending_read *read = malloc(sizeof(*read));
    errint_t error;

    if (!read) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    *read = (struct pending_read){
        .reads = reads, .req = req, .list = list, .offset = offset, .size = size};
    read->load = loads_begin_read(reads->loads, &handle->load, fuse_req_ctx(req)->pid);
    extent_list_ref(list); /* the kernel may release the handle once the read is answered */
    error = begin_pending_read(read);
    if (error) {
        fuse_reply_err(req, -error);
        loads_end_read(reads->loads, &read->load, &(struct io_answer){.result = error}, size);
        free(read);
    } else {
        io_read(reads->io, list, offset, size, reply_to_read, read);
    }
    extent_list_unref(list);
    run_delay_restart(); /* the delay up to now is part of the read */
}

/* ---- reads that hang ---- */

/* Sets `name` to the quoted path of a file that the read is of. */
static void
name_file(const struct pending_read *read, char name[QUOTED_SIZE])
{
    const struct extent_list *list = read->list;
    uint32_t i = extent_list_find(list, read->offset);
    const char *path;

    while (i < list->count && !list->extents[i].backing)
        i++;
    path = i < list->count ? list->extents[i].backing->path : "";
    quoted(name, path, strlen(path));
}

/* Whether the oldest unanswered read of a lane, `node`, must fail. */
static bool
read_is_late(const struct reads *reads, const struct read_lane *lane, const struct list *node)
{
    const struct pending_read *read = container_of(node, const struct pending_read, node);

    return reads->count >= reads->crowded && read_lane_hangs(reads, lane) &&
           reads->ticks - read->since >= READS_GRACE_SECONDS &&
           lane->count > read_lane_share(reads, lane);
}

/* Returns the lane with the most reads of which some must fail, or NULL. */
static struct read_lane *
find_late_lane(const struct reads *reads)
{
    struct read_lane *found = NULL;

    list_for_each(node, &reads->lanes)
    {
        struct read_lane *lane = (struct read_lane *)container_of(node, struct lane, node);
        struct list *oldest = list_first(&lane->unanswered);

        if (oldest && (!found || lane->count > found->count) && read_is_late(reads, lane, oldest))
            found = lane;
    }
    return found;
}

/* Logs that reads of the lane fail. Releases the lock meanwhile. */
static void
report_lane(struct reads *reads, struct read_lane *lane)
{
    unsigned count = lane->count;
    char name[QUOTED_SIZE];

    name_file(container_of(lane->unanswered.next, struct pending_read, node), name);
    lane->was_reported = true;
    pthread_mutex_unlock(&reads->lock);
    log_warning("%s: its file system does not answer %u reads; some fail with EIO, so that reads "
                "of other file systems do not wait for them",
                name, count);
    pthread_mutex_lock(&reads->lock);
}

/* Fails some of the reads of the lane that exceed its share. */
static void
fail_late_reads(struct reads *reads, struct read_lane *lane)
{
    unsigned replies = 0;

    list_for_each(node, &lane->unanswered)
    {
        struct pending_read *read = container_of(node, struct pending_read, node);

        if (replies++ == REPLIES_AT_ONCE || !read_is_late(reads, lane, node))
            break;
        mark_answered(read);
        reads->failed++;
        /* With the lock held, since the engine may end and free the read. */
        fuse_reply_err(read->req, EIO);
    }
}

/* Fails late reads. Releases the lock after each batch, so that other reads need not wait for all.
 */
static void
leave_room(struct reads *reads)
{
    struct read_lane *lane;

    while (!reads->stop && (lane = find_late_lane(reads))) {
        if (!lane->was_reported) {
            report_lane(reads, lane);
            continue;
        }
        fail_late_reads(reads, lane);
        pthread_mutex_unlock(&reads->lock);
        pthread_mutex_lock(&reads->lock);
    }
}

static void *
watch(void *arg)
{
    struct reads *reads = arg;

    pthread_mutex_lock(&reads->lock);
    while (!reads->stop) {
        reads->is_idle = reads->count < reads->crowded;
        if (reads->is_idle)
            pthread_cond_wait(&reads->changed, &reads->lock);
        else if (!condition_wait(&reads->changed, &reads->lock, monotonic_ns() + TICK_NS))
            reads->ticks++;
        leave_room(reads);
    }
    pthread_mutex_unlock(&reads->lock);
    return NULL;
}

/* ---- lifecycle ---- */

unsigned
reads_queue_size(void)
{
    FILE *file = fopen("/sys/module/fuse/parameters/max_user_bgreq", "re");
    unsigned size = QUEUE_UNKNOWN;

    if (file) {
        if (fscanf(file, "%u", &size) != 1 || size == 0)
            size = QUEUE_UNKNOWN;
        fclose(file);
    }
    return size < QUEUE_MOST ? size : QUEUE_MOST;
}

errint_t
reads_new(struct io *io, struct loads *loads, unsigned queue_size, struct reads **out)
{
    struct reads *reads = calloc(1, sizeof(*reads));
    errint_t error;

    if (!reads)
        return -ENOMEM;
    *reads = (struct reads){
        .io = io, .loads = loads, .queue_size = queue_size, .crowded = queue_size - queue_size / 4};
    list_init(&reads->lanes);
    pthread_mutex_init(&reads->lock, NULL);
    condition_init(&reads->changed);
    error = thread_start(&reads->watcher, watch, reads);
    if (error) {
        pthread_cond_destroy(&reads->changed);
        pthread_mutex_destroy(&reads->lock);
        free(reads);
        return error;
    }
    *out = reads;
    return 0;
}

void
reads_free(struct reads *reads)
{
    if (!reads)
        return;
    pthread_mutex_lock(&reads->lock);
    reads->stop = true;
    pthread_cond_signal(&reads->changed);
    pthread_mutex_unlock(&reads->lock);
    pthread_join(reads->watcher, NULL);
    lanes_free(&reads->lanes);
    pthread_cond_destroy(&reads->changed);
    pthread_mutex_destroy(&reads->lock);
    free(reads);
}

void
reads_status(struct reads *reads, struct buffer *out)
{
    pthread_mutex_lock(&reads->lock);
    buffer_addf(out, "{\"queue\":%u,\"failed\":%" PRIu64 "}", reads->queue_size, reads->failed);
    pthread_mutex_unlock(&reads->lock);
}
