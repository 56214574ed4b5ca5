/* SPDX-License-Identifier: Apache-2.0 */
#include "io/descriptors.h"

#include "base/file_system.h"
#include "base/list.h"
#include "base/log.h"
#include "base/open.h"
#include "base/version.h"
#include "io/lanes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define FEWEST_DESCRIPTORS 2
#define MOST_DESCRIPTORS 4096
#define DIRECT_ALIGNMENT 4096
#define CLOSED_AT_ONCE 64

/* One descriptor of a backing. Guarded by `attach_lock`. */
struct slot {
    struct state *state;
    int fd; /* -1: not open */
    unsigned holders; /* of fd */
    bool opening; /* a thread is opening it... */
    struct fifo jobs; /* ...and these jobs wait for that */
    bool verifying; /* a job that verifies the version is queued or runs... */
    struct fifo unverified; /* ...and these jobs wait for the next one */
    unsigned round; /* owner->round when the descriptor became idle */
    struct list node; /* in owner->idle */
};

/* The descriptors of one file system. `users`: backings, and descriptors that are being closed. */
struct descriptor_lane {
    struct lane lane;
    unsigned held; /* slots that are held or about to be, and descriptors that are being closed */
};

/* A descriptor that a worker closes. */
struct closing {
    struct job job;
    int fd;
    struct descriptors *owner;
    struct descriptor_lane *lane;
};

/* backing->io_state. Guarded by `attach_lock`, except the atomics and attachment.data. */
struct state {
    struct descriptors *owner;
    struct backing *backing;
    struct descriptor_lane *lane;
    struct slot slots[ACCESS_COUNT];
    struct attachment attachment;
    atomic_bool direct_refused;
    atomic_bool is_local; /* see descriptors_may_wait() */
    atomic_bool is_logged; /* a message about the backing was logged; there is only one */
    struct list node; /* in owner->states */
};

/* Guarded by `attach_lock`. */
struct descriptors {
    struct workers *workers; /* see descriptors_use_workers() */
    pthread_cond_t released; /* a descriptor became idle or was closed */
    unsigned most;
    unsigned open; /* descriptors open or about to be */
    unsigned held; /* of all lanes */
    struct list lanes;
    unsigned round; /* calls of descriptors_tidy() */
    bool direct; /* use O_DIRECT */
    const char *direct_refused; /* static text */
    struct list idle; /* open slots without holders, the least recently used first */
    struct list states;
};

/*
 * One lock for the process, not one for each engine, since the last unref of a backing may race
 * with descriptors_free(). Not held over system calls that may block. The locks of the engine (by
 * `forget`) and of the workers are taken inside it, so it must not be taken inside those.
 */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

static void
idle_slot_add(struct slot *slot)
{
    slot->round = slot->state->owner->round;
    list_add(&slot->state->owner->idle, &slot->node);
}

static unsigned
default_descriptor_limit(void)
{
    struct rlimit limit;
    rlim_t most;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return MOST_DESCRIPTORS;
    /* The rest is for other parts of the process. */
    most = limit.rlim_cur / 2;
    if (most < FEWEST_DESCRIPTORS)
        return FEWEST_DESCRIPTORS;
    return most > MOST_DESCRIPTORS ? MOST_DESCRIPTORS : (unsigned)most;
}

errint_t
descriptors_new(unsigned most, bool direct, struct descriptors **descriptors)
{
    struct descriptors *made = calloc(1, sizeof(*made));

    if (!made)
        return -ENOMEM;
    pthread_cond_init(&made->released, NULL);
    made->most = most ? most : default_descriptor_limit();
    made->direct = direct;
    list_init(&made->lanes);
    list_init(&made->idle);
    list_init(&made->states);
    *descriptors = made;
    return 0;
}

void
descriptors_use_workers(struct descriptors *descriptors, struct workers *workers)
{
    pthread_mutex_lock(&attach_lock);
    descriptors->workers = workers;
    pthread_mutex_unlock(&attach_lock);
}

void
descriptors_after_fork(void)
{
    pthread_mutex_init(&attach_lock, NULL);
}

static void
count_held(struct descriptors *owner, struct descriptor_lane *lane, int change)
{
    lane->held += (unsigned)change;
    owner->held += (unsigned)change;
}

static void
close_by_worker(struct job *job)
{
    struct closing *closing = (struct closing *)job;

    close(closing->fd);
    pthread_mutex_lock(&attach_lock);
    count_held(closing->owner, closing->lane, -1);
    atomic_fetch_sub(&closing->lane->lane.users, 1);
    pthread_cond_broadcast(&closing->owner->released);
    pthread_mutex_unlock(&attach_lock);
    free(closing);
}

/* With the lock held: removes the descriptor of an idle slot. Returns it, and the caller closes it
 * without the lock. If close() may wait for a server and the caller may not (`may_wait`), a worker
 * closes it, and the result is -1. */
static int
slot_take_descriptor(struct slot *slot, bool may_wait)
{
    struct state *state = slot->state;
    struct descriptors *owner = state->owner;
    struct closing *closing = NULL;
    int fd = slot->fd;

    slot->fd = -1;
    if (list_is_linked(&slot->node))
        list_remove(&slot->node);
    owner->open--;
    if (!may_wait && owner->workers && !atomic_load(&state->is_local))
        closing = malloc(sizeof(*closing));
    if (!closing)
        return fd;
    /* In a lane of its own, since all workers of the file system's lane may be waiting for it. */
    *closing =
        (struct closing){.job = {.run = close_by_worker, .lane_key = ~backing_lane(state->backing)},
                         .fd = fd,
                         .owner = owner,
                         .lane = state->lane};
    count_held(owner, state->lane, 1);
    atomic_fetch_add(&state->lane->lane.users, 1);
    workers_add(owner->workers, &closing->job, true);
    return -1;
}

/* With the lock held: detaches the state from its backing. The caller then calls state_free(). No
 * descriptor is held, since a read holds a reference to the backing. */
static void
state_detach(struct state *state)
{
    list_remove(&state->node);
    for (int i = 0; i < ACCESS_COUNT; i++)
        if (state->slots[i].fd >= 0)
            state->slots[i].fd = slot_take_descriptor(&state->slots[i], false);
    atomic_fetch_sub(&state->lane->lane.users, 1);
    pthread_cond_broadcast(&state->owner->released);
    if (state->attachment.forget)
        state->attachment.forget(state->attachment.data);
    /* backing->io_detach stays: it may be about to be called, and then finds no state. */
    __atomic_store_n(&state->backing->io_state, NULL, __ATOMIC_RELEASE);
}

static void
state_free(struct state *state)
{
    for (int i = 0; i < ACCESS_COUNT; i++)
        if (state->slots[i].fd >= 0)
            close(state->slots[i].fd);
    free(state);
}

/* backing->io_detach: called at the last unref. */
static void
backing_detach_state(struct backing *backing)
{
    struct state *state;

    pthread_mutex_lock(&attach_lock);
    state = backing->io_state;
    if (state)
        state_detach(state);
    pthread_mutex_unlock(&attach_lock);
    if (state)
        state_free(state);
}

void
descriptors_free(struct descriptors *descriptors)
{
    struct list detached = LIST_INIT(detached);

    if (!descriptors)
        return;
    pthread_mutex_lock(&attach_lock);
    list_for_each(node, &descriptors->states)
    {
        state_detach(container_of(node, struct state, node));
        list_add(&detached, node);
    }
    pthread_mutex_unlock(&attach_lock);
    list_for_each(node, &detached)
    {
        state_free(container_of(node, struct state, node));
    }
    pthread_cond_destroy(&descriptors->released);
    lanes_free(&descriptors->lanes);
    free(descriptors);
}

/* With the lock held. NULL: out of memory. */
static struct state *
state_attach(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state = backing->io_state;

    if (state)
        return state;
    state = calloc(1, sizeof(*state));
    if (!state)
        return NULL;
    state->lane = (struct descriptor_lane *)lanes_find(&descriptors->lanes, backing_lane(backing),
                                                       sizeof(*state->lane));
    if (!state->lane) {
        free(state);
        return NULL;
    }
    atomic_fetch_add(&state->lane->lane.users, 1);
    state->owner = descriptors;
    state->backing = backing;
    for (int i = 0; i < ACCESS_COUNT; i++) {
        state->slots[i].state = state;
        state->slots[i].fd = -1;
    }
    atomic_init(&state->direct_refused, !descriptors->direct);
    list_add(&descriptors->states, &state->node);
    backing->io_detach = backing_detach_state;
    __atomic_store_n(&backing->io_state, state, __ATOMIC_RELEASE);
    return state;
}

/* Without the lock: the state remains valid as long as the caller has a reference to the backing.
 * NULL: out of memory. */
static struct state *
state_of(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state = __atomic_load_n(&backing->io_state, __ATOMIC_ACQUIRE);

    if (state)
        return state;
    pthread_mutex_lock(&attach_lock);
    state = state_attach(descriptors, backing);
    pthread_mutex_unlock(&attach_lock);
    return state;
}

struct attachment *
descriptors_attachment(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state = state_of(descriptors, backing);

    return state ? &state->attachment : NULL;
}

enum access
descriptors_access(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state = state_of(descriptors, backing);

    return state && atomic_load(&state->direct_refused) ? ACCESS_BUFFERED : ACCESS_DIRECT;
}

/* With the lock held: whether the lane may hold one more descriptor: three quarters of those that
 * other lanes do not hold, and at least one. So reads that hang leave some to the others. */
static bool
lane_has_room(const struct state *state)
{
    unsigned held = state->lane->held, others = state->owner->held - held;
    unsigned left = state->owner->most > others ? state->owner->most - others : 0;

    return held == 0 || held + 1 <= left - left / 4;
}

static int
slot_hold(struct slot *slot)
{
    if (slot->holders++ == 0) {
        if (list_is_linked(&slot->node))
            list_remove(&slot->node);
        count_held(slot->state->owner, slot->state->lane, 1);
    }
    return slot->fd;
}

/* With the lock held: makes room for one more descriptor, and counts it in `open`. Waits while all
 * are held, unless the lane holds none. If the process is out of descriptors, waits until one is
 * idle or none is open. Returns the descriptor that the caller must close, or -1. */
static int
descriptors_make_room(struct descriptors *descriptors, const struct descriptor_lane *lane,
                      bool out_of_descriptors)
{
    unsigned most = out_of_descriptors ? 1 : descriptors->most;
    struct list *idle;
    int fd = -1;

    while (descriptors->open >= most && !list_first(&descriptors->idle) &&
           (out_of_descriptors || lane->held > 0))
        pthread_cond_wait(&descriptors->released, &attach_lock);
    idle = list_first(&descriptors->idle);
    /* The caller may wait for its own file system. It must wait if the process is out of
     * descriptors. */
    if (descriptors->open >= most && idle) {
        struct slot *evicted = container_of(idle, struct slot, node);

        fd = slot_take_descriptor(evicted, evicted->state->lane == lane || out_of_descriptors);
    }
    descriptors->open++;
    return fd;
}

static bool
is_other_version(errint_t error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -ENXIO ||
           error == -ESTALE || error == -EREMOTE;
}

/* Why direct reads of this file are impossible with an alignment of 4096 bytes; NULL: they may be
 * possible. */
static const char *
direct_refusal(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx stx;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) < 0 || !(stx.stx_mask & STATX_DIOALIGN))
        return NULL;
    if (stx.stx_dio_offset_align == 0)
        return "the file system has no direct reads for the file";
    if (stx.stx_dio_offset_align > DIRECT_ALIGNMENT || stx.stx_dio_mem_align > DIRECT_ALIGNMENT)
        return "direct reads need an alignment of more than 4096 bytes";
#endif
    return NULL;
}

static errint_t
set_direct(struct descriptors *descriptors, struct backing *backing, int fd)
{
    const char *why = direct_refusal(fd);

    if (!why && fcntl(fd, F_SETFL, O_DIRECT) < 0)
        why = "the file system refuses O_DIRECT";
    if (!why)
        return 0;
    descriptors_refuse_direct(descriptors, backing, why);
    return -EOPNOTSUPP;
}

static errint_t
set_buffered(int fd)
{
    /* The engine prefetches, so the kernel's readahead is turned off. O_NONBLOCK must be cleared:
     * io_uring honors it on regular files, too. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return fcntl(fd, F_SETFL, 0) < 0 ? -errno : 0;
}

/* O_NONBLOCK: the path may now refer to a FIFO. O_DIRECT is set once the version has been verified.
 */
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

/* Verifies `fd`, which may be a negative errno. Returns it, or closes it and returns the error if
 * it is not of the backing's version. */
static int
descriptor_verified(struct backing *backing, int fd)
{
    errint_t error = fd < 0 ? fd : descriptors_verify(backing, fd);

    if (fd >= 0 && error < 0)
        close(fd);
    return error < 0 ? error : fd;
}

int
descriptors_fresh(struct backing *backing)
{
    /* If the path is redirected to storage that hangs, that must not block this lane. */
    uint64_t mount = atomic_load(&backing->crossed_mount) ? 0 : backing->identity.mount;
    int fd = open_at_mount(backing->directory, backing->path, OPEN_FLAGS, mount, NULL);

    if (fd < 0 && is_other_version(fd))
        return descriptors_stale(backing);
    return descriptor_verified(backing, fd);
}

/*
 * Caches the file's extent map. Otherwise ext4 and f2fs read it while a read is submitted, even one
 * that must not block, and a device that hangs would block the thread of a ring, and with it the
 * reads of all file systems.
 */
static void
cache_extents(int fd)
{
    struct fiemap map = {.fm_length = 1, .fm_flags = FIEMAP_FLAG_CACHE};

    ioctl(fd, FS_IOC_FIEMAP, &map); /* optional */
}

/* Whether submitting a read of the file, fstat(2) and close(2) do not wait for a server. Called for
 * a new descriptor, on a thread that may wait. */
static bool
learn_file_system(int fd)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) < 0)
        return false;
    if ((unsigned long)fs.f_type == EXT4_SUPER_MAGIC ||
        (unsigned long)fs.f_type == F2FS_SUPER_MAGIC)
        cache_extents(fd);
    return file_system_is_local(&fs);
}

bool
descriptors_may_wait(struct descriptors *descriptors, struct backing *backing)
{
    const struct state *state = state_of(descriptors, backing);

    return !state || !atomic_load_explicit(&state->is_local, memory_order_relaxed);
}

/* `other`: a held descriptor for the other access, or -1. */
static int
open_backing(struct descriptors *descriptors, struct backing *backing, enum access access,
             int other)
{
    struct state *state = state_of(descriptors, backing);
    int fd = other >= 0 ? descriptor_verified(backing, open_again(other, OPEN_FLAGS)) : -EBADF;
    errint_t error;

    if (fd < 0)
        fd = descriptors_fresh(backing);
    if (fd < 0)
        return fd;
    if (learn_file_system(fd))
        atomic_store(&state->is_local, true);
    error = access == ACCESS_DIRECT ? set_direct(descriptors, backing, fd) : set_buffered(fd);
    if (error < 0) {
        close(fd);
        return error;
    }
    return fd;
}

/* With the lock held: an open descriptor or a known error; -EAGAIN: neither. */
static int
slot_try(struct state *state, enum access access)
{
    if (atomic_load(&state->backing->stale))
        return -ESTALE;
    if (access == ACCESS_DIRECT && atomic_load(&state->direct_refused))
        return -EOPNOTSUPP;
    if (state->slots[access].fd < 0 || (state->slots[access].holders == 0 && !lane_has_room(state)))
        return -EAGAIN;
    return slot_hold(&state->slots[access]);
}

int
descriptors_try(struct descriptors *descriptors, struct backing *backing, enum access access)
{
    struct state *state = state_of(descriptors, backing);
    int fd;

    if (!state)
        return -ENOMEM;
    pthread_mutex_lock(&attach_lock);
    fd = slot_try(state, access);
    pthread_mutex_unlock(&attach_lock);
    return fd == -ESTALE ? descriptors_stale(backing) : fd;
}

/* With the lock held. */
static void
slot_release(struct slot *slot)
{
    if (--slot->holders > 0)
        return;
    count_held(slot->state->owner, slot->state->lane, -1);
    idle_slot_add(slot);
    pthread_cond_broadcast(&slot->state->owner->released);
}

int
descriptors_acquire(struct descriptors *descriptors, struct backing *backing, enum access access)
{
    struct state *state = state_of(descriptors, backing);
    bool out_of_descriptors = false;
    int fd, surplus, other;

    if (!state)
        return -ENOMEM;
    pthread_mutex_lock(&attach_lock);
    while ((fd = slot_try(state, access)) == -EAGAIN) {
        if (!lane_has_room(state)) {
            pthread_cond_wait(&descriptors->released, &attach_lock);
            continue;
        }
        surplus = descriptors_make_room(descriptors, state->lane, out_of_descriptors);
        count_held(descriptors, state->lane, 1);
        other = state->slots[!access].fd >= 0 ? slot_hold(&state->slots[!access]) : -1;
        pthread_mutex_unlock(&attach_lock);
        if (surplus >= 0)
            close(surplus);
        fd = open_backing(descriptors, backing, access, other);
        pthread_mutex_lock(&attach_lock);
        if (other >= 0)
            slot_release(&state->slots[!access]);
        count_held(descriptors, state->lane, -1);
        if (fd >= 0 && state->slots[access].fd < 0) {
            state->slots[access].fd = fd;
            fd = slot_hold(&state->slots[access]);
            break;
        }
        if (fd >= 0) { /* another thread was first: use its descriptor */
            pthread_mutex_unlock(&attach_lock);
            close(fd);
            pthread_mutex_lock(&attach_lock);
        }
        descriptors->open--;
        pthread_cond_broadcast(&descriptors->released);
        /* The process is out of descriptors: close one of these and try again. */
        out_of_descriptors = error_is_no_descriptor(fd);
        if (fd < 0 && (!out_of_descriptors || descriptors->open == 0))
            break;
    }
    pthread_mutex_unlock(&attach_lock);
    return fd == -ESTALE ? descriptors_stale(backing) : fd;
}

void
descriptors_release(struct descriptors *descriptors, struct backing *backing, enum access access)
{
    struct state *state = state_of(descriptors, backing);

    pthread_mutex_lock(&attach_lock);
    slot_release(&state->slots[access]);
    pthread_mutex_unlock(&attach_lock);
}

bool
descriptors_may_acquire(struct descriptors *descriptors, struct backing *backing,
                        enum access access, struct job *job)
{
    struct state *state = state_of(descriptors, backing);
    struct slot *slot;
    bool is_opening;

    if (!state)
        return true; /* descriptors_acquire() then returns -ENOMEM */
    slot = &state->slots[access];
    pthread_mutex_lock(&attach_lock);
    is_opening = slot->opening && slot->fd < 0;
    if (is_opening)
        fifo_add(&slot->jobs, &job->node);
    slot->opening = true;
    pthread_mutex_unlock(&attach_lock);
    return !is_opening;
}

struct fifo
descriptors_acquired(struct descriptors *descriptors, struct backing *backing, enum access access)
{
    struct state *state = state_of(descriptors, backing);
    struct slot *slot;
    struct fifo jobs;

    if (!state)
        return (struct fifo){0};
    slot = &state->slots[access];
    pthread_mutex_lock(&attach_lock);
    jobs = fifo_take_all(&slot->jobs);
    slot->opening = false;
    pthread_mutex_unlock(&attach_lock);
    return jobs;
}

/* Of a backing that was read, and so has a state. */
static struct slot *
slot_of(const struct backing *backing, enum access access)
{
    struct state *state = __atomic_load_n(&backing->io_state, __ATOMIC_ACQUIRE);

    return &state->slots[access];
}

bool
descriptors_may_verify(struct backing *backing, enum access access, struct job *job)
{
    struct slot *slot = slot_of(backing, access);
    bool is_verifying;

    pthread_mutex_lock(&attach_lock);
    is_verifying = slot->verifying;
    if (is_verifying)
        fifo_add(&slot->unverified, &job->node);
    slot->verifying = true;
    pthread_mutex_unlock(&attach_lock);
    return !is_verifying;
}

struct fifo
descriptors_begin_verify(struct backing *backing, enum access access)
{
    struct slot *slot = slot_of(backing, access);
    struct fifo jobs;

    pthread_mutex_lock(&attach_lock);
    jobs = fifo_take_all(&slot->unverified);
    pthread_mutex_unlock(&attach_lock);
    return jobs;
}

struct job *
descriptors_end_verify(struct backing *backing, enum access access)
{
    struct slot *slot = slot_of(backing, access);
    struct job *next;

    pthread_mutex_lock(&attach_lock);
    next = fifo_take(&slot->unverified);
    slot->verifying = next != NULL;
    pthread_mutex_unlock(&attach_lock);
    return next;
}

static bool
slot_is_unneeded(const struct slot *slot)
{
    struct backing *backing = slot->state->backing;

    return atomic_load(&backing->stale) ||
           (atomic_load(&backing->readers) == 0 && slot->round != slot->state->owner->round);
}

unsigned
descriptors_tidy(struct descriptors *descriptors)
{
    int closing[CLOSED_AT_ONCE];
    unsigned count, open;

    do {
        count = 0;
        pthread_mutex_lock(&attach_lock);
        list_for_each(node, &descriptors->idle)
        {
            struct slot *slot = container_of(node, struct slot, node);

            if (count == CLOSED_AT_ONCE)
                break;
            if (slot_is_unneeded(slot))
                closing[count++] = slot_take_descriptor(slot, false);
        }
        open = descriptors->open;
        if (count < CLOSED_AT_ONCE)
            descriptors->round++;
        pthread_cond_broadcast(&descriptors->released);
        pthread_mutex_unlock(&attach_lock);
        for (unsigned i = 0; i < count; i++)
            if (closing[i] >= 0)
                close(closing[i]);
    } while (count == CLOSED_AT_ONCE);
    return open;
}

void
descriptors_refuse_direct(struct descriptors *descriptors, struct backing *backing, const char *why)
{
    struct state *state = state_of(descriptors, backing);

    atomic_store(&state->direct_refused, true);
    pthread_mutex_lock(&attach_lock);
    if (!descriptors->direct_refused)
        descriptors->direct_refused = why;
    pthread_mutex_unlock(&attach_lock);
}

errint_t
descriptors_verify(struct backing *backing, int fd)
{
    errint_t result = version_verify(backing, fd);

    return result < 0 && is_other_version(result) ? descriptors_stale(backing) : result;
}

errint_t
descriptors_stale(struct backing *backing)
{
    struct state *state = __atomic_load_n(&backing->io_state, __ATOMIC_ACQUIRE);
    char name[QUOTED_SIZE];
    bool was_stale = atomic_exchange(&backing->stale, true);

    if (state ? !atomic_exchange(&state->is_logged, true) : !was_stale)
        log_warning("%s: changed, replaced or removed; readers of the old file get an error",
                    quoted(name, backing->path, strlen(backing->path)));
    return -ESTALE;
}

errint_t
descriptors_failed(struct descriptors *descriptors, struct backing *backing, uint64_t offset,
                   errint_t error)
{
    struct state *state = state_of(descriptors, backing);
    char name[QUOTED_SIZE];

    if (!state || !atomic_exchange(&state->is_logged, true))
        log_error("%s: read at %llu: %s", quoted(name, backing->path, strlen(backing->path)),
                  (unsigned long long)offset, strerror(-error));
    return error;
}

struct descriptors_state
descriptors_state(struct descriptors *descriptors)
{
    struct descriptors_state state;

    pthread_mutex_lock(&attach_lock);
    state = (struct descriptors_state){descriptors->open, descriptors->most,
                                       descriptors->direct_refused};
    pthread_mutex_unlock(&attach_lock);
    return state;
}
