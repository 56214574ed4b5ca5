/* SPDX-License-Identifier: Apache-2.0 */
/* See st_builder.h. */
#include "format/st_builder.h"

#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t
st_counts_bytes(const struct st_counts *counts)
{
    return sizeof(struct st_table) + counts->tensors * sizeof(struct st_tensor) +
           counts->metadata * sizeof(struct st_metadata) + counts->dims * sizeof(uint64_t) +
           counts->text;
}

/* Nothing overflows: the counts are bounded by the length of the header. */
bool
st_builder_init(struct st_builder *builder, const struct st_counts *counts)
{
    size_t tensors = sizeof(struct st_table);
    size_t metadata = tensors + counts->tensors * sizeof(struct st_tensor);
    size_t dims = metadata + counts->metadata * sizeof(struct st_metadata);
    size_t text = dims + counts->dims * sizeof(uint64_t);
    char *memory = malloc(text + counts->text);

    _Static_assert(sizeof(struct st_table) % 8 == 0 && sizeof(struct st_metadata) % 8 == 0,
                   "the arrays of a table follow each other");
    if (!memory)
        return false;
    *builder = (struct st_builder){
        .table = (struct st_table *)memory,
        .tensors = (struct st_tensor *)(memory + tensors),
        .metadata = (struct st_metadata *)(memory + metadata),
        .dims = (uint64_t *)(memory + dims),
        .text = memory + text,
    };
    *builder->table = (struct st_table){
        .has_metadata = counts->has_metadata,
        .tensors = builder->tensors,
        .metadata = builder->metadata,
        .dims = builder->dims,
        .text = builder->text,
        .bytes = text + counts->text,
    };
    return true;
}

static uint32_t
add_text(struct st_builder *builder, const char *text, size_t length)
{
    uint32_t at = builder->text_length;

    memcpy(builder->text + at, text, length);
    builder->text_length += (uint32_t)length;
    return at;
}

void
st_builder_add(struct st_builder *builder, const char *name, size_t name_length, enum dtype dtype,
               const uint64_t *dims, uint32_t rank, uint64_t begin, uint64_t end)
{
    builder->tensors[builder->table->count++] = (struct st_tensor){
        .begin = begin,
        .end = end,
        .name = add_text(builder, name, name_length),
        .name_length = (uint32_t)name_length,
        .shape = builder->dim_count,
        .rank = rank,
        .dtype = (uint8_t)dtype,
    };
    if (rank)
        memcpy(builder->dims + builder->dim_count, dims, rank * sizeof(*dims));
    builder->dim_count += rank;
}

void
st_builder_add_metadata(struct st_builder *builder, const char *key, size_t key_length,
                        const char *value, size_t value_length)
{
    struct st_metadata *pair = &builder->metadata[builder->table->metadata_count++];

    pair->key = add_text(builder, key, key_length);
    pair->key_length = (uint32_t)key_length;
    pair->value = add_text(builder, value, value_length);
    pair->value_length = (uint32_t)value_length;
    builder->table->has_metadata = true;
}

static int
compare_names(const struct st_tensor *a, const struct st_tensor *b, const char *text)
{
    return text_compare(text + a->name, a->name_length, text + b->name, b->name_length);
}

/* By offsets; tensors of the same bytes by name. */
static int
compare_offsets(const void *a, const void *b, void *text)
{
    const struct st_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return compare_names(x, y, text);
}

void
st_builder_sort(struct st_builder *builder)
{
    struct st_tensor *tensors = builder->tensors;
    uint32_t i = 1, count = builder->table->count;

    /* Most headers are sorted already. */
    while (i < count && compare_offsets(&tensors[i - 1], &tensors[i], builder->text) <= 0)
        i++;
    if (i < count)
        qsort_r(tensors, count, sizeof(tensors[0]), compare_offsets, builder->text);
}

static int
compare_indexed_names(const void *a, const void *b, void *builder)
{
    const struct st_builder *in = builder;

    return compare_names(&in->tensors[*(const uint32_t *)a], &in->tensors[*(const uint32_t *)b],
                         in->text);
}

errint_t
st_builder_check_names(const struct st_builder *builder, struct reason *reason)
{
    uint32_t count = builder->table->count, i = 1;
    const struct st_tensor *tensors = builder->tensors;
    errint_t error = 0;

    /* Without sorting if they are sorted by name. */
    while (i < count && compare_names(&tensors[i - 1], &tensors[i], builder->text) < 0)
        i++;
    if (i >= count)
        return 0;

    uint32_t *order = malloc(count * sizeof(order[0]));
    if (!order)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the header");
    for (i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof(order[0]), compare_indexed_names, (void *)builder);
    for (i = 1; i < count && !error; i++) {
        const struct st_tensor *tensor = &tensors[order[i]];
        char shown[QUOTED_SIZE];

        if (compare_names(&tensors[order[i - 1]], tensor, builder->text) == 0)
            error = reason_set(reason, -EBADMSG, "DuplicateTensorName",
                               "tensor \"%s\": the name appears more than once in the header",
                               quoted(shown, builder->text + tensor->name, tensor->name_length));
    }
    free(order);
    return error;
}
