/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/self/mountinfo (proc(5)), which sends no request to any file system. Any thread. */
#ifndef FSTFS_BASE_MOUNTINFO_H
#define FSTFS_BASE_MOUNTINFO_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

/* One mount. Strings are malloc'ed. The escapes of the table are resolved in `mountpoint` and
 * `source`, not in `type` and `options`. */
struct mountinfo {
    int id, parent; /* parent: the mount that it is mounted on or inside */
    unsigned major, minor; /* of the device */
    char *mountpoint, *type, *source;
    char *options; /* of the file system; "" if there are none */
};

/* The table, from its start; close it with fclose(). NULL: errno is set. */
FILE *mountinfo_open(void);

/* Reads the next mount; free it with mountinfo_free(). False: there are no more. */
bool mountinfo_next(FILE *table, struct mountinfo *mount);
void mountinfo_free(struct mountinfo *mount);

/* Who mounted a FUSE file system, and who may access it. */
struct fuse_owner {
    uid_t user; /* by the number of the user namespace in which it was mounted */
    bool allow_other; /* else only this user */
};

/* Reads the options of a FUSE file system. False: it is another one, or virtiofs, which has no
 * user and which all users may access. */
bool mountinfo_fuse_owner(const struct mountinfo *mount, struct fuse_owner *owner);

/* Whether `path` is `directory` or is inside it; both absolute and real. */
bool path_is_inside(const char *path, const char *directory);

#endif
