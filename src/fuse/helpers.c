/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/helpers.h"

#include "base/close.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- lives ---- */

/*
 * A life is a mutex in memory that the daemon and a helper share, held by the first thread of one
 * of them as long as that lives. The kernel hands it over when that thread dies. The end of the
 * socket says less: threads that wait on storage after kill -9 keep it open. And
 * PR_SET_PDEATHSIG says nothing of a process that may not send signals (Landlock). NULL: it
 * could not be made.
 */
static pthread_mutex_t *
life_new(void)
{
    pthread_mutex_t *life = mmap(NULL, sizeof(pthread_mutex_t), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;

    if (life == MAP_FAILED)
        return NULL;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(life, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return life;
}

static void
life_free(pthread_mutex_t *life)
{
    if (life)
        munmap(life, sizeof(pthread_mutex_t));
}

bool
helper_has_died(const struct helper *helper)
{
    int error = helper->life ? pthread_mutex_trylock(helper->life) : EBUSY;

    if (error == 0)
        pthread_mutex_unlock(helper->life); /* it has not begun */
    if (error == EOWNERDEAD)
        pthread_mutex_unlock(helper->life); /* ENOTRECOVERABLE from now on */
    return error == EOWNERDEAD || error == ENOTRECOVERABLE;
}

/* ---- processes ---- */

void
helper_close_all_but(int a, int b)
{
    int low = a < b ? a : b, high = a < b ? b : a;

    close_between(3, low - 1);
    close_between(low < 3 ? 3 : low + 1, high - 1);
    close_between(high + 1, INT_MAX);
}

void
helper_begin(const struct helper *helper, const char *name, bool quiet)
{
    int null = quiet ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;

    /* They end with the daemon, whatever their common terminal or service says. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_NAME, name);
    if (helper->life)
        pthread_mutex_lock(helper->life);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
}

errint_t
helper_fork(struct helper *helper)
{
    int ends[2];
    pid_t pid;

    *helper = HELPER_NONE;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    helper->life = life_new();
    pid = fork();
    if (pid < 0) {
        errint_t error = -errno;

        close(ends[0]);
        close(ends[1]);
        life_free(helper->life);
        *helper = HELPER_NONE;
        return error;
    }
    helper->socket = ends[pid ? 0 : 1];
    helper->pid = pid;
    close(ends[pid ? 1 : 0]);
    return 0;
}

void
helper_forget(struct helper *helper)
{
    life_free(helper->life);
    *helper = HELPER_NONE;
}

/* ---- the unmounter ---- */

enum {
    UNMOUNT = 'U',
    FORCE = 'F',
    DEATH_MS = 500, /* a process that was killed has closed its files by then */
    FORCE_MS = 1500,
};

/* The unmounter's own. */
struct death {
    pthread_mutex_t *life;
    void (*abort)(void *arg);
    void *arg;
};

/* Aborts the connection of a daemon that has died and keeps it open. */
static void *
await_death(void *arg)
{
    const struct death *death = arg;
    struct timespec rest = {0, DEATH_MS * 1000000L};

    if (pthread_mutex_lock(death->life) != EOWNERDEAD)
        return NULL;
    nanosleep(&rest, NULL); /* at the end of the socket the process ends */
    death->abort(death->arg);
    _exit(0);
}

errint_t
unmounter_start(void (*unmount)(void *arg), void (*abort)(void *arg), void *arg, bool quiet,
                struct helper *helper)
{
    struct death death = {life_new(), abort, arg};
    errint_t error;
    pthread_t thread;
    ssize_t got;
    char word;

    if (death.life)
        pthread_mutex_lock(death.life); /* for as long as the daemon lives */
    error = helper_fork(helper);
    if (error || helper->pid > 0)
        return error;
    helper_begin(helper, "fstfs-unmount", quiet);
    helper_close_all_but(helper->socket, -1);
    if (death.life)
        pthread_create(&thread, NULL, await_death, &death);
    do
        got = recv(helper->socket, &word, 1, 0);
    while (got < 0 && errno == EINTR);
    if (got == 1 && word == FORCE)
        abort(arg);
    if (got == 1)
        unmount(arg);
    _exit(0);
}

void
unmounter_force(const struct helper *helper)
{
    struct pollfd polled = {.fd = helper->socket, .events = POLLIN};
    char word = FORCE;

    if (helper->socket >= 0 && send(helper->socket, &word, 1, MSG_NOSIGNAL) == 1)
        poll(&polled, 1, FORCE_MS); /* it closes its end when it is done */
}

bool
unmounter_end(struct helper *helper, bool unmount)
{
    char word = UNMOUNT;
    bool told = false;
    int status = 0;

    if (helper->socket < 0)
        return true;
    if (unmount) {
        told = send(helper->socket, &word, 1, MSG_NOSIGNAL) == 1;
        if (!told)
            log_error("cannot unmount: %s; fusermount3 -u does it", strerror(errno));
    }
    close(helper->socket);
    while (waitpid(helper->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (told && WIFSIGNALED(status))
        log_error("cannot unmount: %s; fusermount3 -u does it", strsignal(WTERMSIG(status)));
    helper_forget(helper);
    return told ? !WIFSIGNALED(status) : !unmount;
}

/* ---- the logger ---- */

errint_t
logger_start(void (*give_up)(void *arg), void *arg, struct helper *helper)
{
    pid_t daemon = getpid();
    errint_t error = helper_fork(helper);

    if (error || helper->pid > 0)
        return error;
    helper_begin(helper, "fstfs-log", true);
    helper_close_all_but(helper->socket, -1);
    give_up(arg);
    log_serve(helper->socket, "fstfs", daemon);
    _exit(0);
}
