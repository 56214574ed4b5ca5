/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lease.h"

#include "base/thread.h"
#include "base/timestamp.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* How long a lease that nobody uses is kept. */
enum { IDLE_MS = 5000, TIDY_MS = 1000 };
enum { MOST_LEASES = 2048, OTHER_DESCRIPTORS = 10 };

struct lease {
    struct lease *previous, *next; /* all held, the one used longest ago first */
    struct backing *backing;
    int fd;
    bool confirmed; /* the version was found to be the backing's while it was held */
    uint64_t idle_since; /* where the backing has no users */
};

/*
 * `lock` is held for pointers and for fcntl() calls about leases, which wait for nothing: the
 * breaker must never be kept from giving up a lease. Descriptors are closed without it and
 * by the tidier, since to close the last one of a removed file may take long.
 */
static struct {
    pthread_mutex_t lock; /* guards all below, and the leases of backings */
    pthread_cond_t wake; /* the tidier: there are idle leases, or descriptors to close */
    struct lease held;
    unsigned count, most; /* descriptors, with those to be closed; at most */
    struct lease *closing; /* ended; by `next` */
    uint64_t broken, refused; /* since the start */
    errint_t refusal; /* the last one */
    lease_ended ended;
    bool started, stopping, quiet; /* quiet: the tidier has nothing to do */
    pthread_t breaker, tidier;
} leases = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .held = {.previous = &leases.held, .next = &leases.held}};

static int
lease_signal(void)
{
    return SIGRTMIN + 3;
}

static void
list_remove(struct lease *lease)
{
    lease->previous->next = lease->next;
    lease->next->previous = lease->previous;
}

static void
list_append(struct lease *lease)
{
    lease->next = &leases.held;
    lease->previous = leases.held.previous;
    lease->previous->next = lease;
    leases.held.previous = lease;
}

static void
wake_tidier(void)
{
    if (leases.quiet)
        pthread_cond_signal(&leases.wake);
    leases.quiet = false;
}

/* With the lock held: gives the lease up; its descriptor is closed later. */
static void
lease_end(struct lease *lease)
{
    /* The kernel takes it away from a process that was stopped for lease-break-time. */
    if (fcntl(lease->fd, F_SETLEASE, F_UNLCK) < 0)
        atomic_store(&lease->backing->stale, true);
    lease->backing->lease = NULL;
    list_remove(lease);
    lease->next = leases.closing;
    leases.closing = lease;
    wake_tidier();
}

static void
lease_break(struct lease *lease)
{
    leases.broken++;
    if (lease->confirmed)
        leases.ended(lease->backing, lease->fd, LEASE_BROKEN);
    else
        atomic_store(&lease->backing->stale, true);
    lease_end(lease);
}

static bool
is_unbroken(const struct lease *lease)
{
    return fcntl(lease->fd, F_GETLEASE) == F_RDLCK;
}

/* ---- threads ---- */

/* All are asked: the descriptor that a signal names may be another's by now. */
static void
break_leases(void)
{
    struct lease *next;

    pthread_mutex_lock(&leases.lock);
    for (struct lease *lease = leases.held.next; lease != &leases.held; lease = next) {
        next = lease->next;
        if (!is_unbroken(lease))
            lease_break(lease);
    }
    pthread_mutex_unlock(&leases.lock);
}

static void
lease_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, lease_signal());
    sigaddset(set, SIGIO); /* in place of the other where its queue is full */
}

static void *
break_until_stopped(void *arg)
{
    bool stopping = false;
    const struct timespec pause = {1, 0}; /* in case a signal was lost */
    siginfo_t info;
    sigset_t set;
    int number;

    lease_signals(&set);
    while (!stopping) {
        number = sigtimedwait(&set, &info, &pause);
        if (number > 0 || errno == EAGAIN)
            break_leases();
        pthread_mutex_lock(&leases.lock);
        stopping = leases.stopping;
        pthread_mutex_unlock(&leases.lock);
    }
    return arg;
}

/* With the lock held. */
static void
end_idle(uint64_t before)
{
    struct lease *next;

    for (struct lease *lease = leases.held.next; lease != &leases.held; lease = next) {
        next = lease->next;
        if (lease->backing->lease_users > 0 || lease->idle_since > before)
            continue;
        if (lease->confirmed)
            leases.ended(lease->backing, lease->fd, LEASE_IDLE);
        lease_end(lease);
    }
}

/* With the lock held, which is let go meanwhile. */
static void
close_ended(void)
{
    struct lease *closing = leases.closing, *next;
    unsigned closed = 0;

    leases.closing = NULL;
    pthread_mutex_unlock(&leases.lock);
    for (; closing; closing = next) {
        next = closing->next;
        close(closing->fd);
        free(closing);
        closed++;
    }
    pthread_mutex_lock(&leases.lock);
    leases.count -= closed;
}

static void *
tidy_until_stopped(void *arg)
{
    uint64_t now;

    pthread_mutex_lock(&leases.lock);
    while (!leases.stopping) {
        now = monotonic_ms();
        if (now > IDLE_MS)
            end_idle(now - IDLE_MS);
        close_ended();
        if (leases.closing || leases.stopping)
            continue;
        leases.quiet = true;
        if (leases.count == 0) {
            pthread_cond_wait(&leases.wake, &leases.lock);
        } else {
            condition_wait(&leases.wake, &leases.lock, monotonic_ns() + TIDY_MS * 1000000u);
        }
        leases.quiet = false;
    }
    pthread_mutex_unlock(&leases.lock);
    return arg;
}

static unsigned
default_most(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 4 > MOST_LEASES)
        return MOST_LEASES;
    return limit.rlim_cur / 4 > OTHER_DESCRIPTORS
               ? (unsigned)(limit.rlim_cur / 4) - OTHER_DESCRIPTORS
               : 0;
}

errint_t
lease_start(unsigned most, lease_ended ended)
{
    sigset_t set;
    int error;

    condition_init(&leases.wake);
    leases.most = most ? most : default_most();
    leases.ended = ended;
    leases.stopping = false;
    lease_signals(&set);
    error = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (!error)
        error = pthread_create(&leases.breaker, NULL, break_until_stopped, NULL);
    if (error)
        return -error;
    pthread_setname_np(leases.breaker, "fstfs-lease");
    error = pthread_create(&leases.tidier, NULL, tidy_until_stopped, NULL);
    if (error) {
        leases.stopping = true;
        pthread_kill(leases.breaker, lease_signal());
        pthread_join(leases.breaker, NULL);
        return -error;
    }
    pthread_setname_np(leases.tidier, "fstfs-idle");
    leases.started = true;
    return 0;
}

void
lease_stop(void)
{
    if (!leases.started)
        return;
    pthread_mutex_lock(&leases.lock);
    leases.stopping = true;
    leases.started = false;
    while (leases.held.next != &leases.held)
        lease_end(leases.held.next);
    pthread_cond_signal(&leases.wake);
    pthread_kill(leases.breaker, lease_signal());
    pthread_mutex_unlock(&leases.lock);
    pthread_join(leases.breaker, NULL);
    pthread_join(leases.tidier, NULL);
    pthread_mutex_lock(&leases.lock);
    close_ended();
    pthread_mutex_unlock(&leases.lock);
    pthread_cond_destroy(&leases.wake);
}

/* ---- leases ---- */

/* On the last unref of a backing. */
static void
lease_detach(struct backing *backing)
{
    pthread_mutex_lock(&leases.lock);
    if (backing->lease)
        lease_end(backing->lease);
    pthread_mutex_unlock(&leases.lock);
}

/* With the lock held: the lease, if it is unbroken; else it ends. */
static struct lease *
unbroken_lease(struct backing *backing)
{
    if (backing->lease && !is_unbroken(backing->lease))
        lease_break(backing->lease);
    return backing->lease;
}

bool
lease_use(struct backing *backing)
{
    struct lease *lease;

    pthread_mutex_lock(&leases.lock);
    backing->lease_users++;
    /* Not asked whether it is about to be broken, for a file of many shards: who reads does. */
    lease = backing->lease && backing->lease->confirmed ? backing->lease : NULL;
    if (lease) {
        list_remove(lease);
        list_append(lease);
    }
    pthread_mutex_unlock(&leases.lock);
    return lease != NULL;
}

void
lease_release(struct backing *backing)
{
    pthread_mutex_lock(&leases.lock);
    if (--backing->lease_users == 0 && backing->lease) {
        backing->lease->idle_since = monotonic_ms();
        wake_tidier();
    }
    pthread_mutex_unlock(&leases.lock);
}

bool
lease_holds(struct backing *backing)
{
    bool holds;

    if (!__atomic_load_n(&backing->lease_detach, __ATOMIC_ACQUIRE))
        return false;
    pthread_mutex_lock(&leases.lock);
    holds = unbroken_lease(backing) && backing->lease->confirmed;
    pthread_mutex_unlock(&leases.lock);
    return holds;
}

void
lease_confirm(struct backing *backing)
{
    pthread_mutex_lock(&leases.lock);
    if (unbroken_lease(backing))
        backing->lease->confirmed = true;
    pthread_mutex_unlock(&leases.lock);
}

/* With the lock held: whether there is room for one more. If not, an idle one makes room for
 * the next, when it is closed. */
static bool
make_room(void)
{
    if (leases.count < leases.most)
        return true;
    for (struct lease *lease = leases.held.next; lease != &leases.held; lease = lease->next)
        if (lease->backing->lease_users == 0) {
            /* Not LEASE_IDLE: without leases the version is told by its time stamps. */
            lease_end(lease);
            break;
        }
    return false;
}

static errint_t
set_lease(int fd)
{
    if (fcntl(fd, F_SETSIG, lease_signal()) < 0 || fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
        return -errno;
    return 0;
}

/* With the lock held: takes the lease and gives it up again. */
static errint_t
probe_lease(int fd)
{
    errint_t error = set_lease(fd);

    if (!error)
        fcntl(fd, F_SETLEASE, F_UNLCK);
    return error;
}

/* With the lock held: takes the lease by a descriptor of its own; *kept is false where there
 * is none to be had. */
static errint_t
keep_lease(struct backing *backing, int fd, bool *kept)
{
    struct lease *lease = make_room() ? calloc(1, sizeof(*lease)) : NULL;
    errint_t error;

    *kept = false;
    if (!lease)
        return probe_lease(fd);
    lease->backing = backing;
    lease->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (lease->fd < 0) {
        free(lease);
        return probe_lease(fd);
    }
    error = set_lease(lease->fd);
    if (error) {
        close(lease->fd);
        free(lease);
        return error;
    }
    lease->idle_since = monotonic_ms();
    backing->lease = lease;
    __atomic_store_n(&backing->lease_detach, lease_detach, __ATOMIC_RELEASE);
    list_append(lease);
    leases.count++;
    wake_tidier();
    *kept = true;
    return 0;
}

errint_t
lease_take(struct backing *backing, int fd, bool *kept)
{
    errint_t error = -EOPNOTSUPP;

    *kept = false;
    pthread_mutex_lock(&leases.lock);
    if (unbroken_lease(backing)) {
        *kept = true;
        error = 0;
    } else if (leases.started) {
        error = keep_lease(backing, fd, kept);
        if (error && error != -EAGAIN) {
            leases.refused++;
            leases.refusal = error;
        }
    }
    pthread_mutex_unlock(&leases.lock);
    return error;
}

void
lease_counters(struct lease_counters *counters)
{
    pthread_mutex_lock(&leases.lock);
    *counters = (struct lease_counters){.held = leases.count,
                                        .most = leases.started ? leases.most : 0,
                                        .broken = leases.broken,
                                        .refused = leases.refused,
                                        .refusal = leases.refusal};
    pthread_mutex_unlock(&leases.lock);
}
