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

errint_t copier_new(struct copier **copier);
void copier_free(struct copier *copier); /* NULL is allowed */

/*
 * Makes the new, empty file `fd` what the list is: shares with the backing files
 * what the file system can share and lies right for it, reads the rest by the engine
 * and writes it. Does not sync. Bytes are added to progress->running. Memory is a
 * fixed number of buffers. -EINTR when a signal came.
 */
errint_t copy_list(struct copier *copier, struct extent_list *list, int fd,
                   struct progress *progress, struct reason *reason);

/* Compares the file with the list, byte for byte, as the storage has it. -EILSEQ
 * and the reason where they differ. */
errint_t copy_compare(struct copier *copier, struct extent_list *list, int fd,
                      struct progress *progress, struct reason *reason);

/* Bytes that were shared so far, and not copied. */
uint64_t copier_shared(const struct copier *copier);

#endif
