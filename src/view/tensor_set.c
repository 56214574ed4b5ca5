/* SPDX-License-Identifier: Apache-2.0 */
#include "view/tensor_set.h"

#include "format/gguf.h"
#include "format/npy.h"
#include "view/tensor_order.h"

#include <errno.h>
#include <string.h>

static struct tensor_ref
tensor_ref_at(const struct node *set, uint32_t position)
{
    return set->checkpoint->tensors[set->order ? set->order[position] : position];
}

struct set_tensor
tensor_set_at(const struct node *set, uint32_t position)
{
    struct tensor_ref ref = tensor_ref_at(set, position);
    const struct shard *shard = set->checkpoint->shards[ref.shard];
    const struct st_tensor *tensor = &shard->table->tensors[ref.tensor];

    return (struct set_tensor){shard, tensor, shard->table->data_start + tensor->begin,
                               tensor->end - tensor->begin};
}

size_t
tensor_set_file_name(const struct node *set, uint32_t position, char out[FILE_NAME_SIZE])
{
    return tensor_order_name(set->checkpoint, tensor_ref_at(set, position), set->view, out);
}

errint_t
tensor_set_find(const struct node *set, const char *name, uint32_t *position)
{
    uint32_t low = 0, high = set->count;
    char file[FILE_NAME_SIZE];

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order;

        tensor_set_file_name(set, middle, file);
        order = strcmp(file, name);
        if (order == 0) {
            *position = middle;
            return 0;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -ENOENT;
}

errint_t
tensor_set_header(const struct node *set, uint32_t position, struct buffer *header)
{
    struct set_tensor at = tensor_set_at(set, position);

    const struct st_table *table = at.shard->table;
    const uint64_t *dims = table->dims + at.tensor->shape;

    if (set->view != VIEW_NPY)
        return 0;
    if (at.tensor->dtype == DTYPE_UNKNOWN && table->gguf)
        return npy_packed_header(header, dims, at.tensor->rank, gguf_row_bytes(table, at.tensor));
    return npy_header(header, (enum dtype)at.tensor->dtype, dims, at.tensor->rank, at.length);
}

/* The directory's set, with a reference, if it is of this version; else NULL. */
static struct node *
last_set_of(struct view *view, struct node *directory, const struct checkpoint *checkpoint)
{
    struct node *set;

    pthread_mutex_lock(&view->lock);
    set = directory->set;
    if (set && set->checkpoint->serial == checkpoint->serial)
        set->references++;
    else
        set = NULL;
    pthread_mutex_unlock(&view->lock);
    return set;
}

errint_t
tensor_set_get(struct view *view, struct node *directory, struct checkpoint *checkpoint,
               struct node **out)
{
    struct node wanted = {.kind = NODE_TENSOR_SET, .view = directory->view};
    struct node *before;
    errint_t error;

    *out = last_set_of(view, directory, checkpoint);
    if (*out)
        return 0;
    error = tensor_order_new(checkpoint, directory->view, &wanted.order, &wanted.count);
    if (error)
        return error;
    wanted.inode = directory->inode;
    wanted.checkpoint = checkpoint_ref(checkpoint);
    *out = node_find_or_add(view, NULL, "", &wanted);
    if (!*out)
        return -ENOMEM;
    pthread_mutex_lock(&view->lock);
    before = directory->set;
    directory->set = *out;
    (*out)->references++;
    pthread_mutex_unlock(&view->lock);
    node_unref(view, before, 1);
    return 0;
}
