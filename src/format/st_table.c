/* SPDX-License-Identifier: Apache-2.0 */
/* See st_table.h. */
#include "format/st_table.h"

#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t
st_counts_bytes(const struct st_counts *counts)
{
    return sizeof(struct st_table) + counts->info + counts->tensors * sizeof(struct st_tensor) +
           counts->dims * sizeof(uint64_t) + counts->metadata * sizeof(struct st_metadata) +
           counts->text;
}

/* Cannot overflow, because the counts are bounded by the length of the header. */
bool
st_builder_init(struct st_builder *builder, const struct st_counts *counts)
{
    size_t info = sizeof(struct st_table);
    size_t tensors = info + counts->info;
    size_t dims = tensors + counts->tensors * sizeof(struct st_tensor);
    size_t metadata = dims + counts->dims * sizeof(uint64_t);
    size_t text = metadata + counts->metadata * sizeof(struct st_metadata);
    char *memory = malloc(text + counts->text);

    _Static_assert(sizeof(struct st_table) % 8 == 0 && sizeof(struct st_tensor) % 8 == 0,
                   "the arrays of a table follow each other");
    if (!memory)
        return false;
    memset(memory + info, 0, counts->info);
    *builder = (struct st_builder){
        .table = (struct st_table *)memory,
        .tensors = (struct st_tensor *)(memory + tensors),
        .metadata = (struct st_metadata *)(memory + metadata),
        .dims = (uint64_t *)(memory + dims),
        .info = memory + info,
        .text = memory + text,
        .left = *counts,
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
    builder->left.text -= length;
    return at;
}

bool
st_builder_add(struct st_builder *builder, const struct st_entry *entry)
{
    const size_t dtype_length = entry->dtype_text ? strlen(entry->dtype_text) : 0;
    struct st_tensor *tensor;

    if (builder->left.tensors == 0 || builder->left.dims < entry->rank ||
        builder->left.text < entry->name_length + dtype_length)
        return false;
    builder->left.tensors--;
    builder->left.dims -= entry->rank;
    tensor = &builder->tensors[builder->table->count++];
    *tensor = (struct st_tensor){
        .begin = entry->begin,
        .end = entry->end,
        .name = add_text(builder, entry->name, entry->name_length),
        .name_length = (uint32_t)entry->name_length,
        .shape = builder->dim_count,
        .rank = entry->rank,
        .dtype = (uint8_t)entry->dtype,
    };
    if (entry->dtype_text) {
        tensor->dtype_text = add_text(builder, entry->dtype_text, dtype_length);
        tensor->dtype_text_length = (uint16_t)dtype_length;
    }
    if (entry->rank)
        memcpy(builder->dims + builder->dim_count, entry->dims, entry->rank * sizeof(*entry->dims));
    builder->dim_count += entry->rank;
    return true;
}

bool
st_builder_add_pair(struct st_builder *builder, struct st_text key, struct st_text value,
                    bool is_json)
{
    struct st_metadata *pair = &builder->metadata[builder->table->metadata_count];

    if (builder->left.metadata == 0 || builder->left.text < key.length + value.length)
        return false;
    builder->left.metadata--;
    builder->table->metadata_count++;
    builder->table->has_metadata = true;
    *pair = (struct st_metadata){
        .key = add_text(builder, key.text, key.length),
        .key_length = (uint32_t)key.length,
        .value_length = (uint32_t)value.length,
        .is_json = is_json,
    };
    pair->value = add_text(builder, value.text, value.length);
    return true;
}

void
st_builder_set_refused(struct st_builder *builder, uint32_t count, const char *lines)
{
    builder->table->refused_count = count;
    builder->table->refused = builder->text + add_text(builder, lines, strlen(lines) + 1);
}

static int
compare_names(const struct st_tensor *a, const struct st_tensor *b, const char *text)
{
    return text_compare(text + a->name, a->name_length, text + b->name, b->name_length);
}

/* By offsets; by name if the offsets are equal. */
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

    /* Names that are already sorted need no sorting to be compared. */
    while (i < count && compare_names(&tensors[i - 1], &tensors[i], builder->text) < 0)
        i++;
    if (i >= count)
        return 0;

    uint32_t *order = malloc(count * sizeof(order[0]));
    if (!order)
        return reason_no_memory(reason);
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

errint_t
st_admit_bytes(st_admit *admit, void *arg, uint64_t bytes, struct reason *reason)
{
    return admit ? admit(arg, bytes, reason) : 0;
}

void
st_table_free(struct st_table *table)
{
    free(table);
}

const char *
st_dtype_text(const struct st_table *table, const struct st_tensor *tensor, size_t *length)
{
    if (tensor->dtype == DTYPE_UNKNOWN) {
        *length = tensor->dtype_text_length;
        return table->text + tensor->dtype_text;
    }
    const char *name = dtype_name(tensor->dtype);
    *length = strlen(name);
    return name;
}
