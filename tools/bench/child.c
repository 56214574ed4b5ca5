/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TICK_MS = 100, OUTPUT_MOST = 1 << 20 };

void
child_fail(int out, int status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdprintf(out, format, args);
    va_end(args);
    _exit(status);
}

/* Undoes the parent's signal handling, and lets the child die with its parent. */
static void
child_reset_signals(pid_t parent)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* the parent died before the line above */
    progress_release_signals();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Reads available output, dropping what exceeds OUTPUT_MOST. False: end of file. */
static bool
children_collect(int in, struct buffer *output)
{
    char piece[4096];
    ssize_t got = read(in, piece, sizeof(piece));

    if (got > 0 && output->length < OUTPUT_MOST)
        buffer_add(output, piece, (size_t)got);
    return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

static void
children_kill(const pid_t *pids, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        kill(pids[i], SIGKILL);
}

/* Reads until all children have closed the pipe. False: a signal came. It is checked once more
 * at the end, because ^C on a terminal reaches the children too. */
static bool
children_read_output(const pid_t *pids, unsigned count, int in, struct progress *progress,
                     struct buffer *output)
{
    struct pollfd waiting = {.fd = in, .events = POLLIN};
    bool wanted = true;

    for (;;) {
        int ready = poll(&waiting, 1, TICK_MS);
        bool at_end = ready > 0 && !children_collect(in, output);

        if (wanted && progress && !progress_tick(progress)) {
            wanted = false;
            children_kill(pids, count);
        }
        if (at_end)
            return wanted;
    }
}

static errint_t
child_judge_status(int status, const struct buffer *output, struct reason *reason)
{
    char text[QUOTED_SIZE];
    size_t length = output->data ? strcspn(output->data, "\n") : 0;
    errint_t error = -EIO;

    if (WIFSIGNALED(status))
        return reason_set(reason, error, "Child", "ended by signal %d (%s)", WTERMSIG(status),
                          strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) == 0)
        return 0;
    if (WEXITSTATUS(status) == CHILD_UNAVAILABLE)
        error = -ENOTSUP;
    if (length > 0)
        return reason_set(reason, error, "Child", "%s", quoted(text, output->data, length));
    return reason_set(reason, error, "Child", "exit status %d", WEXITSTATUS(status));
}

errint_t
children_run(unsigned count, child_main *run, void *arg, struct progress *progress,
             struct buffer *output, uint64_t *memory, struct reason *reason)
{
    pid_t parent = getpid(), pids[CHILDREN_MOST];
    errint_t error = 0, fork_error = 0;
    unsigned started = 0;
    int ends[2];
    bool wanted;

    *memory = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return reason_set(reason, -errno, "Pipe", "pipe: %s", strerror(errno));
    for (; started < count && !fork_error; started += !fork_error) {
        pids[started] = fork();
        if (pids[started] == 0) {
            child_reset_signals(parent);
            run(arg, started, ends[1]);
            _exit(1); /* not reached */
        }
        if (pids[started] < 0)
            fork_error = -errno;
    }
    close(ends[1]);
    if (fork_error) /* the others may wait for the missing ones */
        children_kill(pids, started);
    wanted = children_read_output(pids, started, ends[0], progress, output);
    close(ends[0]);
    for (unsigned i = 0; i < started; i++) {
        struct rusage usage = {0};
        int status = 0;

        while (wait4(pids[i], &status, 0, &usage) < 0 && errno == EINTR)
            ;
        if ((uint64_t)usage.ru_maxrss << 10 > *memory)
            *memory = (uint64_t)usage.ru_maxrss << 10;
        if (!error)
            error = child_judge_status(status, output, reason);
    }
    if (fork_error)
        return reason_set(reason, fork_error, "Fork", "fork: %s", strerror(-fork_error));
    return wanted ? error : reason_set(reason, -EINTR, "Child", "interrupted");
}
