/* SPDX-License-Identifier: Apache-2.0 */
#include "io/ring.h"

#include "base/histogram.h"
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

/* Submissions that the kernel may refuse for want of memory, one after another, a millisecond
 * apart. */
enum { MOST_REFUSALS = 1000 };

/* Storage serves what it is given side by side: an urgent read ends when the burst does that
 * it is in. An eighth of the depth, a few megabytes, keeps most storage busy as well; where
 * it does not, there are more, but room is left for what is urgent. */
#define LEAST_SHARE_OF_OTHERS(depth) ((depth) > 8 ? (depth) / 8 : 1)
#define MOST_SHARE_OF_OTHERS(depth) ((depth) / 4 * 3)

/* The reads of one file system. `users`: those that are queued or in flight. */
struct ring_lane {
    struct lane lane;
    struct fifo urgent, others; /* guarded by the lock of the ring */
    /* By the ring's thread alone. */
    unsigned in_flight;
    unsigned others_in_flight; /* of these: not urgent */
};

struct ring {
    /* By any thread, guarded by `lock`. */
    pthread_mutex_t lock;
    struct lane *lanes; /* the one whose read was taken last */
    bool awake; /* the thread will look at the queues before it sleeps */
    bool stopping;
    /* By the ring's thread alone. */
    struct io_uring uring;
    unsigned depth;
    unsigned in_flight;
    unsigned refusals; /* submissions that failed, since one succeeded */
    struct concurrency others_at_once; /* at its limit any thread may look */
    uint64_t woken; /* what is read from wake_fd */
    /* Constant. */
    struct rings *rings;
    int wake_fd; /* an eventfd, always being read by the ring */
    pthread_t thread;
    /* How ring_new learns whether the thread got its ring. */
    pthread_cond_t started;
    bool start_ended;
    errint_t start_result;
};

/* Does nothing by way of the ring: a sandbox may let it be made and not be used. */
static errint_t
try_uring(struct ring *ring)
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

/* Nothing but reading, ever: a filter of system calls does not see what a ring does.
 * For a ring that is not enabled yet. */
static errint_t
restrict_uring(struct ring *ring)
{
    struct io_uring_restriction restrictions[] = {
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_NOP},
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_RING_FDS},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_UNREGISTER_RING_FDS},
    };
    unsigned count = sizeof(restrictions) / sizeof(restrictions[0]);
    int fd = ring->uring.ring_fd;

    /* Not all versions of the library have functions for it. */
    if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_RESTRICTIONS, restrictions, count) < 0 ||
        syscall(SYS_io_uring_register, fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        return -errno;
    return 0;
}

/* The kernel has threads for reads that it cannot begin without waiting, by default 4 for each
 * processor. With as many as reads in flight, no read waits for one that hangs. Linux 5.15. */
static void
allow_kernel_threads(struct ring *ring)
{
    unsigned most[2] = {UINT16_MAX, 0}; /* for files; 0: for others, as it is */

    io_uring_register_iowq_max_workers(&ring->uring, most);
}

/* A ring with these flags, and restricted: one that cannot be would do for code injected into
 * the daemon what the sandbox refuses. */
static errint_t
init_uring(struct ring *ring, unsigned flags)
{
    struct io_uring_params params = {.flags = flags | IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED};
    /* One more, for the eventfd. */
    int result = io_uring_queue_init_params(ring->depth + 1, &ring->uring, &params);

    if (result < 0)
        return result;
    allow_kernel_threads(ring);
    result = restrict_uring(ring);
    if (result < 0)
        io_uring_queue_exit(&ring->uring);
    return result;
}

static errint_t
make_uring(struct ring *ring)
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

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && result == -EINVAL; i++)
        result = init_uring(ring, flags[i]);
    if (result < 0)
        return result;
    result = (ring->uring.features & IORING_FEAT_NODROP) ? try_uring(ring) : -ENOSYS;
    if (result < 0) {
        io_uring_queue_exit(&ring->uring);
        return result;
    }
    /* Saves the look-up of the ring at each call; works without. */
    io_uring_register_ring_fd(&ring->uring);
    return 0;
}

/* There is always an entry: prepare() leaves one. */
static void
listen_for_wake(struct ring *ring)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->uring);

    io_uring_prep_read(entry, ring->wake_fd, &ring->woken, sizeof(ring->woken), 0);
    io_uring_sqe_set_data(entry, NULL);
}

static void
prepare(struct ring *ring, struct ring_read *read, uint64_t now)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->uring);

    io_uring_prep_read(entry, read->fd, read->buffer, read->length, read->offset);
    entry->rw_flags = read->flags;
    io_uring_sqe_set_data(entry, read);
    read->started = now;
    read->beside = atomic_fetch_add_explicit(&ring->rings->in_flight, 1, memory_order_relaxed);
    ring->in_flight++;
    read->lane->in_flight++;
    read->lane->others_in_flight += !read->urgent;
}

/* With the lock held: a read that the kernel may be given, an urgent one if there is any; the lanes
 * take turns. */
static struct ring_read *
take_read(struct ring *ring, bool urgent)
{
    struct lane *const last = ring->lanes;
    struct lane *next = last;

    if (!last)
        return NULL;
    do {
        struct ring_lane *lane;
        struct ring_read *read = NULL;

        next = next->next;
        lane = (struct ring_lane *)next;
        if (lane->in_flight >= lane_share(ring->depth, ring->in_flight - lane->in_flight))
            continue;
        if (urgent)
            read = fifo_take(&lane->urgent);
        else if (lane->others.first &&
                 concurrency_allows(&ring->others_at_once, lane->others_in_flight))
            read = fifo_take(&lane->others);
        if (!read)
            continue;
        ring->lanes = next;
        return read;
    } while (next != last);
    return urgent ? take_read(ring, false) : NULL;
}

/* Takes from the queues what the kernel may be given; false when the thread may
 * end. Nothing taken: from now on the next one to come must wake the thread. */
static bool
fill(struct ring *ring)
{
    uint64_t now = 0;
    bool stopping;

    pthread_mutex_lock(&ring->lock);
    while (io_uring_sq_space_left(&ring->uring) > 1) {
        struct ring_read *read = take_read(ring, true);

        if (!read)
            break;
        if (!now)
            now = monotonic_ns();
        prepare(ring, read, now);
    }
    ring->awake = io_uring_sq_ready(&ring->uring) > 0;
    stopping = ring->stopping;
    pthread_mutex_unlock(&ring->lock);
    return !stopping || ring->in_flight > 0;
}

/* The kernel has the read no more, or never had it. Returns how many it still has. */
static unsigned
forget_read(struct ring *ring, struct ring_read *read)
{
    ring->in_flight--;
    read->lane->in_flight--;
    read->lane->others_in_flight -= !read->urgent;
    atomic_fetch_sub(&read->lane->lane.users, 1);
    return atomic_fetch_sub_explicit(&ring->rings->in_flight, 1, memory_order_relaxed) - 1;
}

static void
take_completion(struct ring *ring, struct io_uring_cqe *cqe)
{
    struct ring_read *read = io_uring_cqe_get_data(cqe);
    int result = cqe->res;
    struct concurrency_read ended;
    unsigned others;

    io_uring_cqe_seen(&ring->uring, cqe);
    if (!read) {
        listen_for_wake(ring);
        return;
    }
    read->duration = monotonic_ns() - read->started;
    ended.duration = read->duration;
    ended.beside_first = read->beside;
    others = read->lane->others_in_flight - !read->urgent;
    ended.beside_last = forget_read(ring, read);
    ended.ahead = !read->urgent;
    if (result > 0)
        concurrency_ended(&ring->others_at_once, &ended, others);
    read->complete(read, result);
}

static void
pause_a_moment(void)
{
    struct timespec moment = {.tv_nsec = 1000000};

    nanosleep(&moment, NULL);
}

/* Submits what has been prepared, or sleeps where there is nothing to submit and nothing to take.
 * Fails when that will not be otherwise the next time. */
static errint_t
submit(struct ring *ring)
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
    if ((result != -EAGAIN && result != -EBUSY) || ring->refusals++ == MOST_REFUSALS)
        return result;
    /* What has completed first makes room. */
    if (io_uring_peek_cqe(&ring->uring, &cqe) != 0)
        pause_a_moment();
    return 0;
}

/* The ring has failed. Gives back the reads that the kernel has not been given: those that are
 * queued, and those prepared that it did not take. */
static void
give_back(struct ring *ring)
{
    const struct io_uring_sq *queue = &ring->uring.sq;
    unsigned prepared = io_uring_sq_ready(&ring->uring);
    struct ring_read *read;
    struct fifo back = {0};

    for (unsigned at = queue->sqe_tail - prepared; at != queue->sqe_tail; at++) {
        read = (struct ring_read *)(uintptr_t)queue->sqes[at & queue->ring_mask].user_data;
        if (read) {
            forget_read(ring, read);
            fifo_add(&back, &read->node);
        }
    }
    pthread_mutex_lock(&ring->lock);
    if (ring->lanes) {
        struct lane *next = ring->lanes;

        do {
            struct ring_lane *lane = (struct ring_lane *)next;

            while ((read = fifo_take(&lane->urgent)) || (read = fifo_take(&lane->others)))
                fifo_add(&back, &read->node);
            next = next->next;
        } while (next != ring->lanes);
    }
    pthread_mutex_unlock(&ring->lock);
    while ((read = fifo_take(&back)))
        read->complete(read, -ECANCELED);
}

/* Waits for the reads that the kernel has: until they end it may write to their buffers. */
static void
take_the_rest(struct ring *ring)
{
    struct io_uring_cqe *cqe;

    while (ring->in_flight > 0) {
        if (io_uring_peek_cqe(&ring->uring, &cqe) != 0)
            pause_a_moment();
        else if (io_uring_cqe_get_data(cqe))
            take_completion(ring, cqe);
        else
            io_uring_cqe_seen(&ring->uring, cqe);
    }
}

/* Until the ring is to stop, or fails. */
static void
run(struct ring *ring)
{
    struct io_uring_cqe *cqe;
    errint_t error = 0;
    int none = 0;

    listen_for_wake(ring);
    while (fill(ring) && !(error = submit(ring))) {
        /* One at a time: a callback takes as long as a copy of what was read,
         * and what it frees the kernel should be given at once. */
        if (io_uring_peek_cqe(&ring->uring, &cqe) == 0)
            take_completion(ring, cqe);
    }
    if (!error)
        return;
    if (atomic_compare_exchange_strong(&ring->rings->error, &none, error))
        log_error("io_uring takes no more reads: %s; threads read from now on", strerror(-error));
    give_back(ring);
    take_the_rest(ring);
}

static void *
ring_main(void *arg)
{
    struct ring *ring = arg;
    errint_t result;

    pthread_setname_np(pthread_self(), "fstfs-ring");
    /* Made here because such a ring is for one thread only. */
    result = make_uring(ring);
    pthread_mutex_lock(&ring->lock);
    ring->start_result = result;
    ring->start_ended = true;
    pthread_cond_signal(&ring->started);
    pthread_mutex_unlock(&ring->lock);
    if (result < 0)
        return NULL;
    run(ring);
    io_uring_queue_exit(&ring->uring);
    return NULL;
}

static errint_t
start(struct ring *ring)
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
release(struct ring *ring)
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
    made->depth = depth;
    made->rings = rings;
    concurrency_init(&made->others_at_once, LEAST_SHARE_OF_OTHERS(depth),
                     MOST_SHARE_OF_OTHERS(depth));
    made->wake_fd = eventfd(0, EFD_CLOEXEC);
    result = made->wake_fd < 0 ? -errno : start(made);
    if (result < 0) {
        release(made);
        return reason_set(reason, result, "IoUring", "io_uring is refused: %s", strerror(-result));
    }
    *ring = made;
    return 0;
}

static void
wake(struct ring *ring)
{
    uint64_t one = 1;

    /* The counter cannot overflow: it is read at each wake. */
    while (write(ring->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
}

void
ring_free(struct ring *ring)
{
    if (!ring)
        return;
    pthread_mutex_lock(&ring->lock);
    ring->stopping = true;
    pthread_mutex_unlock(&ring->lock);
    wake(ring);
    pthread_join(ring->thread, NULL);
    release(ring);
}

bool
ring_submit(struct ring *ring, struct ring_read *read, bool urgent)
{
    struct ring_lane *lane;
    bool asleep;

    read->urgent = urgent;
    pthread_mutex_lock(&ring->lock);
    if (atomic_load(&ring->rings->error)) {
        pthread_mutex_unlock(&ring->lock);
        return false;
    }
    lane = (struct ring_lane *)lanes_find(&ring->lanes, read->device, sizeof(*lane));
    if (!lane) {
        pthread_mutex_unlock(&ring->lock);
        return false;
    }
    read->lane = lane;
    atomic_fetch_add(&lane->lane.users, 1);
    fifo_add(urgent ? &lane->urgent : &lane->others, &read->node);
    asleep = !ring->awake;
    ring->awake = true;
    pthread_mutex_unlock(&ring->lock);
    if (asleep)
        wake(ring);
    return true;
}

unsigned
ring_most_ahead(struct ring *ring)
{
    return atomic_load_explicit(&ring->others_at_once.limit, memory_order_relaxed);
}
