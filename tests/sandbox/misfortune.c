/* SPDX-License-Identifier: Apache-2.0 */
/*
 * misfortune: loaded before a program's libraries (LD_PRELOAD), ends it or fails it at
 * a place that the test counts to, so that nothing depends on time.
 *
 *   KILL_AT=N      SIGKILL instead of its Nth call that changes a file system
 *   READDIR_AT=N   its Nth readdir(3) fails with EIO, and those after it on that stream
 *   NO_TMPFILE=1   there are no files without a name (O_TMPFILE)
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

static void
change(void)
{
    static _Atomic long changes;

    if (is_now("KILL_AT", &changes))
        kill(getpid(), SIGKILL);
}

/* NAME: as it is in the library; what follows is its type, parameters and arguments. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type and a name take none */
#define CHANGES(name, type, parameters, arguments)                                                 \
    type name parameters                                                                           \
    {                                                                                              \
        type(*next) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name);                      \
                                                                                                   \
        change();                                                                                  \
        return next arguments;                                                                     \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

CHANGES(mkdirat, int, (int fd, const char *path, mode_t mode), (fd, path, mode))
CHANGES(pwrite64, ssize_t, (int fd, const void *from, size_t size, off64_t at),
        (fd, from, size, at))
CHANGES(ftruncate64, int, (int fd, off64_t size), (fd, size))
CHANGES(fallocate64, int, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
CHANGES(fsync, int, (int fd), (fd))
CHANGES(linkat, int, (int from, const char *old, int to, const char *new, int flags),
        (from, old, to, new, flags))
CHANGES(renameat, int, (int from, const char *old, int to, const char *new), (from, old, to, new))
CHANGES(renameat2, int, (int from, const char *old, int to, const char *new, unsigned flags),
        (from, old, to, new, flags))
CHANGES(unlinkat, int, (int fd, const char *path, int flags), (fd, path, flags))

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
        change();
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
