/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TICK_MS = 100, SAID_MOST = 1 << 20 };

void
child_begin(pid_t parent)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* it ended before the line above */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Reads what there is; false at the end. More than anyone has to say is dropped. */
static bool
collect(int out, struct buffer *said)
{
    char piece[4096];
    ssize_t got = read(out, piece, sizeof(piece));

    if (got > 0 && said->length < SAID_MOST)
        buffer_add(said, piece, (size_t)got);
    return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

static bool
is_wanted(const struct watch *watch)
{
    return !watch || !watch->tick || watch->tick(watch->arg);
}

/* Until all ends of the pipe are closed. False: the watch said no. It is asked once
 * more at the end: ^C on a terminal ends the children by itself. */
static bool
listen_until_end(const pid_t *pids, unsigned count, int out, const struct watch *watch,
                 struct buffer *said)
{
    struct pollfd waiting = {.fd = out, .events = POLLIN};
    bool wanted = true;

    for (;;) {
        int ready = poll(&waiting, 1, TICK_MS);

        if (ready > 0 && !collect(out, said))
            return wanted && is_wanted(watch);
        if (wanted && !is_wanted(watch)) {
            wanted = false;
            for (unsigned i = 0; i < count; i++)
                kill(pids[i], SIGKILL);
        }
    }
}

/* The first line of what was said, for a reason. */
static errint_t
refuse(struct reason *reason, errint_t error, const struct buffer *said, const char *otherwise,
       int number)
{
    char text[QUOTED_SIZE];
    size_t length = said->data ? strcspn(said->data, "\n") : 0;

    if (length > 0)
        return reason_set(reason, error, "Child", "%s", quoted(text, said->data, length));
    return reason_set(reason, error, "Child", "%s %d", otherwise, number);
}

static errint_t
judge(int status, const struct buffer *said, struct reason *reason)
{
    if (WIFSIGNALED(status))
        return reason_set(reason, -EIO, "Child", "ended by signal %d (%s)", WTERMSIG(status),
                          strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) == CHILD_UNAVAILABLE)
        return refuse(reason, -ENOTSUP, said, "exit status", WEXITSTATUS(status));
    if (WEXITSTATUS(status) != 0)
        return refuse(reason, -EIO, said, "exit status", WEXITSTATUS(status));
    return 0;
}

errint_t
child_wait(const pid_t *pids, unsigned count, int out, const struct watch *watch,
           struct buffer *said, uint64_t *memory, struct reason *reason)
{
    bool wanted = listen_until_end(pids, count, out, watch, said);
    errint_t error = 0;

    close(out);
    *memory = 0;
    for (unsigned i = 0; i < count; i++) {
        struct rusage usage = {0};
        int status = 0;

        while (wait4(pids[i], &status, 0, &usage) < 0 && errno == EINTR)
            ;
        if ((uint64_t)usage.ru_maxrss << 10 > *memory)
            *memory = (uint64_t)usage.ru_maxrss << 10;
        if (!error)
            error = judge(status, said, reason);
    }
    return wanted ? error : reason_set(reason, -EINTR, "Child", "interrupted");
}
