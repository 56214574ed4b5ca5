/* SPDX-License-Identifier: Apache-2.0 */
/* See index.h. Names of tensors are sorted; the name of each shard is stored once. */
#include "format/index.h"

#include "base/text.h"
#include "format/json.h"
#include "format/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Larger metadata is ignored. Real metadata is a few numbers. */
#define METADATA_MOST 65536u

/* Whole numbers up to this one are exact as a double. */
#define EXACT_MOST 9007199254740992.0

#define refuse_index(reason, ...) reason_set(reason, -EBADMSG, "InvalidIndex", __VA_ARGS__)

/* Whether the name of a shard is a plain file name. */
static bool
is_plain_name(const struct container *container, const char *name, size_t length)
{
    return container_of_name(name, length, NULL) == container && name[0] != '.' &&
           !memchr(name, '/', length) && !memchr(name, '\\', length) && !memchr(name, '\0', length);
}

/* Reads metadata.total_size, which may be any JSON value. */
static void
read_total_size(struct json_span metadata, struct st_index *index)
{
    cJSON *tree = cJSON_ParseWithLength(metadata.text, metadata.length);
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(tree, "total_size");
    if (cJSON_IsNumber(size) && size->valuedouble >= 0 && size->valuedouble <= EXACT_MOST &&
        size->valuedouble == (double)(uint64_t)size->valuedouble) {
        index->has_total_size = true;
        index->total_size = (uint64_t)size->valuedouble;
    } else if (size) {
        char *text = cJSON_PrintUnformatted(size);

        quoted(index->bad_total_size, text ? text : "?", text ? strlen(text) : 1);
        cJSON_free(text);
    }
    cJSON_Delete(tree);
}

/* The members of an index that are read. */
struct index_parts {
    const struct container *container; /* of the files */
    struct json_reader map; /* at the object weight_map */
    struct json_span metadata; /* empty: missing, not an object, or too large */
};

static errint_t
find_parts(struct json_reader in, struct index_parts *parts, struct reason *reason)
{
    struct json_span key;

    if (json_type(&in) != JSON_OBJECT)
        return refuse_index(reason, "the index is not a JSON object");
    json_enter(&in);
    while (json_next_key(&in, &key)) {
        struct json_reader value = in;
        struct json_span text = json_take(&in);
        if (json_raw_is(key, "metadata"))
            parts->metadata = json_type(&value) == JSON_OBJECT && text.length <= METADATA_MOST
                                  ? text
                                  : (struct json_span){NULL, 0};
        if (!json_raw_is(key, "weight_map"))
            continue;
        if (parts->map.at)
            return refuse_index(reason, "weight_map appears twice");
        parts->map = value;
    }
    if (!parts->map.at)
        return refuse_index(reason, "weight_map is missing");
    if (json_type(&parts->map) != JSON_OBJECT)
        return refuse_index(reason, "weight_map is not an object");
    return 0;
}

/* Consecutive entries that name the same shard. There are far fewer runs than entries, and only
 * runs are sorted to number the shards. */
struct shard_run {
    const char *shard; /* terminated, in the scratch text */
    uint32_t number;
};

/* The sizes of a weight_map. */
struct index_counts {
    uint32_t entries;
    uint32_t runs;
    uint32_t shards;
    size_t names; /* bytes of the names of tensors */
    size_t run_names; /* of the shards of all runs, with NULs */
    size_t shard_names; /* of all shards, with NULs */
    size_t metadata;
};

/* Whether a raw name of a shard differs from the previous one. */
static bool
begins_run(struct json_span before, struct json_span raw)
{
    return !before.text || before.length != raw.length ||
           memcmp(before.text, raw.text, raw.length) != 0;
}

static errint_t
count_map(struct json_reader in, struct index_counts *counts, struct reason *reason)
{
    struct json_span key, before = {NULL, 0};

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        char shown[QUOTED_SIZE];
        if (json_type(&in) != JSON_STRING)
            return refuse_index(reason, "weight_map: the value of \"%s\" is not a string",
                                quoted(shown, key.text, key.length));
        struct json_span raw = json_take_string(&in);
        counts->entries++;
        counts->names += json_unescape(key, NULL);
        if (begins_run(before, raw)) {
            counts->runs++;
            counts->run_names += json_unescape(raw, NULL) + 1;
        }
        before = raw;
    }
    return 0;
}

/* Lists the runs and checks the names of their shards, which it writes to `scratch`. */
static errint_t
list_runs(const struct index_parts *parts, struct shard_run *runs, char *scratch,
          struct reason *reason)
{
    struct json_span key, before = {NULL, 0};
    struct json_reader in = parts->map;

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        char shown[QUOTED_SIZE];
        struct json_span raw = json_take_string(&in);
        if (!begins_run(before, raw))
            continue;
        before = raw;
        size_t length = json_unescape(raw, scratch);
        if (!is_plain_name(parts->container, scratch, length))
            return refuse_index(reason,
                                "weight_map names the file \"%s\", expected a plain name that ends "
                                "in %s",
                                quoted(shown, scratch, length), parts->container->suffixes[0]);
        scratch[length] = '\0';
        (runs++)->shard = scratch;
        scratch += length + 1;
    }
    return 0;
}

static int
compare_shard_runs(const void *a, const void *b)
{
    return strcmp((*(struct shard_run *const *)a)->shard, (*(struct shard_run *const *)b)->shard);
}

/* Numbers the shards of the runs in the order of their names, and sets `order` to the sorted
 * runs. */
static void
number_shards(struct shard_run *runs, struct shard_run **order, struct index_counts *counts)
{
    for (uint32_t i = 0; i < counts->runs; i++)
        order[i] = &runs[i];
    qsort(order, counts->runs, sizeof(order[0]), compare_shard_runs);
    for (uint32_t i = 0; i < counts->runs; i++) {
        if (i == 0 || compare_shard_runs(&order[i - 1], &order[i]) != 0) {
            counts->shards++;
            counts->shard_names += strlen(order[i]->shard) + 1;
        }
        order[i]->number = counts->shards - 1;
    }
}

/* An index that is being built, with writable pointers to its arrays. */
struct index_builder {
    struct st_index *index;
    struct st_index_entry *entries;
    const char **shards;
    char *text;
    size_t text_length;
};

static bool
make_index(struct index_builder *builder, const struct index_counts *counts)
{
    size_t shards = sizeof(struct st_index);
    size_t entries = shards + counts->shards * sizeof(char *);
    size_t text = entries + counts->entries * sizeof(struct st_index_entry);
    size_t bytes = text + counts->names + counts->shard_names + counts->metadata;
    char *memory = malloc(bytes);

    if (!memory)
        return false;
    *builder = (struct index_builder){
        .index = (struct st_index *)memory,
        .shards = (const char **)(memory + shards),
        .entries = (struct st_index_entry *)(memory + entries),
        .text = memory + text,
    };
    *builder->index = (struct st_index){
        .shards = builder->shards,
        .entries = builder->entries,
        .text = builder->text,
        .bytes = bytes,
    };
    return true;
}

static void
fill_shards(struct index_builder *builder, struct shard_run *const *order, uint32_t runs)
{
    for (uint32_t i = 0; i < runs; i++) {
        if (order[i]->number < builder->index->shard_count)
            continue;
        size_t size = strlen(order[i]->shard) + 1;
        char *name = builder->text + builder->text_length;
        memcpy(name, order[i]->shard, size);
        builder->shards[builder->index->shard_count++] = name;
        builder->text_length += size;
    }
}

static void
fill_entries(struct index_builder *builder, struct json_reader in, const struct shard_run *run)
{
    struct json_span key, before = {NULL, 0};

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        struct st_index_entry *entry = &builder->entries[builder->index->count++];
        struct json_span raw = json_take_string(&in);
        if (before.text && begins_run(before, raw))
            run++;
        before = raw;
        entry->name = (uint32_t)builder->text_length;
        entry->name_length = (uint32_t)json_unescape(key, builder->text + builder->text_length);
        entry->shard = run->number;
        builder->text_length += entry->name_length;
    }
}

static int
compare_entries(const void *a, const void *b, void *text)
{
    const struct st_index_entry *x = a, *y = b;
    const char *t = text;

    return text_compare(t + x->name, x->name_length, t + y->name, y->name_length);
}

/* Sorts the entries by name, unless they are sorted, and refuses duplicates. */
static errint_t
sort_entries(struct index_builder *builder, struct reason *reason)
{
    struct st_index_entry *entries = builder->entries;
    uint32_t i = 1, count = builder->index->count;

    while (i < count && compare_entries(&entries[i - 1], &entries[i], builder->text) < 0)
        i++;
    if (i >= count)
        return 0;
    qsort_r(entries, count, sizeof(entries[0]), compare_entries, builder->text);
    for (i = 1; i < count; i++) {
        char shown[QUOTED_SIZE];
        if (compare_entries(&entries[i - 1], &entries[i], builder->text) == 0)
            return refuse_index(
                reason, "weight_map has the tensor \"%s\" more than once",
                quoted(shown, builder->text + entries[i].name, entries[i].name_length));
    }
    return 0;
}

/* Copies the metadata after the names. */
static void
copy_index_metadata(struct index_builder *builder, struct json_span metadata)
{
    char *text = builder->text + builder->text_length;

    if (metadata.length == 0)
        return;
    memcpy(text, metadata.text, metadata.length);
    builder->index->metadata = text;
    builder->index->metadata_length = metadata.length;
}

static errint_t
parse_parts(const struct index_parts *parts, struct st_index **index, struct reason *reason)
{
    const struct json_reader map = parts->map;
    struct index_counts counts = {.metadata = parts->metadata.length};
    struct index_builder builder = {0};
    struct shard_run *runs = NULL;
    struct shard_run **order = NULL;
    char *scratch = NULL;
    errint_t error = count_map(map, &counts, reason);

    if (error)
        return error;
    runs = calloc((size_t)counts.runs + 1, sizeof(runs[0])); /* never of size 0 */
    order = calloc((size_t)counts.runs + 1, sizeof(order[0]));
    scratch = malloc(counts.run_names + 1);
    if (!runs || !order || !scratch) {
        error = reason_no_memory(reason);
        goto out;
    }
    error = list_runs(parts, runs, scratch, reason);
    if (error)
        goto out;
    number_shards(runs, order, &counts);
    if (!make_index(&builder, &counts)) {
        error = reason_no_memory(reason);
        goto out;
    }
    fill_shards(&builder, order, counts.runs);
    fill_entries(&builder, map, runs);
    copy_index_metadata(&builder, parts->metadata);
    builder.index->container = parts->container;
    error = sort_entries(&builder, reason);
    if (error)
        free(builder.index);
    else
        *index = builder.index;
out:
    free(scratch);
    free(order);
    free(runs);
    return error;
}

errint_t
st_index_parse(const char *json, size_t length, const struct container *container,
               struct st_index **index, struct reason *reason)
{
    bool has_mark = length >= 3 && memcmp(json, "\xEF\xBB\xBF", 3) == 0;
    struct index_parts parts = {.container = container};
    struct json_fault fault;

    if (length > ST_MAX_INDEX)
        return refuse_index(reason, "the index has %zu bytes, expected at most %u", length,
                            ST_MAX_INDEX);
    if (has_mark) {
        json += 3;
        length -= 3;
    }
    if (!json_check_utf8(json, length, &fault.at))
        return refuse_index(reason, "the index is not UTF-8: byte 0x%02x at offset %zu",
                            (unsigned char)json[fault.at], fault.at);
    if (json_check_names(json, length, &fault))
        return refuse_index(reason, "the index is not JSON: %s, at offset %zu", fault.what,
                            fault.at);

    errint_t error = find_parts(json_read(json, length), &parts, reason);
    if (error)
        return error;
    /* It is copied to other indexes. */
    if (parts.metadata.length && json_check(parts.metadata.text, parts.metadata.length, &fault))
        return refuse_index(reason, "the metadata of the index is not JSON: %s", fault.what);
    error = parse_parts(&parts, index, reason);
    if (error)
        return error;
    (*index)->has_byte_order_mark = has_mark;
    if (parts.metadata.length)
        read_total_size(parts.metadata, *index);
    return 0;
}

void
st_index_free(struct st_index *index)
{
    free(index);
}
