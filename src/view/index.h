/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index files the mount makes. The `metadata` of each is `total_size` and whatever else the
 * checkpoint's own index has there.
 */
#ifndef FSTFS_VIEW_INDEX_H
#define FSTFS_VIEW_INDEX_H

#include "base/buffer.h"
#include "catalog/catalog.h"
#include "view/layout.h"

/*
 * The merged index of tensors/: `metadata.total_size` and `weight_map` (name to
 * shard) as every loader reads them, and `tensors`: for each its dtype, shape,
 * bytes, the file's path beside the index (`directory`/file name), its shard and
 * where in the shard its bytes begin.
 */
void index_of_tensors(const struct checkpoint *checkpoint, const char *directory,
                      struct buffer *out);

/* The index of the shards as they are in the source. */
void index_of_shards(const struct checkpoint *checkpoint, struct buffer *out);

/* The index of a re-cut into `count` parts, named by index_part_name(). */
errint_t index_of_parts(const struct checkpoint *checkpoint, const struct layout_part *parts,
                        size_t count, struct buffer *out);

/* STEM-00001-of-00007.safetensors, or STEM.safetensors where there is one part.
 * `part` counts from 0. */
void index_part_name(const char *stem, const char *suffix, size_t part, size_t count,
                     char out[512]);

#endif
