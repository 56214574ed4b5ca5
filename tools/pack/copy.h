/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent lists made into files, and compared with them.
 */
#ifndef FSTFS_PACK_COPY_H
#define FSTFS_PACK_COPY_H

#include "base/error.h"
#include "base/extent.h"
#include "common/progress.h"

struct copier;

/* A file that is being made. */
struct copy {
    struct extent_list *list; /* a reference */
    int fd;
    struct range *left; /* what is not shared */
    size_t left_count;
    uint64_t shared; /* bytes */
};

errint_t copier_new(struct copier **copier);
void copier_free(struct copier *copier); /* NULL is allowed */

/*
 * Begins to make the new, empty file `fd` what the list is: shares with the backing files
 * what the file system can share and lies right for it. copy_room() bytes are then still to
 * be written. End it with copy_end() in any case.
 */
errint_t copy_begin(struct extent_list *list, int fd, struct copy *copy, struct reason *reason);
uint64_t copy_room(const struct copy *copy);

/*
 * Reads the rest by the engine and writes it. Does not sync. Bytes are added to
 * progress->running. Memory is a fixed number of buffers. -EINTR when a signal came.
 */
errint_t copy_run(struct copier *copier, struct copy *copy, struct progress *progress,
                  struct reason *reason);

/* Compares the file with the list, byte for byte, as the storage has it. -EILSEQ
 * and the reason where they differ. */
errint_t copy_compare(struct copier *copier, struct copy *copy, struct progress *progress,
                      struct reason *reason);

void copy_end(struct copy *copy); /* all zero is allowed */

#endif
