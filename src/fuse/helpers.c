/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/helpers.h"

#include "base/log.h"
#include "base/open.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436 /* Linux 5.9, the same on all machines */
#endif

/* ---- processes ---- */

static void
close_between(int first, int last)
{
    if (first <= last)
        syscall(SYS_close_range, (unsigned)first, (unsigned)last, 0);
}

/* Leaves nothing open but the standard streams, `a` and `b` (-1: none). Above all
 * not the mount's connection: the kernel holds it for alive as long as it is open. */
static void
close_all_but(int a, int b)
{
    int low = a < b ? a : b, high = a < b ? b : a;

    close_between(3, low - 1);
    close_between(low < 3 ? 3 : low + 1, high - 1);
    close_between(high + 1, INT_MAX);
}

static void
begin(const char *name, bool quiet)
{
    int null = quiet ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;

    /* They end with the daemon, whatever their common terminal or service says. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_NAME, name);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
}

/* As fork(2): 0 in the new process, its own end in helper->socket. */
static errint_t
start(struct helper *helper)
{
    int ends[2];
    pid_t pid;

    *helper = HELPER_NONE;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    pid = fork();
    if (pid < 0) {
        errint_t error = -errno;

        close(ends[0]);
        close(ends[1]);
        return error;
    }
    helper->socket = ends[pid ? 0 : 1];
    helper->pid = pid;
    close(ends[pid ? 1 : 0]);
    return 0;
}

/* ---- the unmounter ---- */

errint_t
unmounter_start(void (*unmount)(void *arg), void *arg, bool quiet, struct helper *helper)
{
    errint_t error = start(helper);
    ssize_t got;
    char word;

    if (error || helper->pid > 0)
        return error;
    begin("fstfs-unmount", quiet);
    close_all_but(helper->socket, -1);
    do
        got = recv(helper->socket, &word, 1, 0);
    while (got < 0 && errno == EINTR);
    if (got == 1)
        unmount(arg);
    _exit(0);
}

void
unmounter_end(struct helper *helper, bool unmount)
{
    bool told = false;
    int status = 0;

    if (helper->socket < 0)
        return;
    if (unmount) {
        told = send(helper->socket, "U", 1, MSG_NOSIGNAL) == 1;
        if (!told)
            log_error("cannot unmount: %s; fusermount3 -u does it", strerror(errno));
    }
    close(helper->socket);
    while (waitpid(helper->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (told && WIFSIGNALED(status))
        log_error("cannot unmount: %s; fusermount3 -u does it", strsignal(WTERMSIG(status)));
    *helper = HELPER_NONE;
}

/* ---- the opener ---- */

/* What is asked; a socket for the answer comes with it. */
struct question {
    int flags;
    char path[PATH_MAX];
};

/* One file descriptor beside the bytes of a message. */
union passed {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

/* `fd` -1: none. */
static ssize_t
send_with(int socket, const void *bytes, size_t size, int fd)
{
    struct iovec vector = {(void *)(uintptr_t)bytes, size};
    union passed passed = {{0}};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct cmsghdr *control;
    ssize_t sent;

    if (fd >= 0) {
        message.msg_control = &passed;
        message.msg_controllen = sizeof(passed);
        control = CMSG_FIRSTHDR(&message);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(control), &fd, sizeof(fd));
    }
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static ssize_t
receive_with(int socket, void *bytes, size_t size, int *fd)
{
    struct iovec vector = {bytes, size};
    union passed passed = {{0}};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = &passed,
                             .msg_controllen = sizeof(passed)};
    struct cmsghdr *control;
    ssize_t got;

    *fd = -1;
    do
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    control = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (control && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(control), sizeof(*fd));
    return got;
}

/* Whether a path stays below where it starts, but for the links on it. */
static bool
goes_down(const char *path)
{
    if (*path == '/')
        return false;
    for (const char *part = path; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

/* The opener's own: where it looks, and the one question that a thread answers. */
struct task {
    int source;
    const char *path; /* of the source */
    int answer;
    struct question question;
};

static int
open_below(int source, const char *path, const struct question *question)
{
    int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (question->flags & O_DIRECTORY);
    struct stat st;
    int fd;

    if (!goes_down(question->path))
        return -EACCES;
    open_renew(source, path);
    fd = open_at(source, question->path, flags);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return fd;
    close(fd);
    return -ENXIO;
}

static void *
answer(void *arg)
{
    struct task *task = arg;
    int fd = open_below(task->source, task->path, &task->question);
    int result = fd < 0 ? fd : 0;

    send_with(task->answer, &result, sizeof(result), fd);
    if (fd >= 0)
        close(fd);
    close(task->answer);
    free(task);
    return NULL;
}

/* On a thread of its own: storage that hangs shall keep nobody else waiting. */
static void
take_question(struct task *task)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bool made = false;

    if (pthread_attr_init(&attributes) == 0) {
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        made = pthread_create(&thread, &attributes, answer, task) == 0;
        pthread_attr_destroy(&attributes);
    }
    if (!made)
        answer(task);
}

static void
open_until_end(int socket, int source, const char *path)
{
    struct task *task;
    ssize_t got;

    while ((task = malloc(sizeof(*task)))) {
        task->source = source;
        task->path = path;
        got = receive_with(socket, &task->question, sizeof(task->question), &task->answer);
        if (got <= (ssize_t)offsetof(struct question, path) || task->answer < 0)
            break;
        task->question.path[got - (ssize_t)offsetof(struct question, path) - 1] = '\0';
        take_question(task);
    }
    free(task);
}

static int opener_socket = -1;
static atomic_uint_fast64_t opened; /* by the opener, for this process */

errint_t
opener_start(int source, const char *path, void (*shut)(void *arg), void *arg, bool quiet,
             struct helper *helper)
{
    errint_t error = start(helper);

    if (error)
        return error;
    if (helper->pid > 0) {
        opener_socket = helper->socket;
        return 0;
    }
    begin("fstfs-open", quiet);
    close_all_but(helper->socket, source);
    shut(arg);
    open_until_end(helper->socket, source, path);
    _exit(0);
}

void
opener_end(struct helper *helper)
{
    if (helper->socket < 0)
        return;
    opener_socket = -1;
    close(helper->socket); /* not waited for: storage may hold it, and it holds nothing */
    *helper = HELPER_NONE;
}

int
opener_open(int directory, const char *path, int flags)
{
    struct question question = {.flags = flags};
    size_t length = strlen(path);
    int ends[2], fd, result = -EACCES;

    (void)directory;
    if (length >= sizeof(question.path))
        return -ENAMETOOLONG;
    memcpy(question.path, path, length + 1);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    send_with(opener_socket, &question, offsetof(struct question, path) + length + 1, ends[1]);
    close(ends[1]);
    /* Nothing comes where there is no opener any more. */
    receive_with(ends[0], &result, sizeof(result), &fd);
    close(ends[0]);
    if (fd >= 0) {
        atomic_fetch_add_explicit(&opened, 1, memory_order_relaxed);
        return fd;
    }
    return result < 0 ? result : -EMFILE; /* opened, and no place for it here */
}

uint64_t
opener_opened(void)
{
    return atomic_load(&opened);
}
