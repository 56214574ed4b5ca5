/* SPDX-License-Identifier: Apache-2.0 */
#include "base/resolve.h"

#include "base/eintr.h"
#include "base/file.h"
#include "base/overflow_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* MOST_LINKS is Linux's limit. MOST_NAMES bounds the time: a path through 40 links of 4 KB would
 * take a quarter of a second. */
enum { MOST_LINKS = 40, MOST_NAMES = 256 };

/* Set in the ID under which resolve_path() reports an automount point that is not mounted. */
#define AUTOMOUNT_ID (UINT64_C(1) << 63)

static _Atomic(dev_t) excluded; /* 0: none */
/* fs.protected_symlinks. The kernel does not apply it to links that this process follows. */
static atomic_bool protects_symlinks = true;

void
resolve_exclude(dev_t device)
{
    atomic_store(&protects_symlinks,
                 file_read_number("/proc/sys/fs/protected_symlinks", "", 1) != 0);
    atomic_store(&excluded, device);
}

bool
resolve_has_excluded(void)
{
    return atomic_load(&excluded) != 0;
}

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
    const struct resolve_rules *rules;
    dev_t permitted; /* the last device that rules->permits_device() permitted */
    const struct resolve_mounts *mounts; /* see resolve_path(); NULL: any */
    uint64_t refused_mount; /* set on -EREMOTE */
    struct user_link user_links[MOST_LINKS]; /* each within the one before */
    unsigned user_link_count;
    bool has_climbed; /* what is above the top was checked */
    dev_t owners_device; /* the last device that all their owners may access */
};

static void
walk_to(struct path_walk *walk, int fd)
{
    if (walk->at >= 0 && walk->at != walk->first)
        close(walk->at);
    walk->at = fd;
}

errint_t
resolve_stat(int fd, struct resolve_stat *out)
{
    const unsigned wanted = STATX_TYPE | STATX_UID | STATX_INO | STATX_MNT_ID | STATX_MNT_ID_UNIQUE;
    struct statx stx;
    struct stat st;

    *out = (struct resolve_stat){0};
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &stx) == 0) {
        out->device = makedev(stx.stx_dev_major, stx.stx_dev_minor);
        out->inode = stx.stx_ino;
        out->mode = stx.stx_mode;
        out->owner = stx.stx_uid;
        out->mount = resolve_mount_id(&stx);
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
    *out = (struct resolve_stat){
        .device = st.st_dev, .inode = st.st_ino, .mode = st.st_mode, .owner = st.st_uid};
    return 0;
}

/* ---- mounts that a walk may enter ---- */

uint64_t
resolve_mount_id(const struct statx *stx)
{
    uint64_t mount;

    if (!(stx->stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE)))
        return 0;
    /* stx_mnt_id, which the headers of older systems lack. */
    memcpy(&mount, &stx->stx_dev_minor + 1, sizeof(mount));
    return mount;
}

static bool
has_mount(const struct resolve_mounts *mounts, uint64_t mount)
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
           resolve_mount_id(&stx) == mount;
}

/* Without mount IDs, every mount is permitted. File systems on block devices, whose major number is
 * not 0, are local. */
static bool
walk_may_enter(struct path_walk *walk, const struct resolve_stat *st)
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
    return is_same_user(st->st_uid, user) || ((st->st_mode >> 3 | st->st_mode) & mask) == mask;
}

/* Begins the check of a link (open as `fd`), whose target is resolved once `left` bytes of the rest
 * remain. */
static void
walk_enter_link(struct path_walk *walk, int fd, const struct resolve_stat *link, size_t left)
{
    uid_t owner;

    if (!walk->rules->owners)
        return;
    owner = walk->rules->owners->owner_of(link->owner, fd, link->device);
    if (owner == 0 || is_same_user(owner, walk->rules->user))
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
    const struct resolve_rules *rules = walk->rules;
    errint_t error = rules->permits ? rules->permits(rules->arg, fd, X_OK) : 0;

    return error ? error : walk_check_owners(walk, fd);
}

static errint_t
walk_permit_device(struct path_walk *walk, int fd, dev_t device)
{
    const struct resolve_rules *rules = walk->rules;
    errint_t error = 0;

    if (rules->permits_device && device != walk->permitted)
        error = rules->permits_device(rules->arg, fd, device);
    if (error)
        return error;
    walk->permitted = device;
    if (walk->user_link_count && device != walk->owners_device &&
        !rules->owners->permits(fd, device))
        return -EPERM;
    walk->owners_device = device;
    return 0;
}

/* Whether the walk may go on to the file of `fd`. */
static errint_t
walk_enter(struct path_walk *walk, int fd, const struct resolve_stat *st)
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
               struct resolve_stat *st)
{
    const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    bool triggers = is_directory && !walk->mounts;
    errint_t error;
    int fd;

    for (;;) {
        fd = triggers ? eintr_openat(walk->at, name, flags | O_DIRECTORY) : -ENOTDIR;
        if (fd == -ENOTDIR)
            fd = eintr_openat(walk->at, name, flags);
        if (fd < 0)
            return fd;
        error = resolve_stat(fd, st);
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

/* Whether fs.protected_symlinks (proc_sys_fs(5)) allows this user to follow the link. */
static bool
may_follow(int directory, const struct resolve_stat *link, uid_t user)
{
    struct stat st;

    if (!atomic_load(&protects_symlinks))
        return true;
    if (fstat(directory, &st) < 0)
        return false;
    return (st.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) ||
           is_same_user(link->owner, user) || is_same_user(link->owner, st.st_uid);
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
    walk_to(walk, eintr_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC));
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
is_same_directory(const struct resolve_stat *a, const struct resolve_stat *b)
{
    return a->mount == b->mount && a->device == b->device && a->inode == b->inode;
}

/* Opens the directory above `fd`, for which the user must be able to search `fd`. */
static int
walk_open_parent(struct path_walk *walk, int fd, struct resolve_stat *st)
{
    errint_t error = walk_permit_search(walk, fd);
    int parent = error ? error : eintr_openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (parent < 0)
        return parent;
    error = resolve_stat(parent, st);
    if (!error)
        error = walk_enter(walk, parent, st);
    if (!error)
        return parent;
    close(parent);
    return error;
}

/* Whether `..` would lead out of resolve_rules.top, and who resolves the path must be checked. */
static bool
walk_is_at_top(const struct path_walk *walk)
{
    const struct resolve_rules *rules = walk->rules;
    struct resolve_stat top, at;

    if (rules->top < 0 || walk->has_climbed || (rules->owners && walk->user_link_count == 0))
        return false;
    return resolve_stat(rules->top, &top) != 0 || resolve_stat(walk->at, &at) != 0 ||
           is_same_directory(&top, &at);
}

/* Whether the user can reach the directory above the top to which `..` has led. */
static errint_t
walk_search_ancestors(struct path_walk *walk)
{
    struct resolve_stat st, above;
    errint_t error = resolve_stat(walk->at, &above);
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
    struct resolve_stat st;
    errint_t error = walk->rules->permits_device ? resolve_stat(walk->at, &st) : 0;

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
    struct resolve_stat st;
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

int
resolve_path(int directory, const char *path, int flags, const struct resolve_rules *rules,
             const struct resolve_mounts *mounts, uint64_t *refused)
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

int
resolve_path_as(int directory, const char *path, const struct resolve_rules *rules)
{
    struct path_walk here = {.at = directory, .first = directory, .rules = rules};
    int fd;

    if (!*path) {
        fd = walk_permit_start(&here);
        if (!fd && (fd = fcntl(directory, F_DUPFD_CLOEXEC, 0)) < 0)
            fd = -errno;
        return fd;
    }
    fd = resolve_path(directory, path, O_PATH | O_CLOEXEC, rules, NULL, NULL);
    return fd == -EXDEV ? -ELOOP : fd;
}
