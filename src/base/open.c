/* SPDX-License-Identifier: Apache-2.0 */
#include "base/open.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MOST_LINKS = 40 };

static int (*ask)(int directory, const char *path, int flags);
static _Atomic(dev_t) left_out; /* 0: none */

void
open_set_other(int (*other)(int directory, const char *path, int flags))
{
    ask = other;
}

void
open_leave_out(dev_t device)
{
    atomic_store(&left_out, device);
}

static int
open_plainly(int directory, const char *path, int flags)
{
    int fd;

    do
        fd = openat(directory, path, flags);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

/* ---- by hand ---- */

/* A path on which one goes. */
struct way {
    int at; /* by O_PATH, but for the first: that is the caller's */
    int first;
    char rest[PATH_MAX]; /* from there */
    unsigned links;
    const struct open_rules *rules;
};

static void
go_to(struct way *way, int fd)
{
    if (way->at >= 0 && way->at != way->first)
        close(way->at);
    way->at = fd;
}

/* As fstat(2), but only what the kernel knows already: to ask the mount would be to
 * ask oneself. Only device, type and owner. */
static errint_t
look(int fd, struct stat *st)
{
    const unsigned wanted = STATX_TYPE | STATX_UID;
    struct statx stx;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &stx) == 0) {
        st->st_dev = makedev(stx.stx_dev_major, stx.stx_dev_minor);
        st->st_mode = stx.stx_mode;
        st->st_uid = stx.stx_uid;
        return 0;
    }
    /* A sandbox may know fstat() only, for which glibc's own stand-in for statx() does not
     * know the flag; the mount refuses fstat() of its own daemon. */
    if (errno != ENOSYS && errno != EPERM && errno != EINVAL)
        return -errno;
    return fstat(fd, st) < 0 ? -errno : 0;
}

/* What protected_symlinks (proc_sys_fs(5)) has the kernel refuse to this user. */
static bool
may_follow(int directory, const struct stat *link, uid_t user)
{
    struct stat st;

    if (fstat(directory, &st) < 0)
        return false;
    return (st.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) || link->st_uid == user ||
           link->st_uid == st.st_uid;
}

/* Takes so many bytes off the rest, and the slashes that follow. */
static void
take(struct way *way, size_t length)
{
    length += strspn(way->rest + length, "/");
    memmove(way->rest, way->rest + length, strlen(way->rest + length) + 1);
}

/* Puts what the link says in front of the rest. */
static errint_t
follow(struct way *way, int link)
{
    size_t left = strlen(way->rest);
    char text[PATH_MAX];
    ssize_t length = readlinkat(link, "", text, sizeof(text));

    if (length < 0)
        return -errno;
    if (length == 0)
        return -ENOENT;
    if ((size_t)length + 1 + left >= sizeof(way->rest))
        return -ENAMETOOLONG;
    memmove(way->rest + length + 1, way->rest, left + 1);
    memcpy(way->rest, text, (size_t)length);
    way->rest[length] = '/';
    if (text[0] != '/')
        return 0;
    take(way, 0);
    go_to(way, open_plainly(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return way->at < 0 ? way->at : 0;
}

/* Takes the next name off the rest, which has one. */
static errint_t
take_name(struct way *way, char name[NAME_MAX + 1])
{
    size_t length = strcspn(way->rest, "/");

    if (length > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(name, way->rest, length);
    name[length] = '\0';
    take(way, length);
    return 0;
}

/* One name further. */
static errint_t
step(struct way *way, bool to_directory)
{
    const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    char name[NAME_MAX + 1];
    errint_t error = take_name(way, name);
    struct stat st = {0};
    int fd;

    if (!error && way->rules->permits)
        error = way->rules->permits(way->rules->arg, way->at, X_OK);
    if (error)
        return error;
    /* As a directory, so that what is mounted on demand is. */
    fd = to_directory || way->rest[0] ? open_plainly(way->at, name, flags | O_DIRECTORY) : -ENOTDIR;
    if (fd == -ENOTDIR)
        fd = open_plainly(way->at, name, flags);
    if (fd < 0)
        return fd;
    error = look(fd, &st);
    if (error) {
        close(fd);
        return error;
    }
    if (st.st_dev != atomic_load(&left_out) && !S_ISLNK(st.st_mode)) {
        go_to(way, fd);
        return 0;
    }
    if (st.st_dev == atomic_load(&left_out))
        error = -EXDEV;
    else if (++way->links > MOST_LINKS)
        error = -ELOOP;
    else
        error = may_follow(way->at, &st, way->rules->user) ? follow(way, fd) : -EACCES;
    close(fd);
    return error;
}

/*
 * Opens by O_PATH, with each link on the path followed here. Were the kernel to walk
 * into the mount, it could come to a name that it is asking for just now, and wait for
 * the answer without end.
 */
static int
open_by_hand(int directory, const char *path, int flags, const struct open_rules *rules)
{
    struct way way = {.at = directory, .first = directory, .rules = rules};
    size_t length = strlen(path);
    errint_t error = 0;

    if (length == 0)
        return -ENOENT;
    if (length >= sizeof(way.rest))
        return -ENAMETOOLONG;
    memcpy(way.rest, path, length + 1);
    while (!error && way.rest[0])
        error = step(&way, flags & O_DIRECTORY);
    if (error) {
        go_to(&way, -1);
        return error;
    }
    return way.at;
}

/* Opens anew what is open by O_PATH, which is closed: a file or a directory. To open
 * anything else may do something: wake who waits at a FIFO, rewind a tape. */
static int
open_really(int fd, int flags)
{
    char link[sizeof("/proc/self/fd/") + 3 * sizeof(int)];
    struct stat st = {0};
    int opened = look(fd, &st);

    if (!opened && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        opened = -ENXIO;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (!opened)
        opened = open_plainly(AT_FDCWD, link, flags);
    close(fd);
    return opened;
}

/* As open_at(), but -EXDEV for what is left out. */
static int
open_unless_left_out(int directory, const char *path, int flags)
{
    const struct open_rules own = {.user = geteuid()};
    int fd, opened;

    if (atomic_load(&left_out) == 0)
        return open_plainly(directory, path, flags);
    fd = opened = open_by_hand(directory, path, flags, &own);
    if (fd >= 0 && !(flags & O_PATH))
        opened = open_really(fd, flags);
    /* The kernel believed an older directory of NFS, and asks anew for a whole path only;
     * or there is no /proc. */
    if (opened == -ESTALE || (fd >= 0 && opened == -ENOENT))
        return open_plainly(directory, path, flags);
    return opened;
}

int
open_at(int directory, const char *path, int flags)
{
    int fd = open_unless_left_out(directory, path, flags);

    if (fd == -EACCES && ask && !(flags & O_PATH))
        return ask(directory, path, flags);
    return fd == -EXDEV ? -ELOOP : fd;
}

int
open_path_as(int directory, const char *path, const struct open_rules *rules)
{
    int fd = open_by_hand(directory, path, O_PATH | O_CLOEXEC, rules);

    return fd == -EXDEV ? -ELOOP : fd;
}

errint_t
open_stat(int directory, const char *path, struct stat *st)
{
    int fd = open_unless_left_out(directory, path, O_PATH | O_CLOEXEC);
    errint_t error = 0;

    if (fd < 0)
        return fd;
    if (fstat(fd, st) < 0)
        error = -errno;
    close(fd);
    return error;
}

/* ---- anew ---- */

/* Whether a path leads to what `fd` is of, as far as can be told without /proc. */
static bool
is_reachable(int fd)
{
    char link[sizeof("/proc/self/fd/") + 3 * sizeof(int)], path[PATH_MAX];
    struct stat held, found;
    ssize_t length;

    if (fstat(fd, &held) < 0)
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof(path));
    if (length < 0 || (size_t)length == sizeof(path))
        return true;
    path[length] = '\0';
    return stat(path, &found) == 0 && found.st_dev == held.st_dev && found.st_ino == held.st_ino;
}

/* By O_PATH, which Landlock does not forbid: what is below it is another matter. A real
 * path has no links: one that is there by now may be anybody's, who may write above. */
static int
open_real(const char *path)
{
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), above;
    char name[NAME_MAX + 1];
    size_t length;

    for (path += strspn(path, "/"); *path && fd >= 0; path += strspn(path, "/")) {
        length = strcspn(path, "/");
        if (length > NAME_MAX) {
            close(fd);
            return -1;
        }
        memcpy(name, path, length);
        name[length] = '\0';
        path += length;
        above = fd;
        fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(above);
    }
    return fd;
}

bool
open_renew(int directory, const char *path)
{
    struct stat st;
    bool renewed;
    int fd;

    if (is_reachable(directory))
        return false;
    fd = open_real(path);
    if (fd < 0)
        return false;
    renewed = fstat(fd, &st) == 0 && dup3(fd, directory, O_CLOEXEC) >= 0;
    close(fd);
    return renewed;
}
