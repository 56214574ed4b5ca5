/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See index.h. The names go from tensor to shard; here they are taken apart
 * (json.h), sorted, and each shard's name is kept once.
 */
#include "format/index.h"

#include "format/json.h"
#include "format/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Real metadata is a few numbers; beyond this it is neither looked into nor kept. */
#define METADATA_MOST 65536u

/* A double holds whole numbers exactly up to here. */
#define EXACT_MOST 9007199254740992.0

static errint_t
refuse(struct reason *reason, const char *what)
{
    return reason_set(reason, -EBADMSG, "InvalidIndex", "%s", what);
}

static errint_t
out_of_memory(struct reason *reason)
{
    return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the index");
}

/* Whether a shard's name, as the index gives it, is a plain file name. */
static bool
is_plain_name(const char *name, size_t length)
{
    return st_suffix_length(name, length) > 0 && name[0] != '.' && !memchr(name, '/', length) &&
           !memchr(name, '\\', length) && !memchr(name, '\0', length);
}

/* metadata.total_size. It may be anything, so cJSON reads it. */
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

/* The members of an index that are read: at weight_map's object; and metadata, where it is an
 * object that is not too long. */
struct parts {
    struct json_reader map;
    struct json_span metadata;
};

static errint_t
find_parts(struct json_reader in, struct parts *parts, struct reason *reason)
{
    struct json_span key;

    *parts = (struct parts){{NULL, NULL}, {NULL, 0}};
    if (json_type(&in) != JSON_OBJECT)
        return refuse(reason, "the index is JSON but no object");
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
            return refuse(reason, "weight_map appears twice");
        parts->map = value;
    }
    if (!parts->map.at)
        return refuse(reason, "weight_map is missing");
    if (json_type(&parts->map) != JSON_OBJECT)
        return refuse(reason, "weight_map is not an object");
    return 0;
}

/* Entries that follow each other and name the same shard: most do, so there are
 * far fewer runs than entries, and only runs are sorted to number the shards. */
struct run {
    const char *shard; /* terminated, in the scratch text */
    uint32_t number;
};

/* What a weight_map holds, and the room it takes. */
struct counts {
    uint32_t entries;
    uint32_t runs;
    uint32_t shards;
    size_t names; /* bytes of the tensors' names */
    size_t run_names; /* of the runs' shards, with their NULs */
    size_t shard_names; /* of the shards, each once, with their NULs */
    size_t metadata;
};

/* Whether a raw shard name does not go on with the run of the one before. */
static bool
begins_run(struct json_span before, struct json_span raw)
{
    return !before.text || before.length != raw.length ||
           memcmp(before.text, raw.text, raw.length) != 0;
}

static errint_t
count_map(struct json_reader in, struct counts *counts, struct reason *reason)
{
    struct json_span key, before = {NULL, 0};

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        char shown[QUOTED_SIZE];
        if (json_type(&in) != JSON_STRING)
            return reason_set(reason, -EBADMSG, "InvalidIndex",
                              "weight_map: the value of \"%s\" is not a string",
                              quoted(shown, key.text, key.length));
        struct json_span raw = json_take_string(&in);
        counts->entries++;
        counts->names += json_unescaped_length(key);
        if (begins_run(before, raw)) {
            counts->runs++;
            counts->run_names += json_unescaped_length(raw) + 1;
        }
        before = raw;
    }
    return 0;
}

/* Lists the runs, their names in `scratch`, and checks the names. */
static errint_t
list_runs(struct json_reader in, struct run *runs, char *scratch, struct reason *reason)
{
    struct json_span key, before = {NULL, 0};

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        char shown[QUOTED_SIZE];
        struct json_span raw = json_take_string(&in);
        if (!begins_run(before, raw))
            continue;
        before = raw;
        size_t length = json_unescape(raw, scratch);
        if (!is_plain_name(scratch, length))
            return reason_set(reason, -EBADMSG, "InvalidIndex",
                              "weight_map names the file \"%s\", expected a plain name that ends "
                              "in .safetensors",
                              quoted(shown, scratch, length));
        scratch[length] = '\0';
        (runs++)->shard = scratch;
        scratch += length + 1;
    }
    return 0;
}

static int
compare_runs(const void *a, const void *b)
{
    return strcmp((*(struct run *const *)a)->shard, (*(struct run *const *)b)->shard);
}

/* Numbers the runs by their shards in sorted order; `order` becomes the runs
 * sorted. */
static void
number_shards(struct run *runs, struct run **order, struct counts *counts)
{
    for (uint32_t i = 0; i < counts->runs; i++)
        order[i] = &runs[i];
    qsort(order, counts->runs, sizeof(order[0]), compare_runs);
    for (uint32_t i = 0; i < counts->runs; i++) {
        if (i == 0 || compare_runs(&order[i - 1], &order[i]) != 0) {
            counts->shards++;
            counts->shard_names += strlen(order[i]->shard) + 1;
        }
        order[i]->number = counts->shards - 1;
    }
}

/* An index while it is made: the same arrays, to be written. */
struct making {
    struct st_index *index;
    struct st_index_entry *entries;
    const char **shards;
    char *text;
    size_t text_length;
};

static bool
make_index(struct making *making, const struct counts *counts)
{
    size_t shards = sizeof(struct st_index);
    size_t entries = shards + counts->shards * sizeof(char *);
    size_t text = entries + counts->entries * sizeof(struct st_index_entry);
    size_t bytes = text + counts->names + counts->shard_names + counts->metadata;
    char *memory = malloc(bytes);

    if (!memory)
        return false;
    *making = (struct making){
        .index = (struct st_index *)memory,
        .shards = (const char **)(memory + shards),
        .entries = (struct st_index_entry *)(memory + entries),
        .text = memory + text,
    };
    *making->index = (struct st_index){
        .shards = making->shards,
        .entries = making->entries,
        .text = making->text,
        .bytes = bytes,
    };
    return true;
}

static void
fill_shards(struct making *making, struct run *const *order, uint32_t runs)
{
    for (uint32_t i = 0; i < runs; i++) {
        if (order[i]->number < making->index->shard_count)
            continue;
        size_t size = strlen(order[i]->shard) + 1;
        char *name = making->text + making->text_length;
        memcpy(name, order[i]->shard, size);
        making->shards[making->index->shard_count++] = name;
        making->text_length += size;
    }
}

static void
fill_entries(struct making *making, struct json_reader in, const struct run *run)
{
    struct json_span key, before = {NULL, 0};

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        struct st_index_entry *entry = &making->entries[making->index->count++];
        struct json_span raw = json_take_string(&in);
        if (before.text && begins_run(before, raw))
            run++;
        before = raw;
        entry->name = (uint32_t)making->text_length;
        entry->name_length = (uint32_t)json_unescape(key, making->text + making->text_length);
        entry->shard = run->number;
        making->text_length += entry->name_length;
    }
}

static int
compare_names(const void *a, const void *b, void *text)
{
    const struct st_index_entry *x = a, *y = b;
    const char *t = text;
    uint32_t least = x->name_length < y->name_length ? x->name_length : y->name_length;
    int order = memcmp(t + x->name, t + y->name, least);

    return order ? order : (x->name_length > y->name_length) - (x->name_length < y->name_length);
}

/* Sorts the entries, where they are not sorted yet, and refuses twins. */
static errint_t
sort_entries(struct making *making, struct reason *reason)
{
    struct st_index_entry *entries = making->entries;
    uint32_t i = 1, count = making->index->count;

    while (i < count && compare_names(&entries[i - 1], &entries[i], making->text) < 0)
        i++;
    if (i >= count)
        return 0;
    qsort_r(entries, count, sizeof(entries[0]), compare_names, making->text);
    for (i = 1; i < count; i++) {
        char shown[QUOTED_SIZE];
        if (compare_names(&entries[i - 1], &entries[i], making->text) == 0)
            return reason_set(
                reason, -EBADMSG, "InvalidIndex", "weight_map has the tensor \"%s\" more than once",
                quoted(shown, making->text + entries[i].name, entries[i].name_length));
    }
    return 0;
}

/* Keeps the metadata behind the names. */
static void
fill_metadata(struct making *making, struct json_span metadata)
{
    char *text = making->text + making->text_length;

    if (metadata.length == 0)
        return;
    memcpy(text, metadata.text, metadata.length);
    making->index->metadata = text;
    making->index->metadata_length = metadata.length;
}

static errint_t
parse_parts(const struct parts *parts, struct st_index **index, struct reason *reason)
{
    const struct json_reader map = parts->map;
    struct counts counts = {.metadata = parts->metadata.length};
    struct making making = {0};
    struct run *runs = NULL;
    struct run **order = NULL;
    char *scratch = NULL;
    errint_t error = count_map(map, &counts, reason);

    if (error)
        return error;
    runs = calloc((size_t)counts.runs + 1, sizeof(runs[0])); /* never of size 0 */
    order = calloc((size_t)counts.runs + 1, sizeof(order[0]));
    scratch = malloc(counts.run_names + 1);
    if (!runs || !order || !scratch) {
        error = out_of_memory(reason);
        goto out;
    }
    error = list_runs(map, runs, scratch, reason);
    if (error)
        goto out;
    number_shards(runs, order, &counts);
    if (!make_index(&making, &counts)) {
        error = out_of_memory(reason);
        goto out;
    }
    fill_shards(&making, order, counts.runs);
    fill_entries(&making, map, runs);
    fill_metadata(&making, parts->metadata);
    error = sort_entries(&making, reason);
    if (error)
        free(making.index);
    else
        *index = making.index;
out:
    free(scratch);
    free(order);
    free(runs);
    return error;
}

errint_t
st_index_parse(const char *json, size_t length, struct st_index **index, struct reason *reason)
{
    struct json_fault fault;
    struct parts parts;

    if (length > ST_MAX_INDEX)
        return reason_set(reason, -EBADMSG, "InvalidIndex",
                          "the index has %zu bytes; at most %u are read", length, ST_MAX_INDEX);
    if (length >= 3 && memcmp(json, "\xEF\xBB\xBF", 3) == 0) {
        json += 3; /* a byte order mark */
        length -= 3;
    }
    if (!json_check_utf8(json, length, &fault.at))
        return reason_set(reason, -EBADMSG, "InvalidIndex",
                          "the index is not UTF-8: byte 0x%02x at byte %zu of it",
                          (unsigned char)json[fault.at], fault.at);
    if (json_check(json, length, &fault))
        return reason_set(reason, -EBADMSG, "InvalidIndex",
                          "the index is not JSON: %s, at byte %zu of it", fault.what, fault.at);

    errint_t error = find_parts(json_read(json, length), &parts, reason);
    if (!error)
        error = parse_parts(&parts, index, reason);
    if (!error && parts.metadata.length)
        read_total_size(parts.metadata, *index);
    return error;
}

void
st_index_free(struct st_index *index)
{
    free(index);
}
