/* SPDX-License-Identifier: Apache-2.0 */
/*
 * misfortune: loaded before a program's libraries (LD_PRELOAD), ends it or fails it at
 * a place that the test counts to, so that nothing depends on time.
 *
 *   KILL_AT=N           SIGKILL instead of its Nth call that changes a file system
 *   FAIL_AT=N           its Nth call that changes a file system fails with ENOSPC
 *   STOP_AT=N           SIGSTOP before its Nth call that changes a file system
 *   READDIR_AT=N        its Nth readdir(3) fails with EIO, and those after it on that stream
 *   NO_TMPFILE=1        there are no files without a name (O_TMPFILE)
 *   NO_RENAME_FLAGS=1   renameat2(2) knows no flags, as on NFS and many FUSE file systems
 *   NO_LINKS=1          there are no hard links
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The number of calls so far is that of the variable. */
static int
is_now(const char *variable, _Atomic long *count)
{
    const char *at = getenv(variable);

    return at && atomic_fetch_add(count, 1) + 1 == strtol(at, NULL, 10);
}

/* Whether the call is to fail. */
static int
change(void)
{
    static _Atomic long changes, calls, failures;

    if (is_now("KILL_AT", &changes))
        kill(getpid(), SIGKILL);
    if (is_now("STOP_AT", &calls))
        kill(getpid(), SIGSTOP);
    if (!is_now("FAIL_AT", &failures))
        return 0;
    errno = ENOSPC;
    return 1;
}

/* NAME: as it is in the library; what follows is its type, parameters and arguments. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type and a name take none */
#define CHANGES(name, type, parameters, arguments)                                                 \
    type name parameters                                                                           \
    {                                                                                              \
        type(*next) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name);                      \
                                                                                                   \
        return change() ? -1 : next arguments;                                                     \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

CHANGES(mkdirat, int, (int fd, const char *path, mode_t mode), (fd, path, mode))
CHANGES(pwrite64, ssize_t, (int fd, const void *from, size_t size, off64_t at),
        (fd, from, size, at))
CHANGES(ftruncate64, int, (int fd, off64_t size), (fd, size))
CHANGES(fallocate64, int, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
CHANGES(fsync, int, (int fd), (fd))
CHANGES(renameat, int, (int from, const char *old, int to, const char *new), (from, old, to, new))
CHANGES(unlinkat, int, (int fd, const char *path, int flags), (fd, path, flags))

int
linkat(int from, const char *old, int to, const char *new, int flags)
{
    int (*next)(int, const char *, int, const char *, int) =
        (int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat");

    if (getenv("NO_LINKS")) {
        errno = EPERM;
        return -1;
    }
    return change() ? -1 : next(from, old, to, new, flags);
}

int
renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    int (*next)(int, const char *, int, const char *, unsigned) =
        (int (*)(int, const char *, int, const char *, unsigned))dlsym(RTLD_NEXT, "renameat2");

    if (flags && getenv("NO_RENAME_FLAGS")) {
        errno = EINVAL;
        return -1;
    }
    return change() ? -1 : next(from, old, to, new, flags);
}

int
openat64(int fd, const char *path, int flags, ...)
{
    int (*next)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat64");
    mode_t mode = 0;
    va_list rest;

    if ((flags & O_TMPFILE) == O_TMPFILE && getenv("NO_TMPFILE")) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
        if (change())
            return -1;
    }
    return next(fd, path, flags, mode);
}

struct dirent64 *
readdir64(DIR *stream)
{
    static _Atomic long calls;
    static DIR *_Atomic failed;
    struct dirent64 *(*next)(DIR *) = (struct dirent64 * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");

    if (is_now("READDIR_AT", &calls))
        failed = stream;
    if (failed == stream) {
        errno = EIO;
        return NULL;
    }
    return next(stream);
}
