/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files are inputs, whatever path leads to them: none of them may be replaced.
 */
#ifndef FSTFS_PACK_SOURCES_H
#define FSTFS_PACK_SOURCES_H

#include "base/error.h"
#include "common/seen.h"

#include <stddef.h>
#include <stdint.h>

/* All zero is an empty set. */
struct sources {
    struct seen seen; /* numbers are places in `paths`, from 1 on */
    char **paths;
    size_t count;
};

/* Adds a file that is read; of a file on a mount of fstfs also the files that it is made of.
 * -ENOMEM. */
errint_t sources_add(struct sources *sources, const char *path);

/* The path that the file was added by; NULL: it is no input. */
const char *sources_find(const struct sources *sources, uint64_t device, uint64_t inode);

void sources_free(struct sources *sources);

#endif
