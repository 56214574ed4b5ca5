/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lease.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { IDLE_MS = 5000 }; /* an unused lease is kept for this time */
enum { IDLE_CHECK_MS = 1000 };
enum { MOST_LEASES = 2048, OTHER_DESCRIPTORS = 10 };

struct lease {
    struct list node; /* in leases.held or leases.closing */
    struct backing *backing;
    int fd;
    bool confirmed; /* see lease_confirm() */
    uint64_t idle_since; /* monotonic_ms(); valid if the backing has no users */
};

/*
 * Two threads: the breaker releases leases that the kernel is breaking; the reaper ends idle
 * leases. `lock` is never held across a call that may block, because the breaker needs it. The
 * reaper closes descriptors without the lock: closing the last descriptor of a removed file may
 * take long.
 */
static struct {
    pthread_mutex_t lock; /* guards the rest, and the leases of backings */
    pthread_cond_t wake; /* for the reaper: there are leases or descriptors to close */
    struct list held; /* leases, least recently used first */
    unsigned count; /* open descriptors, including those to be closed */
    unsigned most; /* limit of `count` */
    struct list closing; /* ended leases, whose descriptors are to be closed */
    uint64_t broken, refused; /* see struct lease_counters */
    errint_t refusal;
    lease_ended ended;
    bool started, stopping, keeps_idle;
    bool reaper_sleeps;
    pthread_t breaker, reaper;
} leases = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .held = LIST_INIT(leases.held),
            .closing = LIST_INIT(leases.closing)};

static int
lease_signal(void)
{
    return SIGRTMIN + 3;
}

static struct lease *
lease_of(struct list *node)
{
    return container_of(node, struct lease, node);
}

static void
wake_reaper(void)
{
    if (leases.reaper_sleeps)
        pthread_cond_signal(&leases.wake);
    leases.reaper_sleeps = false;
}

/* Releases the lease; its descriptor is closed later. Called with the lock held, as are all
 * functions of this section. */
static void
lease_end(struct lease *lease)
{
    /* Fails if the kernel has revoked the lease, because this process was stopped for longer than
     * lease-break-time. */
    if (fcntl(lease->fd, F_SETLEASE, F_UNLCK) < 0)
        atomic_store(&lease->backing->stale, true);
    lease->backing->lease = NULL;
    list_remove(&lease->node);
    list_add(&leases.closing, &lease->node);
    wake_reaper();
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

/* Checks all leases, since the descriptor that a signal names may have been reused. */
static void
break_leases(void)
{
    pthread_mutex_lock(&leases.lock);
    list_for_each(node, &leases.held)
    {
        if (!is_unbroken(lease_of(node)))
            lease_break(lease_of(node));
    }
    pthread_mutex_unlock(&leases.lock);
}

static void
lease_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, lease_signal());
    sigaddset(set, SIGIO); /* sent instead if the queue of real-time signals is full */
}

static void *
breaker_run(void *arg)
{
    bool stopping = false;
    const struct timespec pause = {1, 0}; /* in case a signal is lost */
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

/* Ends leases that have been idle since `before` or earlier. The lock is held. */
static void
end_idle_leases(uint64_t before)
{
    list_for_each(node, &leases.held)
    {
        struct lease *lease = lease_of(node);

        if (lease->backing->lease_users > 0 || lease->idle_since > before)
            continue;
        if (lease->confirmed)
            leases.ended(lease->backing, lease->fd, LEASE_IDLE);
        lease_end(lease);
    }
}

/* Closes the descriptors of ended leases. The lock is held; it is released while they are
 * closed. */
static void
close_ended_leases(void)
{
    struct list *first;

    while ((first = list_first(&leases.closing))) {
        struct lease *lease = lease_of(first);

        list_remove(first);
        pthread_mutex_unlock(&leases.lock);
        close(lease->fd);
        free(lease);
        pthread_mutex_lock(&leases.lock);
        leases.count--;
    }
}

static void *
reaper_run(void *arg)
{
    uint64_t now;

    pthread_mutex_lock(&leases.lock);
    while (!leases.stopping) {
        now = monotonic_ms();
        if (now > IDLE_MS && !leases.keeps_idle)
            end_idle_leases(now - IDLE_MS);
        close_ended_leases();
        if (leases.stopping)
            continue;
        leases.reaper_sleeps = true;
        if (leases.count == 0) {
            pthread_cond_wait(&leases.wake, &leases.lock);
        } else {
            condition_wait(&leases.wake, &leases.lock, monotonic_ns() + IDLE_CHECK_MS * 1000000u);
        }
        leases.reaper_sleeps = false;
    }
    pthread_mutex_unlock(&leases.lock);
    return arg;
}

static unsigned
lease_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 4 > MOST_LEASES)
        return MOST_LEASES;
    return limit.rlim_cur / 4 > OTHER_DESCRIPTORS
               ? (unsigned)(limit.rlim_cur / 4) - OTHER_DESCRIPTORS
               : 0;
}

errint_t
lease_start(bool keeps_idle, lease_ended ended)
{
    sigset_t set;
    int error;

    condition_init(&leases.wake);
    leases.most = lease_limit();
    leases.keeps_idle = keeps_idle;
    leases.ended = ended;
    leases.stopping = false;
    lease_signals(&set);
    error = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (!error)
        error = pthread_create(&leases.breaker, NULL, breaker_run, NULL);
    if (error)
        return -error;
    pthread_setname_np(leases.breaker, "fstfs-lease");
    error = pthread_create(&leases.reaper, NULL, reaper_run, NULL);
    if (error) {
        leases.stopping = true;
        pthread_kill(leases.breaker, lease_signal());
        pthread_join(leases.breaker, NULL);
        return -error;
    }
    pthread_setname_np(leases.reaper, "fstfs-idle");
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
    list_for_each(node, &leases.held) lease_end(lease_of(node));
    pthread_cond_signal(&leases.wake);
    pthread_kill(leases.breaker, lease_signal());
    pthread_mutex_unlock(&leases.lock);
    pthread_join(leases.breaker, NULL);
    pthread_join(leases.reaper, NULL);
    pthread_mutex_lock(&leases.lock);
    close_ended_leases();
    pthread_mutex_unlock(&leases.lock);
    pthread_cond_destroy(&leases.wake);
}

void
lease_after_fork(void)
{
    pthread_mutex_init(&leases.lock, NULL);
}

/* ---- leases ---- */

/* Called by the last backing_unref(). */
static void
lease_detach(struct backing *backing)
{
    pthread_mutex_lock(&leases.lock);
    if (backing->lease)
        lease_end(backing->lease);
    pthread_mutex_unlock(&leases.lock);
}

/* Returns the backing's lease or NULL. Ends the lease if the kernel is breaking it. The lock is
 * held. */
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
    /* Does not check whether the kernel is breaking the lease: that would be slow for files of many
     * shards, and reads check it. */
    lease = backing->lease && backing->lease->confirmed ? backing->lease : NULL;
    if (lease) {
        list_remove(&lease->node);
        list_add(&leases.held, &lease->node);
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
        wake_reaper();
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

/* Whether there is room for another lease. If not, ends an idle one, which makes room once it is
 * closed. With the lock held. */
static bool
has_lease_room(void)
{
    if (leases.count < leases.most)
        return true;
    list_for_each(node, &leases.held)
    {
        if (lease_of(node)->backing->lease_users > 0)
            continue;
        /* `ended` is not called: from now on only the time stamps identify the version, as without
         * leases, even where they are inexact. */
        lease_end(lease_of(node));
        break;
    }
    return false;
}

/* F_SETOWN: by default the kernel finds the process by the thread that took the lease, and sends no
 * signal once that thread has ended. */
static errint_t
set_lease(int fd)
{
    if (fcntl(fd, F_SETSIG, lease_signal()) < 0 || fcntl(fd, F_SETOWN, getpid()) < 0 ||
        fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
        return -errno;
    return 0;
}

/* Takes the lease and releases it. With the lock held. */
static errint_t
probe_lease(int fd)
{
    errint_t error = set_lease(fd);

    if (!error)
        fcntl(fd, F_SETLEASE, F_UNLCK);
    return error;
}

/* Takes the lease on a duplicate descriptor, and does not keep it if there is no room for one. The
 * lock is held. */
static errint_t
keep_lease_if_room(struct backing *backing, int fd)
{
    struct lease *lease = has_lease_room() ? calloc(1, sizeof(*lease)) : NULL;
    errint_t error;

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
    list_add(&leases.held, &lease->node);
    leases.count++;
    wake_reaper();
    return 0;
}

errint_t
lease_take(struct backing *backing, int fd)
{
    errint_t error = -EOPNOTSUPP;

    pthread_mutex_lock(&leases.lock);
    if (unbroken_lease(backing)) {
        error = 0;
    } else if (leases.started) {
        error = keep_lease_if_room(backing, fd);
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
