/* SPDX-License-Identifier: Apache-2.0 */
#include "view/tensor_set.h"

#include "format/gguf.h"
#include "format/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the order of the files ---- */

/* Writes the file name of a tensor in tensors/ or npy/; returns its length. */
static size_t
tensor_order_name(const struct checkpoint *checkpoint, struct tensor_ref ref, enum view_kind view,
                  char out[FILE_NAME_SIZE])
{
    const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

    return tensor_file_name(checkpoint->shards[ref.shard]->table->text + tensor->name,
                            tensor->name_length, view == VIEW_NPY ? ".npy" : "", out);
}

/* Returns whether each tensor has a file with exactly its name, so that both orders are the
 * same. */
static bool
is_order_of_names(const struct checkpoint *checkpoint, enum view_kind view)
{
    if (view == VIEW_NPY)
        return false; /* the suffix changes the order, and unknown dtypes are omitted */
    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];
        const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

        if (!tensor_name_is_plain(checkpoint->shards[ref.shard]->table->text + tensor->name,
                                  tensor->name_length, 0))
            return false;
    }
    return true;
}

/* Tensors of an unknown dtype have none, except for the types of GGUF. */
static bool
has_npy_file(const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    return checkpoint_tensor(checkpoint, ref)->dtype != DTYPE_UNKNOWN ||
           checkpoint->shards[ref.shard]->table->gguf;
}

struct named_position {
    char *name;
    uint32_t position;
};

static int
compare_named(const void *a, const void *b)
{
    const struct named_position *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->position > y->position) - (x->position < y->position);
}

/* Keeps only the first of several tensors with the same file name. */
static uint32_t
keep_first_of_name(const struct checkpoint *checkpoint, const struct named_position *all,
                   size_t count, uint32_t *order)
{
    uint32_t kept = 0;
    char name[QUOTED_SIZE];

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(all[i].name, all[i - 1].name) == 0) {
            struct tensor_ref ref = checkpoint->tensors[all[i].position];
            const struct shard *shard = checkpoint->shards[ref.shard];
            const struct st_tensor *tensor = &shard->table->tensors[ref.tensor];

            problem_set_add(checkpoint->problems, shard->name,
                            "tensor %s has no file: another tensor has the same file name",
                            quoted(name, shard->table->text + tensor->name, tensor->name_length));
            continue;
        }
        order[kept++] = all[i].position;
    }
    return kept;
}

/* Bytes for sorting: the names, counted three times because their buffer is copied as it grows; the
 * positions, and the copy of them that qsort() makes; the order. */
static uint64_t
sorting_bytes(const struct checkpoint *checkpoint)
{
    uint64_t bytes = 4096;

    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        uint64_t length = 3 * checkpoint_tensor(checkpoint, checkpoint->tensors[i])->name_length;

        bytes += 2 * sizeof(struct named_position) + sizeof(uint32_t) +
                 3 * (length + 5 < FILE_NAME_SIZE ? length + 5 : FILE_NAME_SIZE);
    }
    return bytes;
}

/* As tensor_order_new(), with the memory charged. */
static errint_t
sort_by_file_name(const struct checkpoint *checkpoint, enum view_kind view, uint32_t **order,
                  uint32_t *kept)
{
    size_t count = 0, total = checkpoint->tensor_count;
    struct named_position *all = malloc((total + 1) * sizeof(*all));
    struct buffer names = BUFFER_INIT;
    char file[FILE_NAME_SIZE];

    *order = malloc((total + 1) * sizeof(**order));
    for (uint32_t i = 0; all && i < total; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];

        if (view == VIEW_NPY && !has_npy_file(checkpoint, ref))
            continue;
        all[count].name = (char *)names.length;
        all[count++].position = i;
        buffer_add(&names, file, tensor_order_name(checkpoint, ref, view, file) + 1);
    }
    if (!all || !*order || buffer_failed(&names)) {
        free(*order);
        free(all);
        buffer_free(&names);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++)
        all[i].name = names.data + (size_t)all[i].name;
    qsort(all, count, sizeof(*all), compare_named);
    *kept = keep_first_of_name(checkpoint, all, count, *order);
    free(all);
    buffer_free(&names);
    return 0;
}

/*
 * Sorts the tensors that have a file in this view: sets `order` to indices into
 * checkpoint->tensors, or to NULL if they are already in order, and `count` to their number. Of
 * tensors with the same file name only the first has a file; the others get a problem. The order is
 * charged to the catalog's budget. -ENOMEM, with a problem if the budget is full.
 */
static errint_t
tensor_order_new(struct checkpoint *checkpoint, enum view_kind view, uint32_t **order,
                 uint32_t *count)
{
    struct header_budget *budget = catalog_budget(checkpoint->catalog);
    uint64_t bytes;
    errint_t error;

    *order = NULL;
    *count = checkpoint->tensor_count;
    if (is_order_of_names(checkpoint, view))
        return 0;
    bytes = sorting_bytes(checkpoint);
    if (header_budget_take(budget, bytes) != 0) {
        checkpoint_report_no_room(checkpoint, checkpoint->tensor_count,
                                  "the file names of its tensors");
        return -ENOMEM;
    }
    error = sort_by_file_name(checkpoint, view, order, count);
    header_budget_settle(budget, bytes, error ? 0 : tensor_order_bytes(checkpoint));
    return error;
}

/* ---- sets ---- */

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
