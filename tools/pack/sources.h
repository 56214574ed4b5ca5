/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of input files: none of them may be replaced.
 *
 * A file is found by device and inode number. Mounts of fstfs report the versions of the files that
 * they show; these are found even if their path is not accessible here. Through other mounts that
 * change the numbers (overlayfs, FUSE) a file is found by its size and times, which they pass on.
 * Files of other file systems are not compared by times: a file in a snapshot has the times of the
 * original.
 */
#ifndef FSTFS_PACK_SOURCES_H
#define FSTFS_PACK_SOURCES_H

#include "base/extent.h"
#include "common/inode_map.h"

struct source_entry {
    char *path; /* of the input */
    struct file_identity identity;
    bool is_stacked; /* its file system may show files of another one */
};

/* A file that a mount of fstfs has reported. */
struct reported_source {
    char *path; /* of the input */
    uint64_t version; /* file_identity_hash() of the file */
};

/* All zero is an empty set. */
struct sources {
    struct inode_map inodes; /* numbers are indexes into `all`, plus 1 */
    struct source_entry *all;
    size_t count;
    struct reported_source *reported;
    size_t reported_count;
    /* One of the files that were added has an ACL (acl(5)), or it cannot be found out. The caller
     * may set it to false, to ask about the next ones. */
    bool may_have_acl;
};

/* Adds an input file and, if it is on a mount of fstfs or on a mount that passes on its xattrs, the
 * source files that contain its bytes. -ENOMEM. */
errint_t sources_add(struct sources *sources, const char *path);
/* The same for the file `name` in the directory at `directory`. */
errint_t sources_add_in(struct sources *sources, const char *directory, const char *name);

/* Returns the input path that led to the file `name` in an open directory, following links; NULL if
 * the file is not an input. */
const char *sources_find_in(const struct sources *sources, int directory, const char *name);

void sources_free(struct sources *sources);

#endif
