/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor files: positions in a NODE_TENSOR_SET. Any thread; does not wait for storage. */
#ifndef FSTFS_VIEW_TENSOR_SET_H
#define FSTFS_VIEW_TENSOR_SET_H

#include "view/names.h"
#include "view/node.h"

/* The set of `directory` (NODE_TENSORS) for this version of its checkpoint; a reference. */
errint_t tensor_set_get(struct view *view, struct node *directory, struct checkpoint *checkpoint,
                        struct node **set);

/* A tensor of a set: its shard and its entry in the shard's table. */
struct set_tensor {
    const struct shard *shard;
    const struct st_tensor *tensor;
    uint64_t offset, length; /* of its data in the shard, in bytes */
};
struct set_tensor tensor_set_at(const struct node *set, uint32_t position);

/* Writes the file name; returns its length. */
size_t tensor_set_file_name(const struct node *set, uint32_t position, char out[FILE_NAME_SIZE]);
/* Finds a file name; -ENOENT. */
errint_t tensor_set_find(const struct node *set, const char *name, uint32_t *position);

/* Appends the bytes before the data in the file: the header of a .npy file. */
errint_t tensor_set_header(const struct node *set, uint32_t position, struct buffer *header);

#endif
