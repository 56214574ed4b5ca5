/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The merged file of a GGUF model in several parts. Its header is generated, except for the
 * key-values, which are ranges of the first part. See format/gguf_write.h.
 *
 * Any thread; does not wait for storage.
 */
#ifndef FSTFS_VIEW_GGUF_LAYOUT_H
#define FSTFS_VIEW_GGUF_LAYOUT_H

#include "base/extent.h"
#include "catalog/catalog.h"

/* Lays out all tensors of a sound checkpoint. Returns the file's size and, unless `list` is NULL,
 * its extents. Their memory is charged to the budget, so the caller must not hold a transient
 * charge if `list` is not NULL. -EOVERFLOW: the file would be longer than a file can be. -ENOBUFS:
 * the budget has no room for the list. -ENOMEM. */
errint_t gguf_layout_file(const struct checkpoint *checkpoint, uint64_t *size,
                          struct extent_list **list);

#endif
