/* SPDX-License-Identifier: Apache-2.0 */
/* The side files of a checkpoint that loaders open: configuration, tokenizer, code. */
#ifndef FSTFS_PACK_SIDE_H
#define FSTFS_PACK_SIDE_H

#include "base/extent.h"
#include "common/find.h"
#include "sources.h"

#include <stdbool.h>

struct side_file {
    char *name;
    struct backing *backing; /* a reference */
    bool may_have_acl; /* see struct sources */
};

/* All zero is an empty list. */
struct side_files {
    struct side_file *all;
    size_t count;
    struct sources sources; /* also of files that are not copied because their name exists */
};

/*
 * Adds the files of the checkpoint's directory, following links, except hidden files and weights.
 * Of files with the same name only the first is kept. Prints the names of directories and special
 * files, and of files that are omitted because their name exists. Fails if one of the files is a
 * link that cannot be followed.
 */
errint_t side_add(struct side_files *files, const struct found *found, const char *path,
                  struct reason *reason);

void side_free(struct side_files *files);

#endif
