/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static void
add_bytes(cJSON *object, const char *key, uint64_t bytes)
{
    cJSON_AddNumberToObject(object, key, (double)bytes);
}

/* A name of a file, which may be no UTF-8: as the project writes those (buffer.h). */
static void
add_path(cJSON *object, const char *key, const char *path)
{
    struct buffer text = BUFFER_INIT;

    buffer_add_json_string(&text, path, strlen(path));
    cJSON_AddItemToObject(object, key, cJSON_CreateRaw(text.data ? text.data : "null"));
    buffer_free(&text);
}

static void
add_spread(cJSON *object, const char *key, struct spread spread)
{
    cJSON *one = cJSON_AddObjectToObject(object, key);

    cJSON_AddNumberToObject(one, "median", spread.median);
    cJSON_AddNumberToObject(one, "least", spread.least);
    cJSON_AddNumberToObject(one, "most", spread.most);
}

static void
name_row(cJSON *object, const struct row *row)
{
    cJSON_AddStringToObject(object, "way", row->way->name);
    cJSON_AddStringToObject(object, "text", row->way->text);
    cJSON_AddStringToObject(object, "place", row->mounted ? "mounted" : "bare");
    cJSON_AddStringToObject(object, "state", row->temperature == COLD ? "cold" : "warm");
}

static cJSON *
row_object(const struct bench *bench, const struct row *row)
{
    const struct row *bare = bench_bare(bench, row), *best = bench_best(bench);
    cJSON *object = cJSON_CreateObject(), *seconds;

    name_row(object, row);
    add_bytes(object, "bytes", row->bytes);
    seconds = cJSON_AddArrayToObject(object, "seconds");
    for (unsigned i = 0; i < row->rounds; i++)
        cJSON_AddItemToArray(seconds, cJSON_CreateNumber(row->seconds[i]));
    add_spread(object, "bytes_per_second", row_rate(row));
    if (row->mounted && bare->rounds > 0)
        add_spread(object, "of_bare", row_ratio(row, bare));
    if (best)
        add_spread(object, "of_best", row_ratio(row, best));
    add_bytes(object, "reader_memory_bytes", row->reader_memory);
    if (!bench->eviction.unverified) { /* else it is not known */
        add_bytes(object, "page_cache_bytes", row->bare_cache + row->mount_cache);
        if (row->mounted)
            add_bytes(object, "page_cache_of_source_bytes", row->bare_cache);
    }
    if (row->mounted) {
        add_bytes(object, "daemon_memory_bytes", row->daemon_memory);
        add_bytes(object, "storage_read_bytes", row->storage_bytes);
    }
    if (row->way->is_device && row_pinned(row).least > 0) {
        add_spread(object, "pinned_bytes_per_second", row_pinned(row));
        add_spread(object, "of_pinned", row_of_pinned(row));
    }
    if (row->storage)
        cJSON_AddItemToObject(object, "storage", cJSON_Duplicate(row->storage, true));
    return object;
}

static cJSON *
skipped_object(const struct row *row)
{
    cJSON *object = cJSON_CreateObject();

    name_row(object, row);
    cJSON_AddStringToObject(object, "why", row->skipped);
    return object;
}

static cJSON *
bench_object(const struct bench *bench)
{
    cJSON *object = cJSON_CreateObject(), *rows, *skipped, *failed;
    char storage[160];

    machine_storage_of(bench->model.directory, storage);
    add_path(object, "path", bench->own_mount ? bench->model.path : bench->mounted.path);
    add_path(object, "source", bench->model.directory);
    cJSON_AddStringToObject(object, "storage", storage);
    add_bytes(object, "bytes", bench->model.bytes);
    add_bytes(object, "files", bench->model.file_count);
    add_bytes(object, "tensors", bench->model.tensor_count);
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

        if (row->rounds > 0)
            cJSON_AddItemToArray(rows, row_object(bench, row));
        else if (row->skipped[0] && report_has(row))
            cJSON_AddItemToArray(row->failed ? failed : skipped, skipped_object(row));
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
    add_bytes(about, "processors", machine->processors);
    add_bytes(about, "memory_bytes", machine->memory);
    cJSON_AddBoolToObject(about, "root", machine->root);
    if (device) {
        about = cJSON_AddObjectToObject(object, "device");
        cJSON_AddStringToObject(about, "name", device->name);
        cJSON_AddStringToObject(about, "model", device->model);
        add_bytes(about, "memory_bytes", device->memory);
    }
    models = cJSON_AddArrayToObject(object, "models");
    for (unsigned i = 0; i < count; i++)
        cJSON_AddItemToArray(models, bench_object(&benches[i]));
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
