/* SPDX-License-Identifier: Apache-2.0 */
#include "view/index.h"

#include "format/json.h"
#include "view/names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
index_part_name(const char *stem, const char *suffix, size_t part, size_t count, char out[512])
{
    if (count == 1)
        snprintf(out, 512, "%s%s", stem, suffix);
    else
        snprintf(out, 512, "%s-%05zu-of-%05zu%s", stem, part + 1, count, suffix);
}

void
index_add_shape(const struct st_table *table, const struct st_tensor *tensor, struct buffer *out)
{
    buffer_add_char(out, '[');
    for (uint32_t d = 0; d < tensor->rank; d++) {
        if (d)
            buffer_add_text(out, ", ");
        buffer_add_u64(out, table->dims[tensor->shape + d]);
    }
    buffer_add_char(out, ']');
}

static uint64_t
total_size(const struct checkpoint *checkpoint)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct st_tensor *tensor = checkpoint_tensor(checkpoint, checkpoint->tensors[i]);

        sum += tensor->end - tensor->begin;
    }
    return sum;
}

static void
add_json_text(struct buffer *out, const char *text)
{
    buffer_add_json_string(out, text, strlen(text));
}

/* Adds the metadata of the checkpoint's own index, except for the size. */
static void
add_index_metadata(const struct checkpoint *checkpoint, struct buffer *out)
{
    struct json_reader in;
    struct json_span key;

    if (!checkpoint->index_metadata)
        return;
    in = json_read(checkpoint->index_metadata, checkpoint->index_metadata_length);
    json_enter(&in);
    while (json_next_key(&in, &key)) {
        struct json_span value = json_take(&in);

        if (json_raw_is(key, "total_size"))
            continue;
        buffer_add_text(out, ",\n    \"");
        buffer_add(out, key.text, key.length);
        buffer_add_text(out, "\": ");
        buffer_add(out, value.text, value.length);
    }
}

/* `{"metadata": {...}, "weight_map": {`, formatted as by json.dumps(indent=2). */
static void
begin_index(const struct checkpoint *checkpoint, struct buffer *out)
{
    buffer_add_text(out, "{\n  \"metadata\": {\n    \"total_size\": ");
    buffer_add_u64(out, total_size(checkpoint));
    add_index_metadata(checkpoint, out);
    buffer_add_text(out, "\n  },\n  \"weight_map\": {");
}

static void
add_weight(const struct checkpoint *checkpoint, uint32_t i, const char *shard, struct buffer *out)
{
    struct tensor_ref ref = checkpoint->tensors[i];
    const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

    buffer_add_text(out, i ? ",\n    " : "\n    ");
    buffer_add_json_string(out, checkpoint->shards[ref.shard]->table->text + tensor->name,
                           tensor->name_length);
    buffer_add_text(out, ": ");
    add_json_text(out, shard);
}

static void
end_json_object(uint32_t count, struct buffer *out)
{
    buffer_add_text(out, count ? "\n  }" : "}");
}

static size_t
part_of(const struct layout_part *parts, size_t count, size_t position)
{
    size_t low = 0, high = count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (parts[middle].first <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Begins an index and adds the file of each tensor: the part that has it or, if `parts` is NULL,
 * the source's shard. -ENOMEM, only with `parts`. */
static errint_t
add_weights(const struct checkpoint *checkpoint, const struct layout_part *parts, size_t count,
            struct buffer *out)
{
    size_t *starts = parts ? layout_shard_starts(checkpoint) : NULL;
    char name[512];

    if (parts && !starts)
        return -ENOMEM;
    begin_index(checkpoint, out);
    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];

        if (parts)
            index_part_name(checkpoint->stem, checkpoint->suffix,
                            part_of(parts, count, starts[ref.shard] + ref.tensor), count, name);
        add_weight(checkpoint, i, parts ? name : checkpoint->shards[ref.shard]->name, out);
    }
    end_json_object(checkpoint->tensor_count, out);
    free(starts);
    return 0;
}

static void
add_tensor(const struct checkpoint *checkpoint, struct tensor_ref ref, const char *directory,
           struct buffer *out)
{
    const struct shard *shard = checkpoint->shards[ref.shard];
    const struct st_table *table = shard->table;
    const struct st_tensor *tensor = &table->tensors[ref.tensor];
    const char *name = table->text + tensor->name;
    char file[FILE_NAME_SIZE], path[2 * FILE_NAME_SIZE];
    size_t length;
    const char *dtype = st_dtype_text(table, tensor, &length);

    tensor_file_name(name, tensor->name_length, "", file);
    snprintf(path, sizeof(path), "%s/%s", directory, file);
    buffer_add_json_string(out, name, tensor->name_length);
    buffer_add_text(out, ": {\"dtype\": ");
    buffer_add_json_string(out, dtype, length);
    buffer_add_text(out, ", \"shape\": ");
    index_add_shape(table, tensor, out);
    buffer_add_text(out, ", \"bytes\": ");
    buffer_add_u64(out, tensor->end - tensor->begin);
    buffer_add_text(out, ", \"file\": ");
    add_json_text(out, path);
    buffer_add_text(out, ", \"shard\": ");
    add_json_text(out, shard->name);
    buffer_add_text(out, ", \"offset\": ");
    buffer_add_u64(out, table->data_start + tensor->begin);
    buffer_add_char(out, '}');
}

/* Adds the key-values of a GGUF model, which are those of its first part. */
static void
add_gguf_pairs(const struct checkpoint *checkpoint, struct buffer *out)
{
    const struct st_table *table = checkpoint->shard_count ? checkpoint->shards[0]->table : NULL;

    if (!table || !table->gguf)
        return;
    buffer_add_text(out, ",\n  \"gguf\": {");
    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i];

        buffer_add_text(out, i ? ",\n    " : "\n    ");
        buffer_add_json_string(out, table->text + pair->key, pair->key_length);
        buffer_add_text(out, ": ");
        if (pair->is_json)
            buffer_add(out, table->text + pair->value, pair->value_length);
        else
            buffer_add_json_string(out, table->text + pair->value, pair->value_length);
    }
    end_json_object(table->metadata_count, out);
}

void
index_of_tensors(const struct checkpoint *checkpoint, const char *directory, struct buffer *out)
{
    (void)add_weights(checkpoint, NULL, 0, out);
    buffer_add_text(out, ",\n  \"tensors\": {");
    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        buffer_add_text(out, i ? ",\n    " : "\n    ");
        add_tensor(checkpoint, checkpoint->tensors[i], directory, out);
    }
    end_json_object(checkpoint->tensor_count, out);
    add_gguf_pairs(checkpoint, out);
    buffer_add_text(out, "\n}\n");
}

errint_t
index_of_parts(const struct checkpoint *checkpoint, const struct layout_part *parts, size_t count,
               struct buffer *out)
{
    errint_t error = add_weights(checkpoint, parts, count, out);

    buffer_add_text(out, "\n}\n");
    return error;
}
