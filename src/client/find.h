/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which checkpoint a path means, by the catalog's rules, and that it is sound.
 */
#ifndef FSTFS_CLIENT_FIND_H
#define FSTFS_CLIENT_FIND_H

#include "base/error.h"
#include "catalog/catalog.h"

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

/* The checkpoint `stem` of a directory in that version. -ENOENT and others, said by
 * fail(). */
errint_t find_version(const char *directory, const char *stem, uint64_t version,
                      struct found *found);

void found_free(struct found *found);

#endif
