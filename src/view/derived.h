/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made files: the files that the views make from one version of a checkpoint. Their sizes are
 * computed once for each version and kept with it (checkpoint->derived); their extent lists are
 * made when they are opened.
 *
 * Any thread. Does not wait for storage. Memory is charged to the catalog's budget; if that is
 * full, these functions return -ENOMEM and add a problem.
 */
#ifndef FSTFS_VIEW_DERIVED_H
#define FSTFS_VIEW_DERIVED_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/layout.h"
#include "view/view.h"

enum made_kind {
    MADE_TENSOR_INDEX, /* the index in tensors/ */
    MADE_TENSOR_INDEX_BY_FILE, /* the same, in a directory named after the first shard */
    MADE_MERGED, /* the merged file; of a checkpoint of one file, that file */
    MADE_MERGED_INDEX, /* an index that names only the merged file */
    MADE_SHARD_INDEX, /* an index of the source's shards, if the source has none */
    MADE_PART, /* a re-cut shard; if there is only one, the merged file */
    MADE_PART_INDEX, /* the index of all re-cut shards */
    MADE_KINDS,
};

struct made {
    enum made_kind kind;
    uint32_t part; /* number of a MADE_PART, from 0 */
};

/* A list of one extent: all of a file of the source, or this text. The buffer is emptied, also on
 * failure. -ENOMEM. */
errint_t list_of_backing(struct backing *backing, struct extent_list **list);
errint_t list_of_text(struct buffer *text, struct extent_list **list);

/* The file's size. -ENOENT: the checkpoint has no such file. */
errint_t derived_size(struct checkpoint *checkpoint, const struct view_options *options,
                      const struct made *made, uint64_t *size);

/* The number of re-cut shards. -ENOENT: the checkpoint cannot be re-cut. */
errint_t derived_parts(struct checkpoint *checkpoint, const struct view_options *options,
                       uint32_t *parts);

/* The file's extents; a reference. Errors as derived_size(). */
errint_t derived_list(struct checkpoint *checkpoint, const struct view_options *options,
                      const struct made *made, struct extent_list **list);

#endif
