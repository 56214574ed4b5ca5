/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static void
json_add_bytes(cJSON *object, const char *key, uint64_t bytes)
{
    cJSON_AddNumberToObject(object, key, (double)bytes);
}

/* Paths may not be UTF-8, which cJSON does not escape. */
static void
json_add_path(cJSON *object, const char *key, const char *path)
{
    struct buffer text = BUFFER_INIT;

    buffer_add_json_string(&text, path, strlen(path));
    cJSON_AddItemToObject(object, key, cJSON_CreateRaw(text.data ? text.data : "null"));
    buffer_free(&text);
}

static void
json_add_spread(cJSON *object, const char *key, struct spread spread)
{
    cJSON *one = cJSON_AddObjectToObject(object, key);

    cJSON_AddNumberToObject(one, "median", spread.median);
    cJSON_AddNumberToObject(one, "least", spread.least);
    cJSON_AddNumberToObject(one, "most", spread.most);
}

/* Creates the object of a row, with its names. */
static cJSON *
json_new_row(const struct row *row)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "method", row->method->name);
    cJSON_AddStringToObject(object, "text", row->method->text);
    cJSON_AddStringToObject(object, "place", row_place(row));
    cJSON_AddStringToObject(object, "state", row_state(row));
    return object;
}

static cJSON *
json_row(const struct bench *bench, const struct row *row)
{
    const struct row *bare = bench_bare(bench, row), *best = bench_best(bench);
    cJSON *object = json_new_row(row), *seconds;

    json_add_bytes(object, "bytes", row->bytes);
    seconds = cJSON_AddArrayToObject(object, "seconds");
    for (unsigned i = 0; i < row->rounds; i++)
        cJSON_AddItemToArray(seconds, cJSON_CreateNumber(row->seconds[i]));
    json_add_spread(object, "bytes_per_second", row_rate(row));
    if (row->mounted && bare->rounds > 0)
        json_add_spread(object, "of_bare", row_ratio(row, bare));
    if (best)
        json_add_spread(object, "of_best", row_ratio(row, best));
    json_add_bytes(object, "reader_memory_bytes", row->reader_memory);
    if (!bench->eviction.unverified) {
        json_add_bytes(object, "page_cache_bytes", row->bare_cache + row->mount_cache);
        if (row->mounted)
            json_add_bytes(object, "page_cache_of_source_bytes", row->bare_cache);
    }
    if (row->mounted) {
        json_add_bytes(object, "daemon_memory_bytes", row->daemon_memory);
        json_add_bytes(object, "storage_read_bytes", row->storage_bytes);
    }
    if (row->method->kind == METHOD_DEVICE && row_pinned(row).least > 0) {
        json_add_spread(object, "pinned_bytes_per_second", row_pinned(row));
        json_add_spread(object, "of_pinned", row_ratio_to_pinned(row));
    }
    if (row->storage)
        cJSON_AddItemToObject(object, "storage", cJSON_Duplicate(row->storage, true));
    return object;
}

static cJSON *
json_bench(const struct bench *bench)
{
    cJSON *object = cJSON_CreateObject(), *rows, *skipped, *failed, *one;
    char storage[160];

    machine_storage_of(bench->model.directory, storage);
    json_add_path(object, "path", bench_path(bench));
    json_add_path(object, "source", bench->model.directory);
    cJSON_AddStringToObject(object, "storage", storage);
    json_add_bytes(object, "bytes", bench->model.bytes);
    json_add_bytes(object, "files", bench->model.file_count);
    json_add_bytes(object, "tensors", bench->model.tensor_count);
    cJSON_AddStringToObject(object, "mount", bench->own_mount ? "fresh" : "found");
    cJSON_AddBoolToObject(object, "cold_is_verified", !bench->eviction.unverified);
    cJSON_AddBoolToObject(object, "dropped_whole_page_cache", bench->eviction.dropped_all);
    cJSON_AddNumberToObject(object, "rounds", bench->rounds);
    cJSON_AddBoolToObject(object, "interrupted", bench->interrupted);
    rows = cJSON_AddArrayToObject(object, "rows");
    skipped = cJSON_AddArrayToObject(object, "skipped");
    failed = cJSON_AddArrayToObject(object, "failed");
    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (row->rounds > 0) {
            cJSON_AddItemToArray(rows, json_row(bench, row));
        } else if (row->skipped[0] && row_exists(row)) {
            one = json_new_row(row);
            cJSON_AddStringToObject(one, "why", row->skipped);
            cJSON_AddItemToArray(row->failed ? failed : skipped, one);
        }
    }
    return object;
}

void
report_json(struct buffer *out, const struct machine *machine, const struct device *device,
            const struct bench *benches, unsigned count)
{
    cJSON *object = cJSON_CreateObject(), *about, *models;
    char *text;

    cJSON_AddStringToObject(object, "version", FSTFS_VERSION);
    about = cJSON_AddObjectToObject(object, "machine");
    cJSON_AddStringToObject(about, "kernel", machine->kernel);
    cJSON_AddStringToObject(about, "processor", machine->processor);
    json_add_bytes(about, "processors", machine->processors);
    json_add_bytes(about, "memory_bytes", machine->memory);
    cJSON_AddBoolToObject(about, "root", machine->root);
    if (device) {
        about = cJSON_AddObjectToObject(object, "device");
        cJSON_AddStringToObject(about, "name", device->name);
        cJSON_AddStringToObject(about, "model", device->model);
        json_add_bytes(about, "memory_bytes", device->memory);
    }
    models = cJSON_AddArrayToObject(object, "models");
    for (unsigned i = 0; i < count; i++)
        cJSON_AddItemToArray(models, json_bench(&benches[i]));
    text = cJSON_Print(object);
    if (text) {
        buffer_add_text(out, text);
        buffer_add_char(out, '\n');
    } else {
        out->failed = true;
    }
    free(text);
    cJSON_Delete(object);
}
