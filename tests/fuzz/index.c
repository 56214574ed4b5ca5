/* SPDX-License-Identifier: Apache-2.0 */
/* st_index_parse(), with cJSON as the second reader. Input: an index file. */
#include "fuzz.h"

#include "format/index.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return 0;
}

static bool
ends_with(const char *name, const char *suffix)
{
    size_t length = strlen(name), end = strlen(suffix);

    return length > end && strcasecmp(name + length - end, suffix) == 0;
}

static void
expect_plain(const char *shard)
{
    EXPECT(shard[0] != '.');
    EXPECT(!strchr(shard, '/') && !strchr(shard, '\\'));
    EXPECT(ends_with(shard, ".safetensors") || ends_with(shard, ".sft"));
}

static void
expect_index(const struct st_index *index)
{
    bool *used = calloc(index->shard_count + 1, sizeof(*used));

    EXPECT(used);
    for (uint32_t i = 0; i < index->shard_count; i++) {
        expect_plain(index->shards[i]);
        EXPECT(i == 0 || strcmp(index->shards[i - 1], index->shards[i]) < 0);
    }
    for (uint32_t i = 0; i < index->count; i++) {
        const struct st_index_entry *b = &index->entries[i], *a = b - 1;

        EXPECT(b->shard < index->shard_count);
        used[b->shard] = true;
        EXPECT(i == 0 || fuzz_compare(index->text + a->name, a->name_length, index->text + b->name,
                                      b->name_length) < 0);
    }
    for (uint32_t i = 0; i < index->shard_count; i++)
        EXPECT(used[i]);
    free(used);
}

static const struct st_index_entry *
find(const struct st_index *index, const char *name)
{
    size_t length = strlen(name);
    uint32_t low = 0, high = index->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct st_index_entry *entry = &index->entries[middle];
        int order = fuzz_compare(index->text + entry->name, entry->name_length, name, length);

        if (order == 0)
            return entry;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Inputs that cJSON cannot represent are not compared: strings with a NUL, numbers of more than 60
 * digits. */
static void
expect_as_cjson(const struct st_index *index, const char *json, size_t length)
{
    cJSON *root = memmem(json, length, "\\u0000", 6) ? NULL : cJSON_ParseWithLength(json, length);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    uint32_t count = 0;

    for (const cJSON *item = map ? map->child : NULL; item; item = item->next, count++) {
        const struct st_index_entry *entry = find(index, item->string);

        EXPECT(entry && strcmp(index->shards[entry->shard], item->valuestring) == 0);
    }
    EXPECT(!root || count == index->count);
    cJSON_Delete(root);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason reason = {NULL, ""};
    struct st_index *index;
    /* A copy of exactly this size, so that ASan detects reads beyond it. */
    char *json = malloc(size ? size : 1);

    EXPECT(json);
    if (size)
        memcpy(json, data, size);
    if (st_index_parse(json, size, &container_safetensors, &index, &reason)) {
        fuzz_expect_reason(&reason);
    } else {
        expect_index(index);
        expect_as_cjson(index, json, size);
        st_index_free(index);
    }
    free(json);
    return 0;
}
