/* SPDX-License-Identifier: Apache-2.0 */
#include "view/layout.h"

#include "base/buffer.h"
#include "base/text.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static uint64_t
tensor_size(const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

    return tensor->end - tensor->begin;
}

struct tensor_ref *
layout_shard_order(const struct checkpoint *checkpoint)
{
    struct tensor_ref *refs = malloc((checkpoint->tensor_count + 1) * sizeof(*refs));
    size_t at = 0;

    if (!refs)
        return NULL;
    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; table && i < table->count && at < checkpoint->tensor_count; i++)
            refs[at++] = (struct tensor_ref){s, i};
    }
    return refs;
}

size_t *
layout_shard_starts(const struct checkpoint *checkpoint)
{
    size_t *starts = malloc((checkpoint->shard_count + 1) * sizeof(*starts)), sum = 0;

    for (uint32_t s = 0; starts && s < checkpoint->shard_count; s++) {
        starts[s] = sum;
        sum += checkpoint->shards[s]->table ? checkpoint->shards[s]->table->count : 0;
    }
    if (starts)
        starts[checkpoint->shard_count] = sum;
    return starts;
}

/* ---- metadata ---- */

static int
compare_key_with_metadata(const void *a, const void *b)
{
    const struct text_key *key = a;
    const struct st_metadata *pair = b;

    return text_compare(key->text, key->length, key->base + pair->key, pair->key_length);
}

static const struct st_metadata *
find_metadata(const struct st_table *table, const char *key, uint32_t length)
{
    const struct text_key sought = {table->text, key, length};

    return bsearch(&sought, table->metadata, table->metadata_count, sizeof(*table->metadata),
                   compare_key_with_metadata);
}

/* Returns whether no shard before `s` has the key. If so, sets *agreed to whether all shards that
 * have the key have the same value. */
static bool
is_first_of_key(const struct checkpoint *checkpoint, uint32_t s, const struct st_metadata *pair,
                bool *agreed)
{
    const struct st_table *table = checkpoint->shards[s]->table;
    const char *key = table->text + pair->key, *value = table->text + pair->value;

    *agreed = true;
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct st_table *other = checkpoint->shards[i]->table;
        const struct st_metadata *found =
            other && i != s ? find_metadata(other, key, pair->key_length) : NULL;

        if (!found)
            continue;
        if (i < s)
            return false;
        if (text_compare(other->text + found->value, found->value_length, value,
                         pair->value_length) != 0)
            *agreed = false;
    }
    return true;
}

static void
add_metadata(const struct checkpoint *checkpoint, struct buffer *header)
{
    bool agreed;

    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; table && i < table->metadata_count; i++) {
            const struct st_metadata *pair = &table->metadata[i];

            if (is_first_of_key(checkpoint, s, pair, &agreed) && agreed)
                st_header_metadata(header, table->text + pair->key, pair->key_length,
                                   table->text + pair->value, pair->value_length);
        }
    }
}

void
layout_check_metadata(const struct checkpoint *checkpoint)
{
    char key[QUOTED_SIZE];
    bool agreed;

    if (checkpoint->container == &container_gguf)
        return; /* gguf_check_parts() compares them */
    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; table && i < table->metadata_count; i++) {
            const struct st_metadata *pair = &table->metadata[i];

            if (is_first_of_key(checkpoint, s, pair, &agreed) && !agreed)
                problem_set_add(checkpoint->problems, checkpoint->shards[s]->name,
                                "the value of __metadata__ key %s differs between shards: left out "
                                "of the merged file and of re-cut shards",
                                quoted(key, table->text + pair->key, pair->key_length));
        }
    }
}

/* ---- order ---- */

enum { CLASSES = 5 };

/* Returns 0 if the size is a multiple of 4096; else 1 to 4 for elements of 8, 4, 2 and 1 bytes. */
static int
tensor_class(const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);
    uint64_t size = tensor->end - tensor->begin;
    unsigned bits;

    if (size && size % PAGE == 0)
        return 0;
    if (tensor->dtype == DTYPE_UNKNOWN)
        return size % 8 == 0 ? 1 : 4; /* its element size is not known */
    bits = dtype_bits((enum dtype)tensor->dtype);
    return bits >= 64 ? 1 : bits >= 32 ? 2 : bits >= 16 ? 3 : 4;
}

/* A stable sort by class: the order of the tensors in the file. */
static struct tensor_ref *
file_order(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t count)
{
    struct tensor_ref *order = malloc((count + 1) * sizeof(*order));
    size_t next[CLASSES] = {0}, sum = 0;

    if (!order)
        return NULL;
    for (size_t i = 0; i < count; i++)
        next[tensor_class(checkpoint, refs[i])]++;
    for (int class = 0; class < CLASSES; class ++) {
        size_t members = next[class];

        next[class] = sum;
        sum += members;
    }
    for (size_t i = 0; i < count; i++)
        order[next[tensor_class(checkpoint, refs[i])]++] = refs[i];
    return order;
}

/* ---- the file ---- */

/* Leaves room for the header in a file, whose size is an off_t. */
#define MOST_DATA (INT64_MAX - ST_MAX_HEADER - PAGE)

static errint_t
write_header(const struct checkpoint *checkpoint, const struct tensor_ref *order, size_t count,
             struct buffer *header, uint64_t *data_length)
{
    uint64_t begin = 0;

    st_header_begin(header);
    add_metadata(checkpoint, header);
    for (size_t i = 0; i < count; i++) {
        const struct st_table *table = checkpoint->shards[order[i].shard]->table;
        const struct st_tensor *tensor = &table->tensors[order[i].tensor];
        uint64_t size = tensor_size(checkpoint, order[i]), end = begin + size;
        size_t dtype_length;
        const char *dtype = st_dtype_text(table, tensor, &dtype_length);

        if (size > MOST_DATA - begin)
            return -EOVERFLOW;
        st_header_tensor(header, table->text + tensor->name, tensor->name_length, dtype,
                         dtype_length, table->dims + tensor->shape, tensor->rank, begin, end);
        begin = end;
    }
    *data_length = begin;
    return st_header_finish(header, PAGE);
}

struct layout *
layout_pieces(const struct checkpoint *checkpoint, const struct tensor_ref *order, size_t count,
              uint64_t data_start, uint32_t alignment)
{
    struct layout *layout = layout_new((uint32_t)count);
    size_t *first = layout_shard_starts(checkpoint);
    size_t tensors = first ? first[checkpoint->shard_count] : 0;
    uint32_t *piece_of = malloc((tensors + 1) * sizeof(*piece_of)), *last = NULL;
    uint64_t position = data_start;

    if (!layout || !first || !piece_of) {
        layout_unref(layout);
        layout = NULL;
        goto out;
    }
    memset(piece_of, 0xff, tensors * sizeof(*piece_of));
    layout->count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t size = tensor_size(checkpoint, order[i]);

        if (size == 0)
            continue;
        piece_of[first[order[i].shard] + order[i].tensor] = layout->count;
        layout->pieces[layout->count++] = (struct piece){position, position + size, 0};
        position += (size + alignment - 1) & ~(uint64_t)(alignment - 1);
    }
    /* Link the pieces by tensor name; some tensors of the checkpoint are not in this file. */
    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];
        uint32_t piece = piece_of[first[ref.shard] + ref.tensor];

        if (piece == UINT32_MAX)
            continue;
        if (last)
            *last = piece;
        last = &layout->pieces[piece].next;
    }
    if (last)
        *last = layout->count;
out:
    free(first);
    free(piece_of);
    return layout;
}

static errint_t
make_extents(const struct checkpoint *checkpoint, const struct tensor_ref *order, size_t count,
             struct buffer *header, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    uint64_t data_start = header->length;

    extent_builder_add_buffer(&builder, header);
    for (size_t i = 0; i < count; i++) {
        const struct shard *shard = checkpoint->shards[order[i].shard];
        const struct st_tensor *tensor = &shard->table->tensors[order[i].tensor];

        extent_builder_add_backing(&builder, shard->backing,
                                   shard->table->data_start + tensor->begin,
                                   tensor->end - tensor->begin);
    }
    *list = extent_builder_finish(&builder);
    if (!*list)
        return -ENOMEM;
    (*list)->layout = layout_pieces(checkpoint, order, count, data_start, 1);
    return 0;
}

/* ---- memory ---- */

/* Bytes per tensor while a list is made: an extent, counted three times because the array is copied
 * as it grows; a piece; and the index of the piece. */
enum { LIST_BYTES = 3 * sizeof(struct extent) + sizeof(struct piece) + sizeof(uint32_t) };

uint64_t
layout_list_bytes(const struct extent_list *list)
{
    uint64_t bytes = sizeof(*list) + list->count * sizeof(list->extents[0]);

    if (list->layout)
        bytes += sizeof(*list->layout) + list->layout->count * sizeof(list->layout->pieces[0]);
    for (uint32_t i = 0; i < list->count; i++)
        if (list->extents[i].blob)
            bytes += list->extents[i].length;
    return bytes;
}

static void
give_list_charge(void *budget, uint64_t bytes)
{
    header_budget_give(budget, bytes);
}

void
layout_settle_list(struct header_budget *budget, uint64_t bytes, struct extent_list *list)
{
    uint64_t kept = list ? layout_list_bytes(list) : 0;

    if (list)
        list->charge = (struct charge){give_list_charge, budget, kept};
    header_budget_settle(budget, bytes, kept);
}

/* Writes the header, whose length is known from a first pass, and makes the extents. */
static errint_t
make_layout_list(const struct checkpoint *checkpoint, const struct tensor_ref *order, size_t count,
                 size_t header_length, struct extent_list **list)
{
    struct header_budget *budget = catalog_budget(checkpoint->catalog);
    uint64_t bytes = header_length + LIST_BYTES * ((uint64_t)count + 2), data_length;
    struct buffer header = BUFFER_INIT;
    errint_t error;

    if (header_budget_take(budget, bytes) != 0)
        return -ENOBUFS;
    buffer_reserve(&header, header_length);
    error = write_header(checkpoint, order, count, &header, &data_length);
    if (!error)
        error = make_extents(checkpoint, order, count, &header, list);
    buffer_free(&header);
    layout_settle_list(budget, bytes, error ? NULL : *list);
    return error;
}

errint_t
layout_file(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t count,
            uint64_t *size, struct extent_list **list)
{
    struct tensor_ref *order = file_order(checkpoint, refs, count);
    struct buffer header = BUFFER_COUNTING;
    uint64_t data_length;
    errint_t error;

    if (!order)
        return -ENOMEM;
    error = write_header(checkpoint, order, count, &header, &data_length);
    if (!error)
        *size = header.length + data_length;
    if (!error && list)
        error = make_layout_list(checkpoint, order, count, header.length, list);
    free(order);
    return error;
}

/* ---- re-cutting ---- */

static size_t
cut_by_size(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t count,
            uint64_t most, struct layout_part *parts)
{
    uint64_t sum = 0;
    size_t first = 0, made = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t size = tensor_size(checkpoint, refs[i]);

        if (i > first && (sum > most || size > most - sum)) {
            parts[made++] = (struct layout_part){first, i - first};
            first = i;
            sum = 0;
        }
        sum += size;
    }
    parts[made++] = (struct layout_part){first, count - first};
    return made;
}

/* Each part takes tensors while that brings its size closer to its share of the remaining bytes,
 * and leaves at least one tensor for each later part. */
static size_t
cut_by_number(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t count,
              size_t shards, struct layout_part *parts)
{
    uint64_t left = 0;
    size_t at = 0;

    for (size_t i = 0; i < count; i++)
        left += tensor_size(checkpoint, refs[i]);
    if (shards > count)
        shards = count ? count : 1;
    for (size_t part = 0; part < shards; part++) {
        size_t parts_left = shards - part, first = at;
        uint64_t share = left / parts_left, sum = 0;

        while (at < count && count - at >= parts_left) {
            uint64_t size = tensor_size(checkpoint, refs[at]);

            if (parts_left > 1 && at > first && sum + size > share &&
                (sum >= share || sum + size - share > share - sum))
                break;
            sum += size;
            at++;
        }
        left -= sum;
        parts[part] = (struct layout_part){first, at - first};
    }
    return shards;
}

errint_t
layout_cut(const struct checkpoint *checkpoint, const struct tensor_ref *refs, uint32_t shards,
           uint64_t shard_size, struct layout_part **out, size_t *count)
{
    size_t tensors = checkpoint->tensor_count;
    struct layout_part *parts = malloc((tensors + 1) * sizeof(*parts)), *fitting;

    if (!parts)
        return -ENOMEM;
    *count = shards ? cut_by_number(checkpoint, refs, tensors, shards, parts)
                    : cut_by_size(checkpoint, refs, tensors, shard_size, parts);
    fitting = realloc(parts, *count * sizeof(*parts));
    if (fitting)
        parts = fitting;
    *out = parts;
    return 0;
}

errint_t
layout_cut_shards(const struct checkpoint *checkpoint, struct layout_part **parts, size_t *count)
{
    size_t *starts = layout_shard_starts(checkpoint);

    *count = checkpoint->shard_count;
    *parts = starts ? malloc((*count + 1) * sizeof(**parts)) : NULL;
    for (size_t i = 0; *parts && i < *count; i++)
        (*parts)[i] = (struct layout_part){starts[i], starts[i + 1] - starts[i]};
    free(starts);
    return *parts ? 0 : -ENOMEM;
}
