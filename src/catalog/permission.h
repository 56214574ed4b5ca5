/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may read what the mount shows.
 *
 * The kernel checks the modes fstfs shows (default_permissions). A mode says
 * enough for a file reached by its own path; these functions narrow it where a
 * file was reached through a link, or is made of several files.
 */
#ifndef FSTFS_CATALOG_PERMISSION_H
#define FSTFS_CATALOG_PERMISSION_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Owner and permission bits, as shown. */
struct access {
    uid_t owner;
    gid_t group;
    mode_t mode; /* permission bits only */
};

/* The source's own bits, less the write bits and set-id bits. */
struct access access_from_stat(const struct stat *st);

/* What is left when both `a` and `b` must allow it: `a`'s owner and group, and
 * for each class the bits that `b` allows everybody in that class too. */
struct access access_meet(struct access a, struct access b);

/*
 * Narrows `access` of a file that was opened as `fd` through a symbolic link:
 * for each class, reading stays allowed only where every directory on the way to
 * the file's real place may be searched by that class. Directories that hold
 * the source's root (`root_path`, absolute and real) are not counted: mounting
 * it was the decision to show it.
 */
struct access access_through_link(struct access access, int fd, const char *root_path);

#endif
