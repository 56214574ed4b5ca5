/* SPDX-License-Identifier: Apache-2.0 */
/* Writes extent lists to files, and compares them with files. */
#ifndef FSTFS_PACK_COPY_H
#define FSTFS_PACK_COPY_H

#include "base/error.h"
#include "base/extent.h"
#include "common/progress.h"

struct copier;

/* A file that is being written. */
struct copy {
    struct extent_list *list; /* a reference */
    int fd;
    struct range *left; /* the parts that are not shared */
    size_t left_count;
    uint64_t shared; /* bytes */
    bool is_open; /* the versions of the list's backings are open */
};

errint_t copier_new(struct copier **copier);
void copier_free(struct copier *copier); /* NULL is allowed */

/*
 * Prepares to write a list to the new, empty file `fd`, and shares aligned blocks with the backing
 * files (FICLONERANGE) where the file system supports it. copy_remaining() bytes are left to be
 * written. Fails if another process has a file of the list open for writing, unless `is_side`: side
 * files, such as logs, may be. Call copy_end() in any case.
 */
errint_t copy_begin(struct extent_list *list, int fd, bool is_side, struct copy *copy,
                    struct reason *reason);
uint64_t copy_remaining(const struct copy *copy);

/*
 * Reads the remaining bytes with the engine and writes them, without sync. Adds their number to
 * progress->running. Uses a fixed number of buffers. -EINTR after a signal.
 */
errint_t copy_run(struct copier *copier, struct copy *copy, struct progress *progress,
                  struct reason *reason);

/* Compares the file, as it is on storage, with the list. -EILSEQ if they differ. */
errint_t copy_compare(struct copier *copier, struct copy *copy, struct progress *progress,
                      struct reason *reason);

void copy_end(struct copy *copy); /* all zero is valid */

#endif
