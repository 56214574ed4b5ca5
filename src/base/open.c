/* SPDX-License-Identifier: Apache-2.0 */
#include "base/open.h"

#include "base/eintr.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* MOST_LINKS is Linux's limit. MOST_NAMES bounds the time: a path through 40 links of 4 KB would
 * take a quarter of a second. */
enum { MOST_LINKS = 40, MOST_NAMES = 256 };
enum { NO_DESCRIPTOR_REPEATS_MOST = 50, NO_DESCRIPTOR_PAUSE_NS = 5000000 };

/* Set in the ID under which open_local() reports an automount point that is not mounted. */
#define AUTOMOUNT_ID (UINT64_C(1) << 63)

static int (*other_opener)(int directory, const char *path, int flags, uint64_t mount);
static _Atomic(dev_t) excluded; /* 0: none */
static const struct open_owner_rules *owner_rules; /* NULL: owners of links are not checked */

void
open_set_other(int (*other)(int directory, const char *path, int flags, uint64_t mount))
{
    other_opener = other;
}

void
open_exclude(dev_t device)
{
    atomic_store(&excluded, device);
}

void
open_check_link_owners(const struct open_owner_rules *rules)
{
    owner_rules = rules;
}

static int
openat_retry(int directory, const char *path, int flags)
{
    unsigned repeats = 0;
    int fd;

    do
        fd = openat(directory, path, flags);
    while (fd < 0 && eintr_repeat(&repeats));
    return fd < 0 ? -errno : fd;
}

int
open_again(int fd, int flags)
{
    char link[sizeof("/proc/self/fd/") + 3 * sizeof(int)];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return openat_retry(AT_FDCWD, link, flags);
}

/* ---- resolving a path without the kernel ---- */

/* A link whose owner is checked while its target is being resolved. */
struct user_link {
    uid_t owner;
    size_t end; /* the length of path_walk.rest once the target is reached */
};

/* A path resolution in progress. */
struct path_walk {
    int at; /* the directory reached, opened with O_PATH; the first is the caller's */
    int first;
    char rest[PATH_MAX]; /* the path relative to `at` */
    unsigned links; /* followed so far */
    unsigned names; /* resolved since the first link */
    const struct open_rules *rules;
    dev_t permitted; /* the last device that rules->permits_device() permitted */
    const struct open_mounts *mounts; /* see open_local(); NULL: any */
    uint64_t refused_mount; /* set on -EREMOTE */
    struct user_link user_links[MOST_LINKS]; /* each within the one before */
    unsigned user_link_count;
    bool has_climbed; /* what is above the top was checked */
    dev_t owners_device; /* the last device that all their owners may access */
};

/* What the walk needs to know of a file. */
struct walk_stat {
    dev_t device;
    uint64_t inode;
    mode_t mode; /* only the type */
    uid_t owner;
    uint64_t mount; /* 0: the kernel does not report it */
    uint64_t automount; /* ID of an automount point that is not mounted; 0: the file is not one */
};

static void
walk_to(struct path_walk *walk, int fd)
{
    if (walk->at >= 0 && walk->at != walk->first)
        close(walk->at);
    walk->at = fd;
}

/* Fills in *out without a request to the file system, which may be served by this process, or may
 * hang. */
static errint_t
stat_cached(int fd, struct walk_stat *out)
{
    const unsigned wanted = STATX_TYPE | STATX_UID | STATX_INO | STATX_MNT_ID | STATX_MNT_ID_UNIQUE;
    struct statx stx;
    struct stat st;

    *out = (struct walk_stat){0};
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &stx) == 0) {
        out->device = makedev(stx.stx_dev_major, stx.stx_dev_minor);
        out->inode = stx.stx_ino;
        out->mode = stx.stx_mode;
        out->owner = stx.stx_uid;
        out->mount = open_mount_id(&stx);
        if (stx.stx_attributes & STATX_ATTR_AUTOMOUNT)
            out->automount = stx.stx_ino | AUTOMOUNT_ID;
        return 0;
    }
    /* A sandbox may allow fstat() only, and glibc's emulation of statx() does not support the flag.
     * The mount refuses fstat() from its own daemon, so this does not block. */
    if (errno != ENOSYS && errno != EPERM && errno != EINVAL)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    *out = (struct walk_stat){
        .device = st.st_dev, .inode = st.st_ino, .mode = st.st_mode, .owner = st.st_uid};
    return 0;
}

/* ---- mounts that a walk may enter ---- */

uint64_t
open_mount_id(const struct statx *stx)
{
    uint64_t mount;

    if (!(stx->stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE)))
        return 0;
    /* stx_mnt_id, which the headers of older systems lack. */
    memcpy(&mount, &stx->stx_dev_minor + 1, sizeof(mount));
    return mount;
}

static bool
has_mount(const struct open_mounts *mounts, uint64_t mount)
{
    for (unsigned i = 0; i < mounts->count; i++)
        if (mounts->ids[i] == mount)
            return true;
    return false;
}

static bool
is_root_mount(uint64_t mount)
{
    struct statx stx;

    return statx(AT_FDCWD, "/", AT_STATX_DONT_SYNC, STATX_MNT_ID | STATX_MNT_ID_UNIQUE, &stx) ==
               0 &&
           open_mount_id(&stx) == mount;
}

/* Without mount IDs, every mount is permitted. File systems on block devices, whose major number is
 * not 0, are local. */
static bool
walk_may_enter(struct path_walk *walk, const struct walk_stat *st)
{
    if (!walk->mounts || major(st->device) != 0)
        return true;
    walk->refused_mount = 0;
    if (st->mount && !has_mount(walk->mounts, st->mount) && !is_root_mount(st->mount))
        walk->refused_mount = st->mount;
    else if (st->automount && !has_mount(walk->mounts, st->automount))
        walk->refused_mount = st->automount;
    return walk->refused_mount == 0;
}

/* ---- owners of links ---- */

/* Whether a user may have, or can get, these permissions (R_OK, X_OK). The user may be in any
 * group; a right of an access control list is also in the mode of the group. */
static bool
may_have_permission(const struct stat *st, uid_t user, unsigned mask)
{
    return st->st_uid == user || ((st->st_mode >> 3 | st->st_mode) & mask) == mask;
}

/* Begins the check of a link (open as `fd`), whose target is resolved once `left` bytes of the rest
 * remain. */
static void
walk_enter_link(struct path_walk *walk, int fd, const struct walk_stat *link, size_t left)
{
    uid_t owner;

    if (!walk->rules->owners)
        return;
    owner = walk->rules->owners->owner_of(link->owner, fd, link->device);
    if (owner == 0 || owner == walk->rules->user)
        return;
    walk->user_links[walk->user_link_count++] = (struct user_link){.owner = owner, .end = left};
    walk->has_climbed = false; /* not for this owner */
    walk->owners_device = link->device;
}

/* -EPERM: one of the owners cannot search the directory of `fd`. May wait for its file system. */
static errint_t
walk_check_owners(const struct path_walk *walk, int fd)
{
    struct stat st;

    if (walk->user_link_count == 0)
        return 0;
    if (fstat(fd, &st) < 0)
        return -errno;
    for (unsigned i = 0; i < walk->user_link_count; i++)
        if (!may_have_permission(&st, walk->user_links[i].owner, X_OK))
            return -EPERM;
    return 0;
}

/* Ends the checks of links whose target has been reached. -EPERM: the owner of one of them cannot
 * read the file, or list and search the directory. */
static errint_t
walk_leave_links(struct path_walk *walk)
{
    size_t left = strlen(walk->rest);
    const struct user_link *link;
    struct stat st;
    unsigned mask;

    while (walk->user_link_count) {
        link = &walk->user_links[walk->user_link_count - 1];
        if (left > link->end)
            break;
        if (fstat(walk->at, &st) < 0)
            return -errno;
        mask = S_ISDIR(st.st_mode) ? R_OK | X_OK : S_ISREG(st.st_mode) ? R_OK : 0;
        if (!may_have_permission(&st, link->owner, mask))
            return -EPERM;
        walk->user_link_count--;
    }
    return 0;
}

/* ---- permissions ---- */

/* Whether the directory of `fd` may be searched. */
static errint_t
walk_permit_search(const struct path_walk *walk, int fd)
{
    const struct open_rules *rules = walk->rules;
    errint_t error = rules->permits ? rules->permits(rules->arg, fd, X_OK) : 0;

    return error ? error : walk_check_owners(walk, fd);
}

static errint_t
walk_permit_device(struct path_walk *walk, int fd, dev_t device)
{
    const struct open_rules *rules = walk->rules;
    errint_t error = 0;

    if (rules->permits_device && device != walk->permitted)
        error = rules->permits_device(rules->arg, fd, device);
    if (error)
        return error;
    walk->permitted = device;
    for (unsigned i = 0; device != walk->owners_device && i < walk->user_link_count; i++)
        if (!rules->owners->permits(walk->user_links[i].owner, fd, device))
            return -EPERM;
    walk->owners_device = device;
    return 0;
}

/* Whether the walk may go on to the file of `fd`. */
static errint_t
walk_enter(struct path_walk *walk, int fd, const struct walk_stat *st)
{
    if (st->device == atomic_load(&excluded))
        return -EXDEV;
    if (!walk_may_enter(walk, st))
        return -EREMOTE;
    return walk_permit_device(walk, fd, st->device);
}

/* Opens the next name. O_DIRECTORY triggers automounts, so a walk that is restricted to some mounts
 * uses it only on permitted automount points. */
static int
walk_open_name(const struct path_walk *walk, const char *name, bool is_directory,
               struct walk_stat *st)
{
    const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    bool triggers = is_directory && !walk->mounts;
    errint_t error;
    int fd;

    for (;;) {
        fd = triggers ? openat_retry(walk->at, name, flags | O_DIRECTORY) : -ENOTDIR;
        if (fd == -ENOTDIR)
            fd = openat_retry(walk->at, name, flags);
        if (fd < 0)
            return fd;
        error = stat_cached(fd, st);
        if (error) {
            close(fd);
            return error;
        }
        if (triggers || !walk->mounts || !st->automount || !has_mount(walk->mounts, st->automount))
            return fd;
        triggers = true;
        close(fd);
    }
}

/* Whether protected_symlinks (proc_sys_fs(5)) allows this user to follow the link. */
static bool
may_follow(int directory, const struct walk_stat *link, uid_t user)
{
    struct stat st;

    if (fstat(directory, &st) < 0)
        return false;
    return (st.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) || link->owner == user ||
           link->owner == st.st_uid;
}

/* Removes `length` bytes and the slashes after them from the start of the rest. */
static void
walk_drop(struct path_walk *walk, size_t length)
{
    length += strspn(walk->rest + length, "/");
    memmove(walk->rest, walk->rest + length, strlen(walk->rest + length) + 1);
}

/* Prepends the target of the link to the rest. */
static errint_t
walk_link(struct path_walk *walk, int link)
{
    size_t left = strlen(walk->rest);
    char text[PATH_MAX];
    ssize_t length = readlinkat(link, "", text, sizeof(text));

    if (length < 0)
        return -errno;
    if (length == 0)
        return -ENOENT;
    if ((size_t)length + 1 + left >= sizeof(walk->rest))
        return -ENAMETOOLONG;
    memmove(walk->rest + length + 1, walk->rest, left + 1);
    memcpy(walk->rest, text, (size_t)length);
    walk->rest[length] = '/';
    if (text[0] != '/')
        return 0;
    walk_drop(walk, 0);
    walk_to(walk, openat_retry(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return walk->at < 0 ? walk->at : 0;
}

/* Removes the next name, which exists, from the rest. */
static errint_t
walk_next_name(struct path_walk *walk, char name[NAME_MAX + 1])
{
    size_t length = strcspn(walk->rest, "/");

    if (length > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(name, walk->rest, length);
    name[length] = '\0';
    walk_drop(walk, length);
    return 0;
}

static bool
is_same_directory(const struct walk_stat *a, const struct walk_stat *b)
{
    return a->mount == b->mount && a->device == b->device && a->inode == b->inode;
}

/* Opens the directory above `fd`, for which the user must be able to search `fd`. */
static int
walk_open_parent(struct path_walk *walk, int fd, struct walk_stat *st)
{
    errint_t error = walk_permit_search(walk, fd);
    int parent = error ? error : openat_retry(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (parent < 0)
        return parent;
    error = stat_cached(parent, st);
    if (!error)
        error = walk_enter(walk, parent, st);
    if (!error)
        return parent;
    close(parent);
    return error;
}

/* Whether `..` would lead out of open_rules.top, and who resolves the path must be checked. */
static bool
walk_is_at_top(const struct path_walk *walk)
{
    const struct open_rules *rules = walk->rules;
    struct walk_stat top, at;

    if (rules->top < 0 || walk->has_climbed || (rules->owners && walk->user_link_count == 0))
        return false;
    return stat_cached(rules->top, &top) != 0 || stat_cached(walk->at, &at) != 0 ||
           is_same_directory(&top, &at);
}

/* Whether the user can reach the directory above the top to which `..` has led. */
static errint_t
walk_search_ancestors(struct path_walk *walk)
{
    struct walk_stat st, above;
    errint_t error = stat_cached(walk->at, &above);
    int fd = walk->at, parent;

    /* Once is enough: the walk searches all other directories itself. */
    walk->has_climbed = true;
    while (!error) {
        st = above;
        parent = walk_open_parent(walk, fd, &above);
        if (fd != walk->at)
            close(fd);
        if (parent < 0)
            return parent;
        fd = parent;
        if (is_same_directory(&above, &st))
            break; /* "/" */
    }
    if (fd != walk->at)
        close(fd);
    return error;
}

/* Whether the user may access the file system that the walk begins on. */
static errint_t
walk_permit_start(struct path_walk *walk)
{
    struct walk_stat st;
    errint_t error = walk->rules->permits_device ? stat_cached(walk->at, &st) : 0;

    if (error || !walk->rules->permits_device)
        return error;
    return walk_permit_device(walk, walk->at, st.device);
}

/* Resolves the next name. */
static errint_t
walk_step(struct path_walk *walk, bool to_directory)
{
    char name[NAME_MAX + 1];
    errint_t error = walk_next_name(walk, name);
    size_t left = strlen(walk->rest);
    struct walk_stat st;
    bool leaves_top;
    int fd;

    if (!error && walk->links && ++walk->names > MOST_NAMES)
        error = -ELOOP;
    if (!error)
        error = walk_permit_search(walk, walk->at);
    if (error)
        return error;
    leaves_top = strcmp(name, "..") == 0 && walk_is_at_top(walk);
    fd = walk_open_name(walk, name, to_directory || walk->rest[0], &st);
    if (fd < 0)
        return fd;
    error = walk_enter(walk, fd, &st);
    if (!error && !S_ISLNK(st.mode)) {
        walk_to(walk, fd);
        return leaves_top ? walk_search_ancestors(walk) : 0;
    }
    if (!error && ++walk->links > MOST_LINKS)
        error = -ELOOP;
    if (!error)
        error = may_follow(walk->at, &st, walk->rules->user) ? walk_link(walk, fd) : -EACCES;
    if (!error)
        walk_enter_link(walk, fd, &st, left);
    close(fd);
    return error;
}

/*
 * Opens with O_PATH, following links in this process. If the kernel resolved a path into the mount,
 * it could reach a name with a lookup in flight, and this process would wait for itself.
 */
static int
open_by_walk(int directory, const char *path, int flags, const struct open_rules *rules,
             const struct open_mounts *mounts, uint64_t *refused)
{
    struct path_walk walk = {.at = directory, .first = directory, .rules = rules, .mounts = mounts};
    size_t length = strlen(path);
    errint_t error = 0;

    if (length == 0)
        return -ENOENT;
    if (length >= sizeof(walk.rest))
        return -ENAMETOOLONG;
    memcpy(walk.rest, path, length + 1);
    error = walk_permit_start(&walk);
    while (!error && walk.rest[0]) {
        error = walk_step(&walk, flags & O_DIRECTORY);
        if (!error)
            error = walk_leave_links(&walk);
    }
    if (error) {
        walk_to(&walk, -1);
        if (error == -EREMOTE && refused)
            *refused = walk.refused_mount;
        return error;
    }
    return walk.at;
}

/* Reopens a file or directory that is open with O_PATH, and closes `fd`. Opening any other type may
 * have side effects, such as waking a process that waits for a FIFO or rewinding a tape. */
static int
reopen(int fd, int flags)
{
    struct walk_stat st;
    int opened = stat_cached(fd, &st);

    if (!opened && !S_ISREG(st.mode) && !S_ISDIR(st.mode))
        opened = -ENXIO;
    if (!opened)
        opened = open_again(fd, flags);
    close(fd);
    return opened;
}

/* ---- opening ---- */

static struct open_rules
own_rules(void)
{
    return (struct open_rules){
        .user = geteuid(), .owners = owner_rules, .top = owner_rules ? owner_rules->top : -1};
}

/* As open_unless_excluded(). -ENOENT and *no_proc: the file exists, but /proc is not mounted. */
static int
open_in_process(int directory, const char *path, int flags, const struct open_mounts *mounts,
                uint64_t *refused, bool *no_proc)
{
    const struct open_rules own = own_rules();
    int fd = open_by_walk(directory, path, flags, &own, mounts, refused);
    struct stat st;
    int opened = fd >= 0 && !(flags & O_PATH) ? reopen(fd, flags) : fd;

    *no_proc = fd >= 0 && opened == -ENOENT && stat("/proc/self", &st) < 0;
    return opened;
}

/* As open_at(), but -EXDEV for the excluded device. `mounts`, `refused`: as open_local(); NULL: any
 * mount. */
static int
open_unless_excluded(int directory, const char *path, int flags, const struct open_mounts *mounts,
                     uint64_t *refused)
{
    bool no_proc;
    int fd;

    if (atomic_load(&excluded) == 0)
        return openat_retry(directory, path, flags);
    fd = open_in_process(directory, path, flags, mounts, refused, &no_proc);
    if (fd == -ESTALE) {
        /* A cached NFS directory is stale. The kernel revalidates it only when it resolves the
         * whole path. */
        fd = openat_retry(directory, path, O_PATH | O_CLOEXEC);
        if (fd >= 0)
            close(fd);
        fd = open_in_process(directory, path, flags, mounts, refused, &no_proc);
    }
    return no_proc ? openat_retry(directory, path, flags) : fd;
}

/*
 * Whether to open again because no descriptor was free. Every walk holds a few for a short time, so
 * many walks at once can use up a low limit. The walk has closed its own before it waits, since
 * walks that wait with descriptors open would wait for each other.
 */
static bool
no_descriptor_repeat(int fd, unsigned *repeats)
{
    if (!error_is_no_descriptor(fd) || *repeats == NO_DESCRIPTOR_REPEATS_MOST)
        return false;
    ++*repeats;
    nanosleep(&(struct timespec){0, NO_DESCRIPTOR_PAUSE_NS}, NULL);
    return true;
}

int
open_at_mount(int directory, const char *path, int flags, uint64_t mount, uint64_t *refused)
{
    struct open_mounts mounts = {.ids = {mount}};
    struct walk_stat st;
    int fd;

    if (mount != 0 && stat_cached(directory, &st) == 0 && st.mount != 0) {
        mounts.ids[1] = st.mount;
        mounts.count = 2;
    }
    fd = open_unless_excluded(directory, path, flags, mounts.count ? &mounts : NULL, refused);
    if (fd == -EACCES && other_opener && !(flags & O_PATH))
        return other_opener(directory, path, flags, mount);
    return fd == -EXDEV ? -ELOOP : fd;
}

int
open_at(int directory, const char *path, int flags)
{
    unsigned repeats = 0;
    int fd;

    do
        fd = open_at_mount(directory, path, flags, 0, NULL);
    while (no_descriptor_repeat(fd, &repeats));
    return fd;
}

int
open_path_as(int directory, const char *path, const struct open_rules *rules)
{
    struct path_walk here = {.at = directory, .first = directory, .rules = rules};
    int fd;

    if (!*path) {
        fd = walk_permit_start(&here);
        if (!fd && (fd = fcntl(directory, F_DUPFD_CLOEXEC, 0)) < 0)
            fd = -errno;
        return fd;
    }
    fd = open_by_walk(directory, path, O_PATH | O_CLOEXEC, rules, NULL, NULL);
    return fd == -EXDEV ? -ELOOP : fd;
}

int
open_local(int directory, const char *path, const struct open_mounts *mounts, uint64_t *refused)
{
    const struct open_rules own = own_rules();
    unsigned repeats = 0;
    int fd;

    do
        fd = open_by_walk(directory, path, 0, &own, mounts, refused);
    while (no_descriptor_repeat(fd, &repeats));
    return fd;
}

errint_t
open_stat(int directory, const char *path, struct stat *st)
{
    unsigned waits = 0, repeats = 0;
    errint_t error = 0;
    int fd, failed;

    do
        fd = open_unless_excluded(directory, path, O_PATH | O_CLOEXEC, NULL, NULL);
    while (no_descriptor_repeat(fd, &waits));
    if (fd < 0)
        return fd;
    do
        failed = fstat(fd, st);
    while (failed && eintr_repeat(&repeats));
    if (failed)
        error = -errno;
    close(fd);
    return error;
}

/* ---- renewing a directory ---- */

/* Whether any path leads to the directory of `fd`. True if /proc is not mounted. */
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

/* Opens with O_PATH, which Landlock allows everywhere. Does not follow symbolic links: a real path
 * has none, so any user with write access to a parent directory may have placed one later. */
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
