/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the checkpoint that a path refers to, by the catalog's rules. */
#ifndef FSTFS_CLIENT_FIND_H
#define FSTFS_CLIENT_FIND_H

#include "base/error.h"
#include "catalog/catalog.h"
#include "client/mount.h"

/* A checkpoint and the objects that it depends on. All NULL: nothing found. found_free() frees it.
 */
struct found {
    struct catalog *catalog;
    struct source_dir *dir;
    struct checkpoint *checkpoint;
};

/* Finds the checkpoint at a path: a file, an index or a directory. All its shards are valid. Errors
 * are those of fstfs_open(), with fail(). */
errint_t find_path(const char *path, struct found *found);

/*
 * Finds the checkpoint in the source that a file of the mount is generated from, in the version
 * that the mount shows. If the mount names the shards, their directory is not listed. It has all
 * its shards, and they are valid. -ENOENT: the source has another version; -EBADMSG: it is invalid
 * or incomplete. Errors with fail().
 */
errint_t find_origin(const struct mount_origin *origin, struct found *found);

void found_free(struct found *found);

#endif
