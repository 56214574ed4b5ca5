/* SPDX-License-Identifier: Apache-2.0 */
#include "io/ring.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "io/concurrency.h"
#include "io/lanes.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Submissions in a row, a millisecond apart, that the kernel may refuse for lack of memory. */
#define REFUSALS_MAX 1000

/* Limits of background reads in flight. Storage serves a burst of reads together, so a foreground
 * read takes as long as the burst that it is in. An eighth of the depth, a few megabytes, keeps
 * most storage busy. Other storage gets up to three quarters of the depth; the rest is left for
 * foreground reads. */
#define BACKGROUND_LEAST(depth) ((depth) > 8 ? (depth) / 8 : 1)
#define BACKGROUND_MOST(depth) ((depth) / 4 * 3)

/* The reads of one file system. `users`: those that are queued or in flight. */
struct ring_lane {
    struct lane lane;
    struct fifo urgent, background; /* guarded by the lock of the ring */
    /* The ring's thread only: */
    unsigned in_flight;
    unsigned background_in_flight; /* of these */
};

struct ring {
    /* Any thread, guarded by `lock`: */
    pthread_mutex_t lock;
    struct list lanes;
    bool is_awake; /* the thread will check the queues before it sleeps */
    bool is_stopping;
    /* The ring's thread only: */
    struct io_uring uring;
    unsigned depth;
    unsigned in_flight;
    unsigned refusals; /* failed submissions in a row */
    struct concurrency background_limit; /* any thread may read its limit */
    uint64_t wake_count; /* read from wake_fd; not used */
    /* Constant: */
    struct rings *rings;
    int wake_fd; /* an eventfd; the ring always has a read of it in flight */
    pthread_t thread;
    /* The result of the thread's setup, for ring_new(): */
    pthread_cond_t started;
    bool start_ended;
    errint_t start_result;
};

/* Submits a no-op and waits for it: a sandbox may allow creating a ring but not using it. */
static errint_t
ring_try_nop(struct ring *ring)
{
    struct io_uring_cqe *cqe;
    int result;

    io_uring_prep_nop(io_uring_get_sqe(&ring->uring));
    result = io_uring_submit_and_wait(&ring->uring, 1);
    if (result < 0)
        return result;
    result = io_uring_wait_cqe(&ring->uring, &cqe);
    if (result == 0)
        io_uring_cqe_seen(&ring->uring, cqe);
    return result;
}

/* Restricts a ring that is not enabled yet to reads, and enables it. The seccomp filter of the
 * sandbox does not see the operations of a ring. */
static errint_t
ring_restrict(struct ring *ring)
{
    struct io_uring_restriction restrictions[] = {
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_NOP},
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ},
        {.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_ASYNC},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_RING_FDS},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_UNREGISTER_RING_FDS},
    };
    unsigned count = COUNT_OF(restrictions);
    int fd = ring->uring.ring_fd;

    /* Old versions of liburing have no functions for this. */
    if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_RESTRICTIONS, restrictions, count) < 0 ||
        syscall(SYS_io_uring_register, fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        return -errno;
    return 0;
}

/* The kernel has threads for reads that would block, by default 4 per processor. With one for each
 * read in flight, no read waits for another that hangs. Linux 5.15. */
static void
ring_raise_worker_limit(struct ring *ring)
{
    unsigned most[2] = {UINT16_MAX, 0}; /* for files; 0: for others, unchanged */

    io_uring_register_iowq_max_workers(&ring->uring, most);
}

/* Creates a restricted ring. An unrestricted one would let injected code do what the sandbox
 * forbids, so a ring that cannot be restricted is refused. */
static errint_t
ring_init_uring(struct ring *ring, unsigned flags)
{
    struct io_uring_params params = {.flags = flags | IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED};
    /* One more for the eventfd. */
    int result = io_uring_queue_init_params(ring->depth + 1, &ring->uring, &params);

    if (result < 0)
        return result;
    ring_raise_worker_limit(ring);
    result = ring_restrict(ring);
    if (result < 0)
        io_uring_queue_exit(&ring->uring);
    return result;
}

static errint_t
ring_create_uring(struct ring *ring)
{
    static const unsigned flags[] = {
#if defined(IORING_SETUP_DEFER_TASKRUN)
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
            IORING_SETUP_TASKRUN_FLAG, /* 6.1 */
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* 5.19 */
#endif
        0,
    };
    int result = -EINVAL;

    for (size_t i = 0; i < COUNT_OF(flags) && result == -EINVAL; i++)
        result = ring_init_uring(ring, flags[i]);
    if (result < 0)
        return result;
    result = (ring->uring.features & IORING_FEAT_NODROP) ? ring_try_nop(ring) : -ENOSYS;
    if (result < 0) {
        io_uring_queue_exit(&ring->uring);
        return result;
    }
    /* Optional: saves the lookup of the file in each system call. */
    io_uring_register_ring_fd(&ring->uring);
    return 0;
}

/* There is always a free entry: ring_prepare_queued() leaves one. */
static void
ring_prepare_wake_read(struct ring *ring)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->uring);

    io_uring_prep_read(entry, ring->wake_fd, &ring->wake_count, sizeof(ring->wake_count), 0);
    io_uring_sqe_set_data(entry, NULL);
}

static void
ring_prepare(struct ring *ring, struct ring_read *read, uint64_t now)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->uring);

    io_uring_prep_read(entry, read->fd, read->buffer, read->length, read->offset);
    entry->rw_flags = read->flags;
    if (read->may_wait)
        io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    io_uring_sqe_set_data(entry, read);
    read->started = now;
    read->others_at_start =
        atomic_fetch_add_explicit(&ring->rings->in_flight, 1, memory_order_relaxed);
    ring->in_flight++;
    read->lane->in_flight++;
    read->lane->background_in_flight += !read->urgent;
}

/* With the lock held: a read that may be submitted, a foreground one if there is any; the lanes
 * take turns. */
static struct ring_read *
ring_take_read(struct ring *ring, bool urgent)
{
    list_for_each(node, &ring->lanes)
    {
        struct ring_lane *lane = container_of(node, struct ring_lane, lane.node);
        struct ring_read *read = NULL;

        if (lane->in_flight >= lane_share(ring->depth, ring->in_flight - lane->in_flight))
            continue;
        if (urgent)
            read = fifo_take(&lane->urgent);
        else if (lane->background.first &&
                 concurrency_allows(&ring->background_limit, lane->background_in_flight))
            read = fifo_take(&lane->background);
        if (!read)
            continue;
        list_rotate(&ring->lanes, node);
        return read;
    }
    return urgent ? ring_take_read(ring, false) : NULL;
}

/* Prepares queued reads, as many as may be in flight. If there are none, the next ring_submit()
 * must wake the thread. Returns false if the thread must exit. */
static bool
ring_prepare_queued(struct ring *ring)
{
    uint64_t now = 0;
    bool is_stopping;

    pthread_mutex_lock(&ring->lock);
    while (io_uring_sq_space_left(&ring->uring) > 1) {
        struct ring_read *read = ring_take_read(ring, true);

        if (!read)
            break;
        if (!now)
            now = monotonic_ns();
        ring_prepare(ring, read, now);
    }
    ring->is_awake = io_uring_sq_ready(&ring->uring) > 0;
    is_stopping = ring->is_stopping;
    pthread_mutex_unlock(&ring->lock);
    return !is_stopping || ring->in_flight > 0;
}

/* Counts a read out of those in flight. Returns how many of all rings are left. */
static unsigned
ring_uncount_read(struct ring *ring, struct ring_read *read)
{
    ring->in_flight--;
    read->lane->in_flight--;
    read->lane->background_in_flight -= !read->urgent;
    atomic_fetch_sub(&read->lane->lane.users, 1);
    return atomic_fetch_sub_explicit(&ring->rings->in_flight, 1, memory_order_relaxed) - 1;
}

static void
ring_complete(struct ring *ring, struct io_uring_cqe *cqe)
{
    struct ring_read *read = io_uring_cqe_get_data(cqe);
    int result = cqe->res;
    struct concurrency_read ended;
    unsigned background;

    io_uring_cqe_seen(&ring->uring, cqe);
    if (!read) {
        ring_prepare_wake_read(ring);
        return;
    }
    read->duration = monotonic_ns() - read->started;
    ended.duration = read->duration;
    ended.others_at_start = read->others_at_start;
    background = read->lane->background_in_flight - !read->urgent;
    ended.others_at_end = ring_uncount_read(ring, read);
    ended.is_background = !read->urgent;
    if (result > 0)
        concurrency_ended(&ring->background_limit, &ended, background);
    read->complete(read, result);
}

static void
ring_pause(void)
{
    struct timespec moment = {.tv_nsec = 1000000};

    nanosleep(&moment, NULL);
}

/* Submits the prepared reads, or sleeps if there are none and no completions. Returns only errors
 * that are permanent. */
static errint_t
ring_submit_prepared(struct ring *ring)
{
    struct io_uring_cqe *cqe;
    int result;

    if (io_uring_sq_ready(&ring->uring) > 0)
        result = io_uring_submit(&ring->uring);
    else if (io_uring_peek_cqe(&ring->uring, &cqe) == 0)
        return 0;
    else
        result = io_uring_submit_and_wait(&ring->uring, 1);
    if (result >= 0) {
        ring->refusals = 0;
        return 0;
    }
    if (result == -EINTR)
        return 0;
    if ((result != -EAGAIN && result != -EBUSY) || ring->refusals++ == REFUSALS_MAX)
        return result;
    /* Reaping completions frees memory. */
    if (io_uring_peek_cqe(&ring->uring, &cqe) != 0)
        ring_pause();
    return 0;
}

/* Cancels, after the ring has failed, the reads that are queued, and those that are prepared and
 * that the kernel did not accept. */
static void
ring_cancel_unsubmitted(struct ring *ring)
{
    const struct io_uring_sq *queue = &ring->uring.sq;
    unsigned prepared = io_uring_sq_ready(&ring->uring);
    struct ring_read *read;
    struct fifo cancelled = {0};

    for (unsigned at = queue->sqe_tail - prepared; at != queue->sqe_tail; at++) {
        read = (struct ring_read *)(uintptr_t)queue->sqes[at & queue->ring_mask].user_data;
        if (read) {
            ring_uncount_read(ring, read);
            fifo_add(&cancelled, &read->node);
        }
    }
    pthread_mutex_lock(&ring->lock);
    list_for_each(node, &ring->lanes)
    {
        struct ring_lane *lane = container_of(node, struct ring_lane, lane.node);

        while ((read = fifo_take(&lane->urgent)) || (read = fifo_take(&lane->background)))
            fifo_add(&cancelled, &read->node);
    }
    pthread_mutex_unlock(&ring->lock);
    while ((read = fifo_take(&cancelled)))
        read->complete(read, -ECANCELED);
}

/* Waits for the reads in flight: until then the kernel may write to their buffers. */
static void
ring_drain(struct ring *ring)
{
    struct io_uring_cqe *cqe;

    while (ring->in_flight > 0) {
        if (io_uring_peek_cqe(&ring->uring, &cqe) != 0)
            ring_pause();
        else if (io_uring_cqe_get_data(cqe))
            ring_complete(ring, cqe);
        else
            io_uring_cqe_seen(&ring->uring, cqe);
    }
}

/* Until the ring is stopped, or fails. */
static void
ring_run(struct ring *ring)
{
    struct io_uring_cqe *cqe;
    errint_t error = 0;
    int none = 0;

    ring_prepare_wake_read(ring);
    while (ring_prepare_queued(ring) && !(error = ring_submit_prepared(ring))) {
        /* One at a time: a callback copies what was read, which takes long, and the next reads must
         * be submitted before that. */
        if (io_uring_peek_cqe(&ring->uring, &cqe) == 0)
            ring_complete(ring, cqe);
    }
    if (!error)
        return;
    if (atomic_compare_exchange_strong(&ring->rings->error, &none, error))
        log_error("io_uring failed: %s; fstfs reads with threads from now on", strerror(-error));
    ring_cancel_unsubmitted(ring);
    ring_drain(ring);
}

static void *
ring_main(void *arg)
{
    struct ring *ring = arg;
    errint_t result;

    pthread_setname_np(pthread_self(), "fstfs-ring");
    /* Here, since with IORING_SETUP_SINGLE_ISSUER only this thread may use the ring. */
    result = ring_create_uring(ring);
    pthread_mutex_lock(&ring->lock);
    ring->start_result = result;
    ring->start_ended = true;
    pthread_cond_signal(&ring->started);
    pthread_mutex_unlock(&ring->lock);
    if (result < 0)
        return NULL;
    ring_run(ring);
    io_uring_queue_exit(&ring->uring);
    return NULL;
}

static errint_t
ring_start_thread(struct ring *ring)
{
    errint_t error = thread_start(&ring->thread, ring_main, ring);

    if (error)
        return error;
    pthread_mutex_lock(&ring->lock);
    while (!ring->start_ended)
        pthread_cond_wait(&ring->started, &ring->lock);
    pthread_mutex_unlock(&ring->lock);
    if (ring->start_result < 0)
        pthread_join(ring->thread, NULL);
    return ring->start_result;
}

static void
ring_release(struct ring *ring)
{
    if (ring->wake_fd >= 0)
        close(ring->wake_fd);
    pthread_cond_destroy(&ring->started);
    pthread_mutex_destroy(&ring->lock);
    lanes_free(&ring->lanes);
    free(ring);
}

errint_t
ring_new(unsigned depth, struct rings *rings, struct ring **ring, struct reason *reason)
{
    struct ring *made = calloc(1, sizeof(*made));
    errint_t result;

    if (!made)
        return reason_set(reason, -ENOMEM, "Memory", "no memory for a ring");
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->started, NULL);
    list_init(&made->lanes);
    made->depth = depth;
    made->rings = rings;
    concurrency_init(&made->background_limit, BACKGROUND_LEAST(depth), BACKGROUND_MOST(depth));
    made->wake_fd = eventfd(0, EFD_CLOEXEC);
    result = made->wake_fd < 0 ? -errno : ring_start_thread(made);
    if (result < 0) {
        ring_release(made);
        return reason_set(reason, result, "IoUring", "io_uring is refused: %s", strerror(-result));
    }
    *ring = made;
    return 0;
}

static void
ring_wake(struct ring *ring)
{
    uint64_t one = 1;

    /* The counter cannot overflow: each wake-up reads it. */
    while (write(ring->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
}

void
ring_free(struct ring *ring)
{
    if (!ring)
        return;
    pthread_mutex_lock(&ring->lock);
    ring->is_stopping = true;
    pthread_mutex_unlock(&ring->lock);
    ring_wake(ring);
    pthread_join(ring->thread, NULL);
    ring_release(ring);
}

bool
ring_submit(struct ring *ring, struct ring_read *read, bool urgent)
{
    struct ring_lane *lane;
    bool is_asleep;

    read->urgent = urgent;
    pthread_mutex_lock(&ring->lock);
    if (atomic_load(&ring->rings->error)) {
        pthread_mutex_unlock(&ring->lock);
        return false;
    }
    lane = (struct ring_lane *)lanes_find(&ring->lanes, read->lane_key, sizeof(*lane));
    if (!lane) {
        pthread_mutex_unlock(&ring->lock);
        return false;
    }
    read->lane = lane;
    atomic_fetch_add(&lane->lane.users, 1);
    fifo_add(urgent ? &lane->urgent : &lane->background, &read->node);
    is_asleep = !ring->is_awake;
    ring->is_awake = true;
    pthread_mutex_unlock(&ring->lock);
    if (is_asleep)
        ring_wake(ring);
    return true;
}

unsigned
ring_background_limit(struct ring *ring)
{
    return atomic_load_explicit(&ring->background_limit.limit, memory_order_relaxed);
}
