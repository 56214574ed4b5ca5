/* SPDX-License-Identifier: Apache-2.0 */
#include "view/gguf_layout.h"

#include "format/gguf_write.h"
#include "view/layout.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Converts the runs of gguf_merge() to extents. */
struct run_builder {
    const struct checkpoint *checkpoint;
    struct extent_builder extents;
    struct blob *header;
    struct blob *zeros; /* for padding; as many bytes as the alignment */
    uint64_t position, data_start; /* in the file */
    bool has_data; /* data_start is known */
};

static void
build_run(void *arg, const struct gguf_run *run)
{
    struct run_builder *builder = arg;
    struct shard *const *shards = builder->checkpoint->shards;

    if (run->kind == GGUF_RUN_TENSOR && !builder->has_data) {
        builder->data_start = builder->position;
        builder->has_data = true;
    }
    builder->position += run->length;
    switch (run->kind) {
    case GGUF_RUN_HEADER:
        extent_builder_add_blob(&builder->extents, builder->header, run->offset, run->length);
        break;
    case GGUF_RUN_ZERO:
        extent_builder_add_blob(&builder->extents, builder->zeros, 0, run->length);
        break;
    case GGUF_RUN_PAIRS:
        extent_builder_add_backing(&builder->extents, shards[0]->backing, run->offset, run->length);
        break;
    case GGUF_RUN_TENSOR:
        extent_builder_add_backing(&builder->extents, shards[run->part]->backing, run->offset,
                                   run->length);
        break;
    }
}

/* The tables of all shards; malloc'ed; NULL: out of memory. */
static const struct st_table **
tables_of_shards(const struct checkpoint *checkpoint)
{
    const struct st_table **tables = malloc((checkpoint->shard_count + 1) * sizeof(*tables));

    for (uint32_t i = 0; tables && i < checkpoint->shard_count; i++)
        tables[i] = checkpoint->shards[i]->table;
    return tables;
}

static errint_t
build_list(const struct checkpoint *checkpoint, const struct st_table *const *tables,
           struct buffer *header, struct extent_list **list)
{
    const uint32_t alignment = tables[0]->gguf->alignment;
    struct run_builder builder = {.checkpoint = checkpoint, .extents = EXTENT_BUILDER_INIT};
    struct buffer again = BUFFER_COUNTING, zeros = BUFFER_INIT;
    struct tensor_ref *order;

    gguf_merge(tables, checkpoint->shard_count, header, NULL, NULL);
    builder.header = blob_new(header);
    buffer_add_repeat(&zeros, '\0', alignment);
    builder.zeros = blob_new(&zeros);
    if (builder.header && builder.zeros)
        gguf_merge(tables, checkpoint->shard_count, &again, build_run, &builder);
    else
        builder.extents.failed = true;
    blob_unref(builder.header);
    blob_unref(builder.zeros);
    *list = extent_builder_finish(&builder.extents);
    if (!*list)
        return -ENOMEM;
    order = layout_shard_order(checkpoint);
    if (order)
        (*list)->layout = layout_pieces(checkpoint, order, checkpoint->tensor_count,
                                        builder.data_start, alignment);
    free(order);
    return 0;
}

/* Bytes per tensor while a list is made: two extents, for the tensor and its padding, counted three
 * times because the array is copied as it grows; a piece; the index of the piece; a position in
 * shard order. */
enum {
    LIST_BYTES = 6 * sizeof(struct extent) + sizeof(struct piece) + sizeof(uint32_t) +
                 sizeof(struct tensor_ref),
    PAIR_EXTENTS = 3 * (GGUF_SPLIT_KEYS + 3), /* extents of the header, also counted three times */
};

static errint_t
build_list_charged(const struct checkpoint *checkpoint, const struct st_table *const *tables,
                   size_t header_length, struct extent_list **list)
{
    struct header_budget *budget = catalog_budget(checkpoint->catalog);
    uint64_t bytes = 2 * header_length + tables[0]->gguf->alignment +
                     PAIR_EXTENTS * sizeof(struct extent) +
                     LIST_BYTES * ((uint64_t)checkpoint->tensor_count + 2);
    struct buffer header = BUFFER_INIT;
    errint_t error;

    if (header_budget_take(budget, bytes) != 0)
        return -ENOBUFS;
    buffer_reserve(&header, header_length);
    error = build_list(checkpoint, tables, &header, list);
    buffer_free(&header);
    layout_settle_list(budget, bytes, error ? NULL : *list);
    return error;
}

/* Whether the parts are longer together than a file can be. */
static bool
is_too_long(const struct checkpoint *checkpoint)
{
    uint64_t left = INT64_MAX;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        if (checkpoint->shards[i]->identity.size > left)
            return true;
        left -= checkpoint->shards[i]->identity.size;
    }
    return false;
}

errint_t
gguf_layout_file(const struct checkpoint *checkpoint, uint64_t *size, struct extent_list **list)
{
    struct buffer header = BUFFER_COUNTING;
    const struct st_table **tables;
    errint_t error = 0;

    if (is_too_long(checkpoint))
        return -EOVERFLOW;
    tables = tables_of_shards(checkpoint);
    if (!tables)
        return -ENOMEM;
    *size = gguf_merge(tables, checkpoint->shard_count, &header, NULL, NULL);
    if (list)
        error = build_list_charged(checkpoint, tables, header.length, list);
    free(tables);
    return error;
}
