/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which checkpoint a path means, by the catalog's rules, and that it is sound.
 */
#ifndef FSTFS_CLIENT_FIND_H
#define FSTFS_CLIENT_FIND_H

#include "base/error.h"
#include "catalog/catalog.h"
#include "client/mount.h"

#include <stdint.h>

/* A checkpoint with what it came of. All NULL: none. */
struct found {
    struct catalog *catalog;
    struct source_dir *dir;
    struct checkpoint *checkpoint;
};

/* The checkpoint at a path: a file, an index, a directory. Errors are those of
 * fstfs_open(), and said by fail(). */
errint_t find_path(const char *path, struct found *found);

/*
 * The checkpoint in the source that a file of the mount is made of, in that version. Takes time by
 * its shards, not by what else is in their directory, unless the mount does not name them. -ENOENT
 * and others, said by fail().
 */
errint_t find_origin(const struct mount_origin *origin, struct found *found);

void found_free(struct found *found);

#endif
