/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors files that exist only in the mount: the merged file of several shards, and re-cut
 * shards.
 *
 * Such a file has a new header, padded with spaces so that the data starts at a multiple of 4096,
 * and then its tensors. Since the format forbids gaps, tensors are aligned by their order: first
 * those whose size is a multiple of 4096, so that nearly every large tensor starts on a page
 * boundary; then the others by decreasing element size, so that each starts at a multiple of its
 * element size, as torch requires. Within each class they are in shard order.
 *
 * Any thread; does not wait for storage.
 */
#ifndef FSTFS_VIEW_LAYOUT_H
#define FSTFS_VIEW_LAYOUT_H

#include "base/extent.h"
#include "catalog/catalog.h"

/* The tensors of a checkpoint in shard order: shards by name, then by offset. malloc'ed; NULL: out
 * of memory. */
struct tensor_ref *layout_shard_order(const struct checkpoint *checkpoint);

/* For each shard, the number of tensors in the shards before it; then the number of all tensors.
 * malloc'ed; NULL: out of memory. */
size_t *layout_shard_starts(const struct checkpoint *checkpoint);

/* Returns the bytes of memory that a list takes, including its layout and blobs. */
uint64_t layout_list_bytes(const struct extent_list *list);
/* Replaces a transient charge of `bytes` for making a list by one for the list's memory, which is
 * returned when the list is freed. NULL: no list was made. */
void layout_settle_list(struct header_budget *budget, uint64_t bytes, struct extent_list *list);

/*
 * Lays out `count` tensors, given in shard order. Returns the file's size and, unless `list` is
 * NULL, its extents. Their memory is charged to the budget, so the caller must not hold a transient
 * charge if `list` is not NULL. -EFBIG: the header would be longer than safetensors can read.
 * -EOVERFLOW: the file would be longer than a file can be.
 * -ENOBUFS: the budget has no room for the list. -ENOMEM.
 */
errint_t layout_file(const struct checkpoint *checkpoint, const struct tensor_ref *refs,
                     size_t count, uint64_t *size, struct extent_list **list);

/* The positions in a file of the tensors that have data, and their order by name, for the
 * prefetcher. `order`: the `count` tensors of the file. The first one begins at `data_start`, each
 * other one at the end of the previous one, rounded up to `alignment`, a power of 2. NULL: out of
 * memory; reads are then slower. */
struct layout *layout_pieces(const struct checkpoint *checkpoint, const struct tensor_ref *order,
                             size_t count, uint64_t data_start, uint32_t alignment);

/* Adds a problem for each metadata key whose value is not the same in all shards. */
void layout_check_metadata(const struct checkpoint *checkpoint);

/* A re-cut shard: tensors [first, first + count) in shard order. */
struct layout_part {
    size_t first, count;
};

/*
 * Cuts a checkpoint into `shards` parts of about the same size; if that is 0, into parts of at most
 * `shard_size` bytes of tensors, as huggingface_hub's split_torch_state_dict_into_shards does: a
 * larger tensor gets a part of its own. Returns malloc'ed parts, at least one. -ENOMEM.
 */
errint_t layout_cut(const struct checkpoint *checkpoint, const struct tensor_ref *refs,
                    uint32_t shards, uint64_t shard_size, struct layout_part **parts,
                    size_t *count);

/* Cuts a checkpoint at the boundaries of its shards in the source. Returns parts as layout_cut().
 */
errint_t layout_cut_shards(const struct checkpoint *checkpoint, struct layout_part **parts,
                           size_t *count);

#endif
