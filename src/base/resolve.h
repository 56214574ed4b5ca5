/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves paths name by name in this process, following links, and checks each file on the way.
 * The kernel's own path walk could lead into the mount, to a name with a lookup in flight, and this
 * process would wait for itself. Any thread.
 */
#ifndef FSTFS_BASE_RESOLVE_H
#define FSTFS_BASE_RESOLVE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* From <linux/stat.h> of Linux 5.8 and 6.8. */
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000U
#endif
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

/* IDs of mounts, which the kernel reuses before Linux 6.8. */
enum { RESOLVE_MOUNTS = 8 };
struct resolve_mounts {
    unsigned count;
    uint64_t ids[RESOLVE_MOUNTS];
};

/* How the owners of links are checked. Both functions may be called by any thread. */
struct resolve_link_rules {
    int top; /* an open directory: see resolve_rules.top */
    /* Returns the user who may have created the link `fd` on `device`; `owner` is its st_uid. */
    uid_t (*owner_of)(uid_t owner, int fd, dev_t device);
    /* Whether a link of a user other than root and resolve_rules.user may lead to the file system
     * of `device`, which `fd` is on. */
    bool (*permits)(int fd, dev_t device);
};

/* The user on whose behalf a path is resolved. */
struct resolve_rules {
    uid_t user; /* the thread's file system user ID */
    /* Whether this user may search (X_OK) the directory that is open as `fd`: 0 or -EACCES. NULL:
     * the kernel checks the credentials of the thread. */
    errint_t (*permits)(void *arg, int fd, int mask);
    /* Whether this user may access the file system of `device`, which `fd` is on: 0 or -EACCES.
     * Called for each file system that the path enters. NULL: any. */
    errint_t (*permits_device)(void *arg, int fd, dev_t device);
    void *arg;
    const struct resolve_link_rules *owners; /* of links; NULL: not checked */
    /* An open directory. If `..` leads out of it, the user must be able to search the directory
     * reached and all directories above it, as if the path began at "/". -1: not checked. */
    int top;
};

/*
 * Opens `path` with O_PATH by these rules. O_DIRECTORY in `flags`: the last name is a directory.
 * `mounts`: enters only these mounts, that of "/", and those of block devices; NULL: any. At
 * the root of any other mount it fails with -EREMOTE, without a request to that file system, which
 * may hang, and sets *refused to the ID of the mount unless `refused` is NULL. An automount point
 * that is not mounted counts as a mount.
 *
 * Returns a descriptor or a negative errno. -EXDEV: the path crosses the excluded device. -EPERM:
 * the owner of a link lacks a right (open_check_link_owners()). -ELOOP: too many links, or too many
 * names in their targets.
 */
int resolve_path(int directory, const char *path, int flags, const struct resolve_rules *rules,
                 const struct resolve_mounts *mounts, uint64_t *refused);
/* The same for any mount and no flags. If `path` is "", duplicates the descriptor of the directory,
 * which the user then need not be able to search. -ELOOP: as above, or for the excluded device. */
int resolve_path_as(int directory, const char *path, const struct resolve_rules *rules);

/* Excludes the device of the mount itself from all paths: in a lookup there, this process would
 * wait for itself. Also reads the setting fs.protected_symlinks. Call it before other threads are
 * started, and before a sandbox is entered. */
void resolve_exclude(dev_t device);
bool resolve_has_excluded(void);

/* Attributes that are known without a request to the file system. */
struct resolve_stat {
    dev_t device;
    uint64_t inode;
    mode_t mode; /* only the type */
    uid_t owner;
    uint64_t mount; /* 0: the kernel does not report it */
    uint64_t automount; /* ID of an automount point that is not mounted; 0: the file is not one */
};

/* Fills in *out without a request to the file system, which may be served by this process, or may
 * hang. */
errint_t resolve_stat(int fd, struct resolve_stat *out);
/* The mount ID in a result of statx(2) with STATX_MNT_ID and STATX_MNT_ID_UNIQUE. 0: the kernel
 * does not report it (before Linux 5.8). */
uint64_t resolve_mount_id(const struct statx *stx);

#endif
