/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text of the made index files. The `metadata` of each is `total_size` and all other members of
 * `metadata` in the checkpoint's own index.
 */
#ifndef FSTFS_VIEW_INDEX_H
#define FSTFS_VIEW_INDEX_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/layout.h"

/*
 * The index in tensors/: `metadata.total_size` and `weight_map` (name to shard) as loaders read
 * them, and `tensors`: for each the dtype, the shape, the size in bytes, the path relative to the
 * index (`directory`/file name), the shard, and the offset of the data in the shard. Of a GGUF
 * model also `gguf`: its key-values, see format/gguf_pairs.h.
 */
void index_of_tensors(const struct checkpoint *checkpoint, const char *directory,
                      struct buffer *out);

/* The index of a checkpoint that is re-cut into `count` parts, named by index_part_name(), or if
 * `parts` is NULL, of the source's shards. -ENOMEM. */
errint_t index_of_parts(const struct checkpoint *checkpoint, const struct layout_part *parts,
                        size_t count, struct buffer *out);

/* STEM-00001-of-00007.safetensors; STEM.safetensors if `count` is 1. `part` counts from 0. */
void index_part_name(const char *stem, const char *suffix, size_t part, size_t count,
                     char out[512]);

/* Adds the shape of a tensor as a JSON array. */
void index_add_shape(const struct st_table *table, const struct st_tensor *tensor,
                     struct buffer *out);

#endif
