/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made files: the files that views generate from one version of a checkpoint. Their sizes are
 * computed once per version and stored in it (checkpoint->derived); extent lists are not, but
 * view/list_cache.h keeps recent ones.
 *
 * Any thread. Does not wait for storage. Memory is charged to the catalog's budget; if that is
 * full, these functions add a problem and return -ENOMEM.
 */
#ifndef FSTFS_VIEW_DERIVED_H
#define FSTFS_VIEW_DERIVED_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/layout.h"
#include "view/view.h"

enum made_kind {
    MADE_TENSOR_INDEX, /* the index in tensors/ */
    MADE_TENSOR_INDEX_BY_FILE, /* the same, if the directory has the name of the first shard */
    MADE_MERGED, /* the merged file; of one file that is not converted, that file unchanged */
    MADE_MERGED_INDEX, /* an index that names only the merged file */
    MADE_SHARD, /* a converted shard of the source */
    MADE_SHARD_INDEX, /* an index of the source's shards, if the source has none or they are
                       * converted */
    MADE_PART, /* a re-cut shard; if there is only one, the merged file */
    MADE_PART_INDEX, /* the index of all re-cut shards */
    MADE_KINDS,
};

struct made {
    enum made_kind kind;
    uint32_t part; /* number of a MADE_PART or MADE_SHARD, from 0 */
};

static inline bool
made_is_recut(enum made_kind kind)
{
    return kind == MADE_PART || kind == MADE_PART_INDEX;
}

/* Makes a list of one extent: a whole file of the source, or a text. The buffer is emptied, even on
 * failure. -ENOMEM. */
errint_t list_of_backing(struct backing *backing, struct extent_list **list);
errint_t list_of_text(struct buffer *text, struct extent_list **list);

/* Whether an index or a shard cannot be read now, so that it is unknown whether the file exists. */
bool derived_is_unread(const struct checkpoint *checkpoint, enum made_kind kind);

/* The file's size. -ENOENT: the checkpoint has no such file. -ENOMEM: no memory, or no room in the
 * budget for headers. */
errint_t derived_size(struct checkpoint *checkpoint, const struct view_options *options,
                      const struct made *made, uint64_t *size);

#define PARTS_UNKNOWN UINT32_MAX

/* The number of re-cut shards. Sets *parts to 0 with -ENOENT, the checkpoint cannot be re-cut, and
 * to PARTS_UNKNOWN with -ENOMEM, which is as of derived_size(). */
errint_t derived_parts(struct checkpoint *checkpoint, const struct view_options *options,
                       uint32_t *parts);

/* The file's extents; a reference. Errors as derived_size(). */
errint_t derived_list(struct checkpoint *checkpoint, const struct view_options *options,
                      const struct made *made, struct extent_list **list);

#endif
