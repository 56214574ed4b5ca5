/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made files and indexes of a checkpoint: written by src/view, read back by src/format and by
 * cJSON, and every byte compared with its shard.
 *
 * Input: a byte for the number of re-cut shards, 8 for their maximum size and one for the bits by
 * which it is shifted to the right, a byte for the number of shards, and then the shards: pairs of
 * metadata, and tensors with a name, a dtype and a shape.
 */
#include "fuzz.h"

#include "base/extent.h"
#include "format/index.h"
#include "view/index.h"
#include "view/layout.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHARDS = 5, MOST_TENSORS = 24, MOST_PAIRS = 4, PAGE = 4096 };

struct made {
    struct checkpoint checkpoint;
    struct shard shards[MOST_SHARDS];
    struct shard *pointers[MOST_SHARDS];
    char names[MOST_SHARDS][40];
    struct tensor_ref tensors[MOST_SHARDS * MOST_TENSORS];
};

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_quiet();
    return 0;
}

static const char *
name_of(const struct checkpoint *checkpoint, struct tensor_ref ref, size_t *length)
{
    const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

    *length = tensor->name_length;
    return checkpoint->shards[ref.shard]->table->text + tensor->name;
}

/* ---- a checkpoint from the input ---- */

/* Converts the input to valid UTF-8, so that most inputs form a checkpoint, and omits NUL, at which
 * cJSON's strings end. */
static size_t
take_text(struct input *input, char *out, size_t room)
{
    size_t length, used = 0;
    const char *text = input_text(input, &length);

    for (size_t i = 0; i < length && used + 2 < room; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= 0x80) { /* a character of Latin-1 */
            out[used++] = (char)(0xc0 | c >> 6);
            c = 0x80 | (c & 0x3f);
        }
        if (c)
            out[used++] = (char)c;
    }
    return used;
}

static uint64_t
take_dim(struct input *input)
{
    uint8_t dim = input_byte(input);

    return dim < 0xf0 ? dim : (uint64_t)PAGE << (dim & 3);
}

static void
take_tensor(struct input *input, unsigned serial, struct buffer *header, uint64_t *at)
{
    uint8_t dtype = input_byte(input), rank = input_byte(input) % 4;
    uint64_t dims[4], count = 1, begin = *at;
    char name[400];
    size_t length = take_text(input, name, 380);
    const char *text = dtype < 0xe0 ? dtype_name((enum dtype)(dtype % DTYPE_COUNT)) : "NEW";

    for (uint8_t d = 0; d < rank; d++)
        count *= dims[d] = take_dim(input);
    if (dtype < 0xe0 && dtype_bits((enum dtype)(dtype % DTYPE_COUNT)) < 8) {
        dims[rank++] = 4; /* whole bytes */
        count *= 4;
    }
    *at += dtype < 0xe0 ? count * dtype_bits((enum dtype)(dtype % DTYPE_COUNT)) / 8 : count;
    length += (size_t)sprintf(name + length, "#%u", serial); /* makes names unique */
    st_header_tensor(header, name, length, text, strlen(text), dims, rank, begin, *at);
}

static void
take_metadata(struct input *input, struct buffer *header)
{
    uint8_t pairs = input_byte(input) % (MOST_PAIRS + 1);

    for (uint8_t i = 0; i < pairs; i++) {
        char key[40], value[40];
        size_t key_length = take_text(input, key, sizeof(key));
        size_t value_length = take_text(input, value, sizeof(value));

        st_header_metadata(header, key, key_length, value, value_length);
    }
}

static void
take_shard(struct input *input, struct made *made, unsigned number)
{
    struct shard *shard = &made->shards[number];
    struct buffer header = BUFFER_INIT;
    struct file_identity identity;
    struct reason reason;
    uint64_t at = 0;
    uint8_t tensors;

    st_header_begin(&header);
    take_metadata(input, &header);
    tensors = input_byte(input) % (MOST_TENSORS + 1);
    for (uint8_t i = 0; i < tensors; i++)
        take_tensor(input, number * MOST_TENSORS + i, &header, &at);
    EXPECT(st_header_finish(&header, 8) == 0);
    EXPECT(st_table_parse(header.data + 8, header.length - 8, header.length + at, &shard->table,
                          &reason) == 0);
    buffer_free(&header);
    memset(&identity, 0, sizeof(identity));
    snprintf(made->names[number], sizeof(made->names[number]), "part-%u.safetensors", number);
    shard->name = made->names[number];
    shard->backing = backing_new(-1, shard->name, &identity);
    EXPECT(shard->backing);
    made->pointers[number] = shard;
}

static int
compare_refs(const void *a, const void *b, void *data)
{
    size_t x_length, y_length;
    const char *x = name_of(data, *(const struct tensor_ref *)a, &x_length);
    const char *y = name_of(data, *(const struct tensor_ref *)b, &y_length);

    return fuzz_compare(x, x_length, y, y_length);
}

/* The catalog of all checkpoints, of which only the budget for headers is used. Created once. */
static struct catalog *
fuzz_catalog(void)
{
    static const struct catalog_options options = {.source = "/"};
    static struct catalog *catalog;

    if (!catalog)
        EXPECT(catalog_new(&options, &catalog) == 0);
    return catalog;
}

static struct checkpoint *
take_checkpoint(struct input *input, struct made *made, struct problem_set *problems)
{
    struct checkpoint *checkpoint = &made->checkpoint;
    uint32_t shards = 1 + input_byte(input) % MOST_SHARDS;

    memset(made, 0, sizeof(*made));
    checkpoint->catalog = fuzz_catalog();
    checkpoint->directory = "dir";
    checkpoint->stem = "model";
    checkpoint->container = &container_safetensors;
    checkpoint->suffix = ST_SUFFIX;
    checkpoint->shards = made->pointers;
    checkpoint->tensors = made->tensors;
    checkpoint->problems = problems;
    checkpoint->shard_count = shards;
    for (uint32_t s = 0; s < shards; s++) {
        take_shard(input, made, s);
        for (uint32_t i = 0; i < made->shards[s].table->count; i++)
            made->tensors[checkpoint->tensor_count++] = (struct tensor_ref){s, i};
    }
    qsort_r(made->tensors, checkpoint->tensor_count, sizeof(made->tensors[0]), compare_refs,
            checkpoint);
    return checkpoint;
}

static void
drop(struct made *made)
{
    for (uint32_t s = 0; s < made->checkpoint.shard_count; s++) {
        EXPECT(atomic_load(&made->shards[s].backing->references) == 1);
        backing_unref(made->shards[s].backing);
        st_table_free(made->shards[s].table);
    }
}

/* ---- a file of it ---- */

static bool
find(const struct checkpoint *checkpoint, const char *name, size_t length, struct tensor_ref *ref)
{
    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        size_t its_length;
        const char *its = name_of(checkpoint, checkpoint->tensors[i], &its_length);

        *ref = checkpoint->tensors[i];
        if (!fuzz_compare(its, its_length, name, length))
            return true;
    }
    return false;
}

/* Expects the order of a merged file: tensors of whole pages first, aligned to pages; then by
 * decreasing element size, each aligned to it. */
static void
expect_place(const struct st_table *table, const struct st_tensor *tensor, bool *pages_over)
{
    uint64_t size = tensor->end - tensor->begin, place = table->data_start + tensor->begin;

    if (size && size % PAGE == 0) {
        EXPECT(!*pages_over && place % PAGE == 0);
        return;
    }
    *pages_over = *pages_over || size;
    if (tensor->dtype != DTYPE_UNKNOWN && dtype_bits((enum dtype)tensor->dtype) >= 8)
        EXPECT(place % (dtype_bits((enum dtype)tensor->dtype) / 8) == 0);
}

/* Expects that each byte of the tensor in the file is that of the tensor in its shard. */
static void
expect_bytes(const struct extent_list *list, uint64_t place, const struct shard *shard,
             const struct st_tensor *tensor)
{
    uint64_t offset = shard->table->data_start + tensor->begin, left = tensor->end - tensor->begin;

    while (left) {
        const struct extent *extent = &list->extents[extent_list_find(list, place)];
        uint64_t inside = place - extent->start, run = extent->length - inside;

        EXPECT(extent->backing == shard->backing && extent->offset + inside == offset);
        run = run < left ? run : left;
        place += run;
        offset += run;
        left -= run;
    }
}

static void
expect_tensor(const struct checkpoint *checkpoint, const struct st_table *table, uint32_t i,
              const struct extent_list *list, bool *pages_over)
{
    const struct st_tensor *tensor = &table->tensors[i], *source;
    const struct shard *shard;
    struct tensor_ref ref;

    EXPECT(find(checkpoint, table->text + tensor->name, tensor->name_length, &ref));
    shard = checkpoint->shards[ref.shard];
    source = checkpoint_tensor(checkpoint, ref);
    EXPECT(tensor->dtype == source->dtype && tensor->rank == source->rank);
    EXPECT(tensor->end - tensor->begin == source->end - source->begin);
    for (uint32_t d = 0; d < tensor->rank; d++)
        EXPECT(table->dims[tensor->shape + d] == shard->table->dims[source->shape + d]);
    expect_place(table, tensor, pages_over);
    expect_bytes(list, table->data_start + tensor->begin, shard, source);
}

/* Expects that a key is kept if it has the same value in all shards that have it. */
static void
expect_metadata(const struct checkpoint *checkpoint, const struct st_table *made)
{
    uint32_t kept = 0;

    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; i < table->metadata_count; i++) {
            const struct st_metadata *a = &table->metadata[i];
            bool agreed = true, first = true, found = false;

            for (uint32_t o = 0; o < checkpoint->shard_count; o++) {
                const struct st_table *other = checkpoint->shards[o]->table;

                for (uint32_t j = 0; j < other->metadata_count; j++) {
                    const struct st_metadata *b = &other->metadata[j];

                    if (fuzz_compare(table->text + a->key, a->key_length, other->text + b->key,
                                     b->key_length))
                        continue;
                    first = first && o >= s;
                    agreed = agreed && !fuzz_compare(table->text + a->value, a->value_length,
                                                     other->text + b->value, b->value_length);
                }
            }
            for (uint32_t j = 0; j < made->metadata_count; j++)
                found = found || !fuzz_compare(table->text + a->key, a->key_length,
                                               made->text + made->metadata[j].key,
                                               made->metadata[j].key_length);
            EXPECT(found == agreed);
            kept += first && agreed;
        }
    }
    EXPECT(kept == made->metadata_count);
}

static void
check_file(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t count)
{
    struct extent_list *list;
    const struct extent *head;
    struct st_table *table;
    struct reason reason;
    uint64_t size, again;
    bool pages_over = false;

    EXPECT(layout_file(checkpoint, refs, count, &size, &list) == 0);
    EXPECT(layout_file(checkpoint, refs, count, &again, NULL) == 0);
    EXPECT(size == again && size == list->size);
    head = &list->extents[0];
    EXPECT(head->blob && head->length == head->blob->length && head->length % PAGE == 0);
    EXPECT(st_table_parse(head->blob->data + 8, head->length - 8, size, &table, &reason) == 0);
    fuzz_expect_table(table, size - head->length);
    fuzz_expect_header(head->blob->data + 8, head->length - 8, table);
    EXPECT(table->count == count && table->data_start == head->length);
    for (uint32_t i = 0; i < table->count; i++)
        expect_tensor(checkpoint, table, i, list, &pages_over);
    expect_metadata(checkpoint, table);
    st_table_free(table);
    extent_list_unref(list);
}

/* ---- indexes ---- */

static void
check_index(const struct checkpoint *checkpoint, const struct buffer *text)
{
    struct st_index *index;
    struct reason reason;
    uint64_t sum = 0;
    cJSON *root = cJSON_ParseWithLength(text->data, text->length);

    EXPECT(root && !buffer_failed(text));
    EXPECT(st_index_parse(text->data, text->length, &container_safetensors, &index, &reason) == 0);
    EXPECT(index->count == checkpoint->tensor_count && index->has_total_size);
    for (uint32_t i = 0; i < index->count; i++) {
        const struct st_tensor *tensor = checkpoint_tensor(checkpoint, checkpoint->tensors[i]);
        size_t length;
        const char *name = name_of(checkpoint, checkpoint->tensors[i], &length);

        EXPECT(!fuzz_compare(index->text + index->entries[i].name, index->entries[i].name_length,
                             name, length));
        sum += tensor->end - tensor->begin;
    }
    EXPECT(index->total_size == sum);
    st_index_free(index);
    cJSON_Delete(root);
}

static void
check_indexes(const struct checkpoint *checkpoint)
{
    struct buffer text = BUFFER_INIT;

    EXPECT(index_of_parts(checkpoint, NULL, 0, &text) == 0);
    check_index(checkpoint, &text);
    buffer_free(&text);
    index_of_tensors(checkpoint, "model", &text);
    check_index(checkpoint, &text);
    buffer_free(&text);
}

/* ---- cuts ---- */

static void
check_cut(const struct checkpoint *checkpoint, const struct tensor_ref *refs, uint32_t shards,
          uint64_t most)
{
    struct buffer text = BUFFER_INIT;
    struct layout_part *parts;
    size_t count, at = 0;

    EXPECT(layout_cut(checkpoint, refs, shards, most, &parts, &count) == 0 && count >= 1);
    EXPECT(!shards || count <= shards);
    for (size_t i = 0; i < count; i++) {
        uint64_t size = 0;

        EXPECT(parts[i].first == at && (parts[i].count || count == 1));
        for (size_t t = at; t < at + parts[i].count; t++) {
            const struct st_tensor *tensor = checkpoint_tensor(checkpoint, refs[t]);

            size += tensor->end - tensor->begin;
        }
        EXPECT(shards || parts[i].count == 1 || size <= most);
        at += parts[i].count;
        check_file(checkpoint, refs + parts[i].first, parts[i].count);
    }
    EXPECT(at == checkpoint->tensor_count);
    EXPECT(index_of_parts(checkpoint, parts, count, &text) == 0);
    check_index(checkpoint, &text);
    buffer_free(&text);
    free(parts);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct made made;
    struct input input = {(const char *)data, size};
    uint32_t cut_shards = 1 + input_byte(&input) % 9;
    uint64_t cut_size = input_number(&input) >> input_byte(&input) % 64;
    struct problems *problems = problems_new(&(struct problem_watch){0});
    struct problem_set *set = problem_set_new(problems, "dir");
    struct checkpoint *checkpoint = take_checkpoint(&input, &made, set);
    struct tensor_ref *refs = layout_shard_order(checkpoint);

    EXPECT(refs);
    check_file(checkpoint, refs, checkpoint->tensor_count);
    check_cut(checkpoint, refs, cut_shards, 0);
    check_cut(checkpoint, refs, 0, cut_size | 1);
    check_indexes(checkpoint);
    layout_check_metadata(checkpoint);
    fuzz_expect_problems(problems, set, "dir/part-");
    free(refs);
    drop(&made);
    problem_set_unref(set);
    problems_free(problems);
    return 0;
}
