/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the descriptor of a directory that has no path any more by one of the directory that is
 * at its path now. */
#ifndef FSTFS_BASE_RENEW_H
#define FSTFS_BASE_RENEW_H

#include "base/error.h"
#include "base/extent.h"

#include <sys/types.h>

/* A real path of a directory, and the directories above it as they were at first. Constant. */
struct renewal_path {
    char *path;
    struct file_identity *above; /* without "/" */
};

/* `path` is copied. On success the caller calls renewal_path_free(). */
errint_t renewal_path_init(struct renewal_path *renewal, const char *path);
void renewal_path_free(struct renewal_path *renewal); /* all zero is allowed */

enum renewal {
    RENEWAL_NONE, /* not needed, or there is no directory at the path */
    RENEWAL_DONE,
    RENEWAL_REFUSED, /* a directory above may have been replaced by another user */
};

/*
 * `directory` was opened at the path. If that directory is no longer reachable by any path (it was
 * removed, or its file system was unmounted, has failed or is mounted over), the descriptor is
 * replaced by one of the directory that is at the path now, opened with O_PATH. A directory that
 * was renamed is kept. Any thread.
 *
 * No link is followed: a real path has none, so any user with write access to a directory above may
 * have placed one later. Nor is a directory above accepted if it was replaced and users other than
 * root and that of this process can put a directory of somebody else into its parent: they can
 * rename a directory that they cannot read, and its content would be at the path. Whether the root
 * of a mount is accepted depends on who mounted it, see renewal_check_mounts(). The last directory
 * may be replaced by anybody, since its own mode protects it wherever it is.
 */
enum renewal renewal_renew(const struct renewal_path *renewal, int directory);

/*
 * Sets a function that returns which user can decide what the file system of `fd` shows: the
 * ordinary user who has mounted it, (uid_t)-1 if it may have been mounted by an unknown one, else
 * `owner`. Without it, all mounts are accepted. Call it before other threads are started.
 */
void renewal_check_mounts(uid_t (*user)(uid_t owner, int fd, dev_t device));

#endif
