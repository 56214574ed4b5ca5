/* SPDX-License-Identifier: Apache-2.0 */
/*
 * misfortune: loaded before a program's libraries (LD_PRELOAD), kills it or makes a call fail at
 * the Nth operation, so that a test does not depend on time.
 *
 *   KILL_AT=N           SIGKILL instead of its Nth call that changes a file system
 *   FAIL_AT=N           its Nth call that changes a file system fails with ENOSPC
 *   STOP_AT=N           SIGSTOP before its Nth call that changes a file system
 *   READDIR_AT=N        its Nth readdir(3) or getdents64(2), and later ones on the same stream or
 *                       descriptor, fail with EIO
 *   NO_TMPFILE=1        O_TMPFILE is not supported
 *   NO_RENAME_FLAGS=1   renameat2(2) supports no flags, as on NFS and many FUSE file systems
 *   NO_LINKS=1          hard links are not supported
 *   NO_CANCEL=1         pthread_cancel(3) fails with EAGAIN, as with RLIMIT_SIGPENDING at 0
 *   STOP_AFTER_MOUNT=1  SIGSTOP when mount(2) has returned
 *   ABORTED_READ=1      the first read(2) that fails with ENODEV fails with ECONNABORTED, as from
 *                       /dev/fuse if the connection ends while a request is read
 *   REFUSED_INIT=before libfuse refuses INIT before init(), because of the protocol version
 *   REFUSED_INIT=after  libfuse refuses INIT after init(), which does not request the maximum
 *                       read size of the mount options
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts a call. Whether it is the one whose number is in the variable. */
static int
is_now(const char *variable, _Atomic long *count)
{
    const char *at = getenv(variable);

    return at && atomic_fetch_add(count, 1) + 1 == strtol(at, NULL, 10);
}

/* Counts a call that changes a file system. Whether it must fail. */
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

struct fuse_args;
int fuse_opt_add_arg(struct fuse_args *args, const char *text); /* of libfuse */

/* Defines a wrapper of the library function `name`. */
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

static _Atomic long directory_reads;

ssize_t
getdents64(int fd, void *buffer, size_t size)
{
    static _Atomic int failed = -1;
    ssize_t (*next)(int, void *, size_t) =
        (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "getdents64");

    if (is_now("READDIR_AT", &directory_reads))
        failed = fd;
    if (failed == fd) {
        errno = EIO;
        return -1;
    }
    return next(fd, buffer, size);
}

struct dirent64 *
readdir64(DIR *stream)
{
    static DIR *_Atomic failed;
    struct dirent64 *(*next)(DIR *) = (struct dirent64 * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");

    if (is_now("READDIR_AT", &directory_reads))
        failed = stream;
    if (failed == stream) {
        errno = EIO;
        return NULL;
    }
    return next(stream);
}

static char refused_init[16];
static int no_cancel, stops_after_mount;
static _Atomic int aborts_read;

/* Reads the variables at load time, because the daemon erases its environment. */
static void __attribute__((constructor)) begin(void)
{
    const char *refused = getenv("REFUSED_INIT");

    snprintf(refused_init, sizeof(refused_init), "%s", refused ? refused : "");
    no_cancel = getenv("NO_CANCEL") != NULL;
    stops_after_mount = getenv("STOP_AFTER_MOUNT") != NULL;
    aborts_read = getenv("ABORTED_READ") != NULL;
}

int
pthread_cancel(pthread_t thread)
{
    int (*next)(pthread_t) = (int (*)(pthread_t))dlsym(RTLD_NEXT, "pthread_cancel");

    return no_cancel ? EAGAIN : next(thread);
}

int
mount(const char *source, const char *target, const char *type, unsigned long flags,
      const void *data)
{
    int (*next)(const char *, const char *, const char *, unsigned long, const void *) =
        (int (*)(const char *, const char *, const char *, unsigned long, const void *))dlsym(
            RTLD_NEXT, "mount");
    int result = next(source, target, type, flags, data);

    if (stops_after_mount)
        kill(getpid(), SIGSTOP);
    return result;
}

static int
is_init_refused(const char *when)
{
    return strcmp(refused_init, when) == 0;
}

ssize_t
read(int fd, void *to, size_t size)
{
    ssize_t (*next)(int, void *, size_t) =
        (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    const uint32_t major = FUSE_KERNEL_VERSION - 1;
    ssize_t got = next(fd, to, size);
    struct fuse_in_header header;

    if (got < 0 && errno == ENODEV && atomic_exchange(&aborts_read, 0))
        errno = ECONNABORTED;
    if (got < (ssize_t)(sizeof(header) + sizeof(major)) || !is_init_refused("before"))
        return got;
    memcpy(&header, to, sizeof(header));
    if (header.opcode == FUSE_INIT && header.len == (size_t)got)
        memcpy((char *)to + sizeof(header), &major, sizeof(major)); /* of struct fuse_init_in */
    return got;
}

int
fuse_opt_add_arg(struct fuse_args *args, const char *text)
{
    int (*next)(struct fuse_args *, const char *) =
        (int (*)(struct fuse_args *, const char *))dlsym(RTLD_NEXT, "fuse_opt_add_arg");
    char *longer;
    int result;

    if (!is_init_refused("after") || strncmp(text, "ro,", 3) != 0 ||
        asprintf(&longer, "%s,max_read=8192", text) < 0)
        return next(args, text);
    result = next(args, longer);
    free(longer);
    return result;
}
