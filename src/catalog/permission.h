/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may read what the mount shows.
 *
 * The kernel checks the modes fstfs shows (default_permissions). A mode says
 * enough for a plain file reached by its own path; these functions narrow it where
 * a file was reached through a link, has a list of access beside its mode, or is
 * made of several files.
 */
#ifndef FSTFS_CATALOG_PERMISSION_H
#define FSTFS_CATALOG_PERMISSION_H

#include <stdbool.h>
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

bool access_equal(struct access a, struct access b);

/*
 * Narrows by the POSIX access control list of the file at `path`, through links: no
 * class of the mode gets what the list denies to anybody who may be in it. Who is
 * named by the list to get more than the mode gives does not get it here.
 */
struct access access_weigh_acl(struct access access, const char *path);

/* access_from_stat(), so narrowed, of an open file (O_PATH is enough). */
struct access access_of_open(const struct stat *st, int fd);

/* What is left when both `a` and `b` must allow it: `a`'s owner and group, and
 * for each class the bits that `b` allows everybody in that class too. */
struct access access_meet(struct access a, struct access b);

/*
 * Narrows `access` of a file that was opened as `fd` by the path `asked` below the
 * directory `root`, if there was a symbolic link on the way: for each class, reading
 * stays allowed only where every directory on the way to the file's real place may be
 * searched by that class. Directories that hold the root are not counted: mounting it
 * was the decision to show it. The way is taken of what is open, not of a second look
 * at the path, where there may be a link by now, or none any more.
 */
struct access access_by_way(struct access access, int fd, int root, const char *asked);

#endif
