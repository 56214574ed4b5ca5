/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/helpers.h"

#include "base/clock.h"
#include "base/close.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- processes ---- */

/*
 * A liveness mutex is a robust mutex in shared memory, by which one process detects the death of
 * another. The first thread of the watched process holds it; when that thread dies, the kernel
 * passes it on (EOWNERDEAD). The end of a socket does not show a death, since threads that wait on
 * storage keep the socket open after kill -9; PR_SET_PDEATHSIG does not work across a Landlock
 * domain. NULL: out of memory; only the end of the socket then shows a death.
 */
static pthread_mutex_t *
liveness_new(void)
{
    pthread_mutex_t *liveness = mmap(NULL, sizeof(pthread_mutex_t), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;

    if (liveness == MAP_FAILED)
        return NULL;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(liveness, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return liveness;
}

static void
liveness_free(pthread_mutex_t *liveness)
{
    if (liveness)
        munmap(liveness, sizeof(pthread_mutex_t));
}

bool
helper_has_died(const struct helper *helper)
{
    int error = helper->liveness ? pthread_mutex_trylock(helper->liveness) : EBUSY;

    /* 0: the helper has not locked it yet. After unlocking, EOWNERDEAD becomes ENOTRECOVERABLE. */
    if (error == 0 || error == EOWNERDEAD)
        pthread_mutex_unlock(helper->liveness);
    return error == EOWNERDEAD || error == ENOTRECOVERABLE;
}

/* In the new process. */
static void
prepare_helper(const struct helper *helper, const char *name, bool quiet, int kept)
{
    int null = quiet ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    int low = kept < helper->socket ? kept : helper->socket;
    int high = kept < helper->socket ? helper->socket : kept;

    /* Also sent to helpers by a terminal or a service manager. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_NAME, name);
    if (helper->liveness)
        pthread_mutex_lock(helper->liveness);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
    /* Most important is the connection to the kernel, which stays open as long as any process has
     * a descriptor of it. */
    close_between(3, low - 1);
    close_between(low < 3 ? 3 : low + 1, high - 1);
    close_between(high + 1, INT_MAX);
}

errint_t
helper_start(const char *name, bool quiet, int kept, helper_main *run, void *arg,
             struct helper *helper)
{
    struct helper started = {.liveness = liveness_new()};
    errint_t error;
    int ends[2];

    *helper = HELPER_NONE;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
        error = -errno;
        goto fail;
    }
    started.pid = fork();
    if (started.pid < 0) {
        error = -errno;
        close(ends[0]);
        close(ends[1]);
        goto fail;
    }
    started.socket = ends[started.pid ? 0 : 1];
    close(ends[started.pid ? 1 : 0]);
    if (started.pid == 0) {
        prepare_helper(&started, name, quiet, kept);
        run(started.socket, arg);
        _exit(0);
    }
    *helper = started;
    return 0;

fail:
    liveness_free(started.liveness);
    return error;
}

void
helper_close(struct helper *helper)
{
    if (helper->socket < 0)
        return;
    close(helper->socket);
    liveness_free(helper->liveness);
    *helper = HELPER_NONE;
}

/* ---- the unmounter ---- */

enum {
    MESSAGE_UNMOUNT = 'U',
    MESSAGE_FORCE = 'F',
    DEATH_MS = 500, /* time for a killed process to close its files */
    END_MS = 10000, /* limit of unmounting, which does not wait for storage */
    END_STEP_MS = 2,
};

struct unmounter {
    pthread_mutex_t *daemon_liveness;
    errint_t (*unmount)(void *arg);
    void (*abort)(void *arg);
    void *arg;
};

/* Aborts the connection if the daemon has died and its threads keep the connection open. */
static void *
abort_after_death(void *arg)
{
    const struct unmounter *unmounter = arg;
    struct timespec rest = {0, DEATH_MS * 1000000L};

    if (pthread_mutex_lock(unmounter->daemon_liveness) != EOWNERDEAD)
        return NULL;
    nanosleep(&rest, NULL); /* if the daemon's socket closes meanwhile, this process ends */
    unmounter->abort(unmounter->arg);
    _exit(0);
}

static void
run_unmounter(int socket, void *arg)
{
    const struct unmounter *unmounter = arg;
    pthread_t thread;
    ssize_t got;
    char message;

    if (unmounter->daemon_liveness)
        pthread_create(&thread, NULL, abort_after_death, arg);
    do
        got = recv(socket, &message, 1, 0);
    while (got < 0 && errno == EINTR);
    if (got == 1 && message == MESSAGE_FORCE)
        unmounter->abort(unmounter->arg);
    if (got == 1)
        _exit(-unmounter->unmount(unmounter->arg)); /* no errno is over 255 */
}

errint_t
unmounter_start(errint_t (*unmount)(void *arg), void (*abort)(void *arg), void *arg, bool quiet,
                struct helper *helper)
{
    struct unmounter unmounter = {liveness_new(), unmount, abort, arg};

    if (unmounter.daemon_liveness)
        pthread_mutex_lock(unmounter.daemon_liveness); /* held until this thread dies */
    return helper_start("fstfs-unmount", quiet, -1, run_unmounter, &unmounter, helper);
}

/* Waits up to END_MS for the unmounter to exit. Returns the error of unmounting, or -ETIMEDOUT,
 * also if it has been stopped. */
static errint_t
await_unmounter(pid_t pid)
{
    uint64_t until = monotonic_ms() + END_MS;
    const struct timespec step = {0, END_STEP_MS * 1000000L};
    int status = 0;
    pid_t ended;

    while ((ended = waitpid(pid, &status, WNOHANG | WUNTRACED)) != pid) {
        if (ended < 0 && errno != EINTR)
            return -errno;
        if (monotonic_ms() >= until)
            return -ETIMEDOUT;
        nanosleep(&step, NULL);
    }
    if (WIFSTOPPED(status))
        return -ETIMEDOUT;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EPIPE;
}

errint_t
unmounter_force(const struct helper *helper)
{
    char message = MESSAGE_FORCE;

    if (helper->socket < 0 || send(helper->socket, &message, 1, MSG_NOSIGNAL) != 1)
        return -EPIPE;
    return await_unmounter(helper->pid);
}

errint_t
unmounter_end(struct helper *helper, bool unmount)
{
    char message = MESSAGE_UNMOUNT;
    pid_t pid = helper->pid;
    errint_t error = 0, sent = 0;

    if (unmount && send(helper->socket, &message, 1, MSG_NOSIGNAL) < 0)
        sent = -errno;
    helper_close(helper);
    error = await_unmounter(pid);
    if (!unmount)
        return 0;
    return sent ? sent : error;
}

/* ---- the logger ---- */

struct logger {
    void (*drop)(void *arg);
    void *arg;
    pid_t daemon;
};

static void
run_logger(int socket, void *arg)
{
    const struct logger *logger = arg;

    logger->drop(logger->arg);
    log_serve(socket, "fstfs", logger->daemon);
}

errint_t
logger_start(void (*drop)(void *arg), void *arg, struct helper *helper)
{
    struct logger logger = {drop, arg, getpid()};

    return helper_start("fstfs-log", true, -1, run_logger, &logger, helper);
}
