/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the view works out for one version of a checkpoint: sizes of the files
 * made of it, once; and their extents, when they are opened.
 */
#ifndef FSTFS_VIEW_DERIVED_H
#define FSTFS_VIEW_DERIVED_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/layout.h"
#include "view/view.h"

enum made_kind {
    MADE_MERGED, /* the merged file; of one shard, that file */
    MADE_MERGED_INDEX, /* an index that names it alone */
    MADE_PART, /* a shard of a re-cut; the only one is the merged file */
    MADE_PART_INDEX, /* the index of all of them, be they only one */
    MADE_SHARD_INDEX, /* an index for shards that have none in the source */
    MADE_TENSOR_INDEX, /* the merged index, in tensors/ */
};

/* How a file is made. `part`: of MADE_PART, which one, from 0; of MADE_TENSOR_INDEX, 1 where the
 * directory of the tensors has the name of the checkpoint's first file, else 0: its stem. */
struct made {
    enum made_kind kind;
    uint32_t part;
};

/* The file's size. -ENOENT: there is no such file of this checkpoint. */
errint_t derived_size(struct checkpoint *checkpoint, const struct view_options *options,
                      const struct made *made, uint64_t *size);

/* A file that is this one, all of it. */
errint_t list_of_backing(struct backing *backing, struct extent_list **list);

/* A file that is this text; the buffer is emptied, whatever comes of it. */
errint_t list_of_text(struct buffer *text, struct extent_list **list);

/* How many shards the re-cut has. -ENOENT: there is no re-cut. */
errint_t derived_parts(struct checkpoint *checkpoint, const struct view_options *options,
                       uint32_t *parts);

/* Lists made of late, so that files opened again and again are not made again
 * and again: those in use, and idle ones of 32 MiB of text in all. */
struct opened;

struct opened *opened_new(void); /* NULL: out of memory */
void opened_free(struct opened *opened);

/* The file's extents; a reference. */
errint_t opened_get(struct opened *opened, struct checkpoint *checkpoint,
                    const struct view_options *options, const struct made *made,
                    struct extent_list **list);
/* A file was closed: lets go of what has become idle and is too much. */
void opened_trim(struct opened *opened);

#endif
