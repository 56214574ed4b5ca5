/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors files that exist only in the mount: the merged file of several shards, re-cut
 * shards.
 *
 * Such a file has a fresh header, padded with spaces until the data starts at a
 * multiple of 4096, and its tensors with no hole between them (the format
 * forbids holes): first those whose size is a multiple of 4096, in shard order,
 * so that nearly every big tensor begins on a page; then the rest by falling
 * element size, in shard order, so that each begins at a multiple of its
 * element, as torch needs it.
 */
#ifndef FSTFS_VIEW_LAYOUT_H
#define FSTFS_VIEW_LAYOUT_H

#include "base/extent.h"
#include "catalog/catalog.h"

/* The tensors of a checkpoint in shard order: shards by name, then by offset. */
struct tensor_ref *layout_shard_order(const struct checkpoint *checkpoint);

/* For each shard, the number of tensors before its own in shard order; then the number of all
 * tensors. malloc'ed; NULL: out of memory. */
size_t *layout_shard_starts(const struct checkpoint *checkpoint);

/* Memory of a list with its layout and blobs. */
uint64_t layout_list_bytes(const struct extent_list *list);
/* Settles a charge of `bytes` for making a list; what the list takes stays charged until it
 * is freed. NULL: none was made. */
void layout_settle_list(struct header_budget *budget, uint64_t bytes, struct extent_list *list);

/*
 * Lays out `count` tensors (in shard order). Gives the file's size and, where
 * `list` is not NULL, its extents, charged. -EFBIG: safetensors could not read the header.
 * -ENOBUFS: the budget has no room for the list. The caller has no transient charge where
 * `list` is not NULL.
 */
errint_t layout_file(const struct checkpoint *checkpoint, const struct tensor_ref *refs,
                     size_t count, uint64_t *size, struct extent_list **list);

/* Says in the checkpoint's problems which metadata keys its shards disagree on. */
void layout_check_metadata(const struct checkpoint *checkpoint);

/* One shard of a re-cut: tensors [first, first + count) in shard order. */
struct layout_part {
    size_t first, count;
};

/*
 * Cuts a checkpoint into `shards` parts of about the same size, or, when that is
 * 0, into parts of at most `shard_size` bytes of tensors (a bigger tensor is a
 * part of its own), as huggingface_hub's split_torch_state_dict_into_shards
 * does. Gives malloc'ed parts, at least one.
 */
errint_t layout_cut(const struct checkpoint *checkpoint, const struct tensor_ref *refs,
                    uint32_t shards, uint64_t shard_size, struct layout_part **parts,
                    size_t *count);

#endif
