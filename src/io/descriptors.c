/* SPDX-License-Identifier: Apache-2.0 */
#include "io/descriptors.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define FEWEST_DESCRIPTORS 2
#define MOST_DESCRIPTORS 4096

/* What hangs on a backing. Guarded by `attach_lock`, but for error_logged. */
struct state {
    struct descriptors *owner;
    struct backing *backing;
    int fd; /* -1: not open */
    unsigned holders; /* of fd */
    atomic_bool error_logged;
    struct state *previous, *next; /* in one of the owner's two lists */
};

/* Guarded by `attach_lock`. */
struct descriptors {
    pthread_cond_t released; /* a descriptor became idle or was closed */
    unsigned most;
    unsigned open; /* descriptors open or about to be */
    struct state idle; /* open and not held; the one used longest ago first */
    struct state others; /* held, or not open */
};

/*
 * One lock for the process and not one for each engine: the last unref of a
 * backing may race with the end of the engine whose state it has, and only a
 * lock that outlives both can say who was first. Held for a few pointers, never
 * over a system call that can wait.
 */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

static void
list_init(struct state *list)
{
    list->previous = list->next = list;
}

static void
list_move(struct state *state, struct state *list)
{
    if (state->next) {
        state->previous->next = state->next;
        state->next->previous = state->previous;
    }
    state->next = list;
    state->previous = list->previous;
    list->previous->next = state;
    list->previous = state;
}

static void
list_remove(struct state *state)
{
    state->previous->next = state->next;
    state->next->previous = state->previous;
}

static unsigned
default_most(void)
{
    struct rlimit limit;
    rlim_t most;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return MOST_DESCRIPTORS;
    /* The rest of the process needs some, too. */
    most = limit.rlim_cur / 2;
    if (most < FEWEST_DESCRIPTORS)
        return FEWEST_DESCRIPTORS;
    return most > MOST_DESCRIPTORS ? MOST_DESCRIPTORS : (unsigned)most;
}

errint_t
descriptors_new(unsigned most, struct descriptors **descriptors)
{
    struct descriptors *made = calloc(1, sizeof(*made));

    if (!made)
        return -ENOMEM;
    pthread_cond_init(&made->released, NULL);
    made->most = most ? most : default_most();
    list_init(&made->idle);
    list_init(&made->others);
    *descriptors = made;
    return 0;
}

/* On the last unref of a backing. Its descriptor is not held: a read holds a
 * reference to the list, and the list to the backing. */
static void
detach(struct backing *backing)
{
    struct state *state;
    int fd = -1;

    pthread_mutex_lock(&attach_lock);
    state = backing->io_state;
    if (state) {
        list_remove(state);
        fd = state->fd;
        if (fd >= 0) {
            state->owner->open--;
            pthread_cond_broadcast(&state->owner->released);
        }
    }
    pthread_mutex_unlock(&attach_lock);
    if (fd >= 0)
        close(fd);
    free(state);
}

static void
let_go(struct state *list)
{
    while (list->next != list) {
        struct state *state = list->next;

        list_remove(state); /* NOLINT(clang-analyzer-unix.Malloc): it does leave */
        if (state->fd >= 0)
            close(state->fd);
        /* io_detach stays: it finds nothing, and may be about to be called. */
        state->backing->io_state = NULL;
        free(state);
    }
}

void
descriptors_free(struct descriptors *descriptors)
{
    if (!descriptors)
        return;
    pthread_mutex_lock(&attach_lock);
    let_go(&descriptors->idle);
    let_go(&descriptors->others);
    pthread_mutex_unlock(&attach_lock);
    pthread_cond_destroy(&descriptors->released);
    free(descriptors);
}

/* With the lock held. NULL: out of memory. */
static struct state *
attach(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state = backing->io_state;

    if (state)
        return state;
    state = calloc(1, sizeof(*state));
    if (!state)
        return NULL;
    state->owner = descriptors;
    state->backing = backing;
    state->fd = -1;
    list_move(state, &descriptors->others);
    backing->io_state = state;
    backing->io_detach = detach;
    return state;
}

static int
hold(struct descriptors *descriptors, struct state *state)
{
    if (state->holders++ == 0)
        list_move(state, &descriptors->others);
    return state->fd;
}

/* With the lock held: takes the descriptor off an idle state, for the caller to
 * close when the lock is let go. */
static int
close_later(struct state *state)
{
    int fd = state->fd;

    state->fd = -1;
    list_move(state, &state->owner->others);
    return fd;
}

/* With the lock held: makes room for one more, and returns the descriptor to
 * close for it, or -1 when there was room. Waits while all are held. */
static int
make_room(struct descriptors *descriptors)
{
    while (descriptors->open >= descriptors->most && descriptors->idle.next == &descriptors->idle)
        pthread_cond_wait(&descriptors->released, &attach_lock);
    if (descriptors->open++ < descriptors->most)
        return -1;
    descriptors->open--;
    return close_later(descriptors->idle.next);
}

static bool
means_another_file(errint_t error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -ENXIO ||
           error == -ESTALE;
}

static int
open_backing(struct backing *backing)
{
    errint_t error;
    int fd;

    do
        fd =
            openat(backing->directory, backing->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return means_another_file(-errno) ? descriptors_stale(backing) : -errno;
    error = descriptors_verify(backing, fd);
    if (error) {
        close(fd);
        return error;
    }
    return fd;
}

/* The process has no descriptor left, whoever used them up: be content with
 * fewer from now on. With the lock held; false where there is nothing to spare. */
static bool
lower_limit(struct descriptors *descriptors)
{
    if (descriptors->open == 0)
        return false;
    descriptors->most = descriptors->open;
    return true;
}

int
descriptors_acquire(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state;
    int fd, surplus;

    pthread_mutex_lock(&attach_lock);
    for (;;) {
        if (atomic_load(&backing->stale)) {
            fd = -ESTALE;
            break;
        }
        state = attach(descriptors, backing);
        fd = state ? state->fd : -ENOMEM;
        if (!state)
            break;
        if (fd >= 0) {
            hold(descriptors, state);
            break;
        }
        surplus = make_room(descriptors);
        pthread_mutex_unlock(&attach_lock);
        if (surplus >= 0)
            close(surplus);
        fd = open_backing(backing);
        pthread_mutex_lock(&attach_lock);
        if (fd >= 0 && state->fd < 0) {
            state->fd = fd;
            hold(descriptors, state);
            break;
        }
        descriptors->open--;
        pthread_cond_broadcast(&descriptors->released);
        if (fd >= 0) {
            /* Another thread was first; take its descriptor. */
            close(fd);
            continue;
        }
        if ((fd == -EMFILE || fd == -ENFILE) && lower_limit(descriptors))
            continue;
        break;
    }
    pthread_mutex_unlock(&attach_lock);
    return fd;
}

void
descriptors_release(struct descriptors *descriptors, struct backing *backing)
{
    struct state *state;
    int fd = -1;

    pthread_mutex_lock(&attach_lock);
    state = backing->io_state;
    if (--state->holders == 0) {
        list_move(state, &descriptors->idle);
        /* Nobody will read it again, and it may keep a removed file alive. */
        if (atomic_load(&backing->stale)) {
            fd = close_later(state);
            descriptors->open--;
        }
        pthread_cond_signal(&descriptors->released);
    }
    pthread_mutex_unlock(&attach_lock);
    if (fd >= 0)
        close(fd);
}

errint_t
descriptors_verify(struct backing *backing, int fd)
{
    struct file_identity now;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return errno == ESTALE ? descriptors_stale(backing) : -errno;
    file_identity_from_stat(&now, &st);
    if (!S_ISREG(st.st_mode) || !file_identity_same_content(&backing->identity, &now))
        return descriptors_stale(backing);
    return 0;
}

errint_t
descriptors_stale(struct backing *backing)
{
    char name[QUOTED_SIZE];

    if (!atomic_exchange(&backing->stale, true))
        log_warning("%s: changed, replaced or removed; readers of the old file get an error",
                    quoted(name, backing->path, strlen(backing->path)));
    return -ESTALE;
}

errint_t
descriptors_failed(struct backing *backing, uint64_t offset, errint_t error)
{
    struct state *state;
    bool logged = false;
    char name[QUOTED_SIZE];

    pthread_mutex_lock(&attach_lock);
    state = backing->io_state;
    if (state)
        logged = atomic_exchange(&state->error_logged, true);
    pthread_mutex_unlock(&attach_lock);
    if (!logged)
        log_error("%s: read at %llu: %s", quoted(name, backing->path, strlen(backing->path)),
                  (unsigned long long)offset, strerror(-error));
    return error;
}

unsigned
descriptors_open(struct descriptors *descriptors)
{
    unsigned open;

    pthread_mutex_lock(&attach_lock);
    open = descriptors->open;
    pthread_mutex_unlock(&attach_lock);
    return open;
}

unsigned
descriptors_most(struct descriptors *descriptors)
{
    unsigned most;

    pthread_mutex_lock(&attach_lock);
    most = descriptors->most;
    pthread_mutex_unlock(&attach_lock);
    return most;
}
