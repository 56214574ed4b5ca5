/* SPDX-License-Identifier: Apache-2.0 */
#include "view/tensor_order.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t
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

/* Bytes for sorting: the names, counted twice because their buffer is copied as it grows; the
 * positions, and the copy of them that qsort() makes. */
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

static uint64_t
order_bytes(const struct checkpoint *checkpoint)
{
    return ((uint64_t)checkpoint->tensor_count + 1) * sizeof(uint32_t);
}

errint_t
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
    header_budget_settle(budget, bytes, error ? 0 : order_bytes(checkpoint));
    return error;
}

void
tensor_order_free(const struct checkpoint *checkpoint, uint32_t *order)
{
    if (order)
        header_budget_give(catalog_budget(checkpoint->catalog), order_bytes(checkpoint));
    free(order);
}
