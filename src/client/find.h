/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the checkpoint that a path refers to, by the catalog's rules. */
#ifndef FSTFS_CLIENT_FIND_H
#define FSTFS_CLIENT_FIND_H

#include "base/error.h"
#include "catalog/catalog.h"
#include "client/mount.h"

#include <stdint.h>

/* A checkpoint and the objects that it depends on. All NULL: none. */
struct found {
    struct catalog *catalog;
    struct source_dir *dir;
    struct checkpoint *checkpoint;
};

/* The checkpoint at a path: a file, an index, a directory. It is sound: all its shards are valid.
 * Errors as fstfs_open(), set by fail(). */
errint_t find_path(const char *path, struct found *found);

/*
 * The checkpoint in the source that a file of the mount is made of, if it is still that version. If
 * the mount names the shards, the rest of their directory is not read. -ENOENT: another version.
 * Errors are set by fail().
 */
errint_t find_origin(const struct mount_origin *origin, struct found *found);

void found_free(struct found *found);

#endif
