/* SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"

#include "common/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOUNT_MS = 20000, UNMOUNT_MS = 5000, TERM_MS = 15000, STEP_MS = 2 };

static void __attribute__((noreturn))
become_daemon(const char *program, const char *source, const char *point, int said)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    dup2(null, 0);
    dup2(null, 1);
    dup2(said, 2);
    execl(program, program, "-f", source, point, (char *)NULL);
    dprintf(said, "%s: %s", program, strerror(errno));
    _exit(127);
}

/* Waits up to `ms` for a child to end. */
static bool
has_ended(pid_t child, int ms)
{
    int status;

    for (int at = 0; waitpid(child, &status, WNOHANG) == 0; at += STEP_MS) {
        if (at >= ms)
            return false;
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

/* Whether the bench has let go; waits for it up to `ms`, -1: for ever. */
static bool
is_let_go(int hold, int ms)
{
    struct pollfd waiting = {.fd = hold, .events = POLLIN};

    return poll(&waiting, 1, ms) > 0;
}

/* False: it ended, hangs, or is no longer wanted. */
static bool
await_mount(pid_t daemon, const char *point, int hold, struct guard_report *report)
{
    for (int at = 0; !mounts_is_point(point); at += STEP_MS) {
        int status;

        if (waitpid(daemon, &status, WNOHANG) != 0)
            return false;
        if (is_let_go(hold, STEP_MS))
            return false;
        if (at >= MOUNT_MS) {
            snprintf(report->text, sizeof(report->text), "not mounted after %d s", MOUNT_MS / 1000);
            return false;
        }
    }
    return true;
}

static void
unmount(const char *point)
{
    pid_t child = fork();

    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        dup2(null, 2);
        execlp("fusermount3", "fusermount3", "-u", "-z", point, (char *)NULL);
        _exit(127);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
    if (mounts_is_point(point))
        umount2(point, MNT_DETACH); /* as root */
}

static void
end_daemon(pid_t daemon)
{
    static const struct {
        int signal, ms;
    } steps[] = {{0, UNMOUNT_MS}, {SIGTERM, TERM_MS}, {SIGKILL, TERM_MS}};

    /* A copy of the mount in another namespace keeps it alive: then by a signal. */
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        kill(daemon, steps[i].signal);
        if (has_ended(daemon, steps[i].ms))
            return;
    }
}

/* What the daemon said, its first line. */
static void
take_words(int said, struct guard_report *report)
{
    ssize_t got = pread(said, report->text, sizeof(report->text) - 1, 0);

    if (got <= 0) {
        snprintf(report->text, sizeof(report->text), "fstfs ended before it mounted");
        return;
    }
    report->text[got] = '\0';
    report->text[strcspn(report->text, "\n")] = '\0';
}

void
guard_run(const char *program, const char *source, const char *point, int hold, int ready)
{
    int said = memfd_create("said", MFD_CLOEXEC);
    struct guard_report report = {0};
    pid_t daemon;

    prctl(PR_SET_NAME, "bench-guard");
    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    daemon = fork();
    if (daemon == 0)
        become_daemon(program, source, point, said);
    if (daemon < 0)
        snprintf(report.text, sizeof(report.text), "fork: %s", strerror(errno));
    else if (await_mount(daemon, point, hold, &report))
        report.daemon = daemon;
    else if (!report.text[0])
        take_words(said, &report);
    if (write(ready, &report, sizeof(report)) == (ssize_t)sizeof(report))
        is_let_go(hold, -1);
    if (mounts_is_point(point))
        unmount(point);
    if (daemon > 0)
        end_daemon(daemon);
    if (mounts_is_point(point))
        unmount(point);
    rmdir(point);
    _exit(0);
}
