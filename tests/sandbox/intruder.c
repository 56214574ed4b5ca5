/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intruder: loaded before a program's libraries (LD_PRELOAD), does in it what somebody
 * would who got to run code there, at its first posix_fadvise(2): fstfs calls that on a
 * thread that serves, when it has opened a file of the source.
 *
 *   INTRUDER=REPORT   a file that it makes at once, for a line for each attempt: its
 *                     name, and "works" or the name of the error
 *   INTRUDER_INSIDE=, INTRUDER_OUTSIDE=   files that the user may read and write, in
 *                     the source and elsewhere
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int report = -1;
static atomic_bool done;

static void __attribute__((constructor)) begin(void)
{
    const char *path = getenv("INTRUDER");

    if (path)
        report = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void
tell(const char *what, long result)
{
    if (result == -1)
        dprintf(report, "%s %s\n", what, strerrorname_np(errno));
    else
        dprintf(report, "%s works\n", what);
}

static void
try_files(const char *inside, const char *outside)
{
    char made[4096];

    snprintf(made, sizeof(made), "%s.made", inside);
    tell("read-inside", open(inside, O_RDONLY | O_CLOEXEC));
    tell("read-outside", open(outside, O_RDONLY | O_CLOEXEC));
    tell("write-inside", open(inside, O_WRONLY | O_CLOEXEC));
    tell("write-outside", open(outside, O_WRONLY | O_CLOEXEC));
    tell("make", open(made, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    tell("truncate", truncate(outside, 0));
    tell("chmod", chmod(outside, 0777));
    tell("remove", unlink(outside));
    tell("list-root", open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    tell("open-proc", open("/proc/self/mem", O_RDWR | O_CLOEXEC));
}

/* None of them may do anything where it is allowed: it is asked for in vain. */
static void
try_calls(void)
{
    struct io_uring_params params = {0};
    char *arguments[] = {(char[]){"nowhere"}, NULL};
    long page = sysconf(_SC_PAGESIZE), child;

    child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    tell("fork", child);
    tell("internet", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    tell("ptrace", ptrace(PTRACE_DETACH, 0, NULL, NULL));
    tell("mount", mount("none", "/nowhere", "none", 0, NULL));
    tell("unmount", umount2("/nowhere", MNT_DETACH));
    tell("namespace", unshare(CLONE_THREAD));
    tell("kill", kill(getpid(), 0));
    tell("ring", syscall(SYS_io_uring_setup, 1, &params));
    tell("code", (long)mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE | PROT_EXEC,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    tell("execute", execv("/nowhere", arguments));
}

int
posix_fadvise(int fd, off_t offset, off_t length, int advice)
{
    const char *inside = getenv("INTRUDER_INSIDE"), *outside = getenv("INTRUDER_OUTSIDE");

    if (report >= 0 && inside && outside && !atomic_exchange(&done, true)) {
        try_files(inside, outside);
        try_calls();
        tell("end", 0);
    }
    return (int)syscall(SYS_fadvise64, fd, offset, length, advice);
}
