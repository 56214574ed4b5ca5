/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owner, group and permission bits that the mount shows for a file or directory.
 *
 * They are information. Where other users may enter the mount, nothing is granted
 * by them: each open asks the kernel (view/permission.h).
 */
#ifndef FSTFS_CATALOG_OWNERSHIP_H
#define FSTFS_CATALOG_OWNERSHIP_H

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

struct ownership {
    uid_t owner;
    gid_t group;
    mode_t mode; /* permission bits only, none of them a write bit */
};

static inline struct ownership
ownership_from_stat(const struct stat *st)
{
    return (struct ownership){st->st_uid, st->st_gid, st->st_mode & 0555};
}

/*
 * Of a file that is made of several: the owner and group that all have in common,
 * and the bits that all have. Where owners differ it is the mounting user's, who
 * has read the headers of all and so may read it.
 */
static inline struct ownership
ownership_combine(struct ownership a, struct ownership b)
{
    a.mode &= b.mode;
    if (a.owner != b.owner) {
        a.owner = geteuid();
        a.mode |= S_IRUSR;
    }
    if (a.group != b.group)
        a.group = getegid();
    return a;
}

#endif
