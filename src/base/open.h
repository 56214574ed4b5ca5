/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files of the source. All opens go through this module, since the sandboxed daemon cannot
 * open targets of symbolic links outside of the source and asks a helper process to do so.
 */
#ifndef FSTFS_BASE_OPEN_H
#define FSTFS_BASE_OPEN_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* As openat(2), repeated after EINTR as in eintr.h: a descriptor or a negative errno. -ELOOP: the
 * path crosses the excluded device. -ENXIO: a device is excluded, and the path is neither a regular
 * file nor a directory. If no descriptor is free, waits for one, at most about 250 ms. Any
 * thread. */
int open_at(int directory, const char *path, int flags);
/* The same, but does not wait for a free descriptor, and after open_exclude() enters only the mount
 * with this ID (0: any), those of `directory` and "/", and those of block devices. -EREMOTE: the
 * path leads through another one, whose ID is stored in *refused unless that is NULL. */
int open_at_mount(int directory, const char *path, int flags, uint64_t mount, uint64_t *refused);

/* How the owners of links are checked. Both functions may be called by any thread. */
struct open_owner_rules {
    int top; /* an open directory: see open_rules.top */
    /* Who may have made the link that is open as `fd`, on `device`, and shown as `owner`'s. */
    uid_t (*owner_of)(uid_t owner, int fd, dev_t device);
    /* Whether a link of `owner` may lead to the file system of `device`, which `fd` is on. */
    bool (*permits)(uid_t owner, int fd, dev_t device);
};

/* The user on whose behalf open_path_as() resolves a path. */
struct open_rules {
    uid_t user; /* the thread's file system user ID */
    /* Whether this user may search (X_OK) the directory that is open as `fd`: 0 or -EACCES. NULL:
     * the kernel checks the credentials of the thread. */
    errint_t (*permits)(void *arg, int fd, int mask);
    /* Whether this user may access the file system of `device`, which `fd` is on: 0 or -EACCES.
     * Called for each file system that the path enters. NULL: any. */
    errint_t (*permits_device)(void *arg, int fd, dev_t device);
    void *arg;
    const struct open_owner_rules *owners; /* of links; NULL: not checked */
    /* An open directory. If `..` leads out of it, the user must be able to search the directory
     * reached and all directories above it, as if the path began at "/". -1: not checked. */
    int top;
};

/* Resolves `path` in this process by these rules, following links, and opens it with O_PATH. If
 * `path` is "", duplicates the descriptor of the directory, which the user then need not be able to
 * search. Returns a descriptor or a negative errno; -ELOOP as above. */
int open_path_as(int directory, const char *path, const struct open_rules *rules);
/* As fstatat(2), following links. -EXDEV: the path crosses the excluded device. Any thread. */
errint_t open_stat(int directory, const char *path, struct stat *st);

/* From <linux/stat.h> of Linux 5.8 and 6.8. */
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000U
#endif
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

/* IDs of mounts, which the kernel reuses before Linux 6.8. */
enum { OPEN_MOUNTS = 8 };
struct open_mounts {
    unsigned count;
    uint64_t ids[OPEN_MOUNTS];
};

/*
 * As open_at() with O_PATH, following links, but enters only these mounts, that of "/", and those
 * of block devices. Where another one begins, fails with -EREMOTE without a request to its file
 * system, which may hang, and sets *refused to its ID. An automount point that is not mounted
 * counts as a mount. -EXDEV: as open_stat(). Any thread; waits for the file systems that it enters
 * only.
 */
int open_local(int directory, const char *path, const struct open_mounts *mounts,
               uint64_t *refused);
/* The mount ID in a result of statx(2) with STATX_MNT_ID and STATX_MNT_ID_UNIQUE. 0: the kernel
 * does not report it (before Linux 5.8). */
uint64_t open_mount_id(const struct statx *stx);

/* Opens the file that `fd` refers to again, even if its path now refers to another file. Returns a
 * descriptor, or a negative errno, also if /proc is not mounted. Any thread. */
int open_again(int fd, int flags);

/* Excludes the device of the mount itself from all paths: in a lookup there, this process would
 * wait for itself. From then on, open_at() and open_stat() accept only relative paths. Call it
 * before other threads are started. */
void open_exclude(dev_t device);

/*
 * From then on, open_at(), open_stat() and open_local() follow a link that belongs to neither root
 * nor this process's user only if its owner may be able to search each directory on the path of its
 * target, and to read the target (a directory: to list and search it). This is decided by these
 * rules, owners and modes; a permission of a group counts as the owner's. -EPERM: the link is not
 * followed. Otherwise names of the mount would reveal to users what only this process can reach.
 * Call it before other threads are started.
 */
void open_check_link_owners(const struct open_owner_rules *rules);

/* Sets a fallback for EACCES, which is also Landlock's error. It has the arguments and results of
 * open_at_mount(), and is called by any thread. NULL: none. Call it before other threads are
 * started. */
void open_set_other(int (*other)(int directory, const char *path, int flags, uint64_t mount));

/*
 * `directory` was opened at `path`, a real path. If that directory is no longer reachable by any
 * path (it was removed, or its file system was unmounted, has failed or is mounted over), the
 * descriptor is replaced by one of the directory that is at `path` now, opened with O_PATH without
 * following links, and the function returns true. A directory that was renamed is kept. Any thread.
 */
bool open_renew(int directory, const char *path);

#endif
