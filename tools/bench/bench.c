/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "common/machine_memory.h"
#include "format/container.h"
#include "loaders.h"
#include "machine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECONDS_LEAST 1e-3 /* shorter reads are too inaccurate */
#define SURELY_TIMED ((uint64_t)256 << 20) /* no machine reads as much in SECONDS_LEAST */
#define PYTHON_MEMORY ((uint64_t)512 << 20) /* bytes of python3 with its packages */

struct row *
bench_row(struct bench *bench, unsigned method, bool mounted, enum temperature temperature)
{
    return &bench->rows[(method * 2 + mounted) * TEMPERATURES + temperature];
}

const struct row *
bench_bare(const struct bench *bench, const struct row *row)
{
    return row->mounted ? row - TEMPERATURES : row;
}

const struct row *
bench_best(const struct bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (strcmp(row->method->name, "direct") == 0 && !row->mounted && row->temperature == COLD)
            return row->rounds > 0 ? row : NULL;
    }
    return NULL;
}

const char *
bench_path(const struct bench *bench)
{
    return bench->own_mount ? bench->model.path : bench->mounted.path;
}

/* ---- the model, bare and mounted ---- */

/* Opens the source of a file of a mount: the file of the same name, or the checkpoint of which it
 * is the merged file. */
static errint_t
open_source_model(char *path, struct model *model, struct reason *reason)
{
    size_t length = strlen(path), end;
    errint_t error = model_open(path, model, reason);

    if (error != -ENOENT || container_of_name(path, length, &end) != &container_safetensors)
        return error;
    model_close(model);
    path[length - end] = '\0';
    return model_open(path, model, reason);
}

static errint_t
find_model(const char *path, struct bench *bench, struct reason *reason)
{
    char source[PATH_MAX], real[PATH_MAX];
    errint_t error = model_open(path, &bench->model, reason);
    const char *name;

    if (error == -ENOENT && realpath(path, real) &&
        mount_of(real, &bench->mount, source, NULL) == 0)
        return reason_set(reason, error, "View",
                          "on a mount, give a checkpoint in shards/ or merged/");
    if (error)
        return error;
    name = bench->model.is_directory ? "" : basename(path);
    snprintf(real, sizeof(real), "%s%s%s", bench->model.directory, *name ? "/" : "", name);
    error = mount_of(real, &bench->mount, source, reason);
    if (error == -ENOENT) {
        bench->own_mount = true;
        return 0;
    }
    if (error)
        return error;
    bench->mounted = bench->model;
    bench->model = (struct model){0};
    error = open_source_model(source, &bench->model, reason);
    if (error) {
        char text[sizeof(reason->text)];

        strcpy(text, reason->text);
        reason_fill(reason, "Source", "source %.200s: %.250s", source, text);
    }
    return error;
}

/* Refuses a model that is too small: it would be read too quickly to be timed. */
static errint_t
check_model_size(const struct bench *bench, struct reason *reason)
{
    struct reader reader = {READER_READ, 1 << 20, 1, 1, 1, false};
    struct progress progress = {0};
    struct reader_result result = {0};
    double least = SECONDS_LEAST * 2;
    struct plan plan = {0};
    errint_t error;

    if (bench->model.bytes >= SURELY_TIMED)
        return 0;
    error = model_plan(&bench->model, bench->model.directory, ORDER_FILES, &plan);
    if (error)
        reason_fill(reason, "Plan", "%s", strerror(-error));
    for (int i = 0; !error && i < 3; i++) {
        error = reader_run(&reader, &plan, &progress, &result, reason);
        if (!error && result.seconds < least)
            least = result.seconds;
    }
    plan_free(&plan);
    if (!error && least < SECONDS_LEAST)
        return reason_set(reason, -ERANGE, "Size",
                          "too small to time: %" PRIu64
                          " bytes are read in %.3f ms; use a model of at least 100 MB",
                          bench->model.bytes, least * 1e3);
    return error;
}

/* ---- methods and rows ---- */

static bool
is_chosen(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return !list;
}

static errint_t
choose_methods(struct bench *bench, struct reason *reason)
{
    unsigned count = methods_list(bench->methods), kept = 0;

    if (bench->device)
        bench->methods[count++] = method_of_device(bench->device->name);
    if (bench->options->loaders) {
        errint_t error = loaders_list(bench->methods, &count, reason);

        if (error)
            return error;
    }
    for (unsigned i = 0; i < count; i++) {
        if (is_chosen(bench->options->methods, bench->methods[i].name))
            bench->methods[kept++] = bench->methods[i];
    }
    bench->method_count = kept;
    return 0;
}

static errint_t
make_rows(struct bench *bench, struct reason *reason)
{
    bench->row_count = bench->method_count * 2 * TEMPERATURES;
    bench->rows = calloc(bench->row_count + 1, sizeof(*bench->rows));
    if (!bench->rows)
        return reason_no_memory(reason);
    for (unsigned i = 0; i < bench->row_count; i++) {
        bench->rows[i].method = &bench->methods[i / (2 * TEMPERATURES)];
        bench->rows[i].mounted = i / TEMPERATURES % 2;
        bench->rows[i].temperature = (enum temperature)(i % TEMPERATURES);
    }
    return 0;
}

/* ---- rows that cannot be measured ---- */

static void
check_memory(const struct bench *bench, struct row *row, uint64_t available)
{
    uint64_t bytes = bench->model.bytes, wanted = 0;

    if (row->temperature == WARM)
        wanted += bytes; /* in the page cache */
    if (row->method->kind == METHOD_LOADER)
        wanted += bytes + PYTHON_MEMORY;
    if (wanted > available)
        row_skip(row, false, "not enough memory: needs %.1f GB, %.1f GB are available",
                 (double)wanted / 1e9, (double)available / 1e9);
}

static void
check_loader(const struct bench *bench, struct row *row)
{
    const char *name = row->method->name;
    bool needs_config = strcmp(name, "transformers") == 0 || strcmp(name, "diffusers") == 0;
    char path[PATH_MAX + 16];

    snprintf(path, sizeof(path), "%s/config.json", bench->model.directory);
    if (row->method->missing[0])
        row_skip(row, false, "%s", row->method->missing);
    else if (needs_config && !bench->model.whole)
        row_skip(row, false, "%s needs a directory that contains one checkpoint", name);
    else if (needs_config && access(path, R_OK) < 0)
        row_skip(row, false, "%s needs a config.json next to the checkpoint", name);
}

static void
check_device(const struct bench *bench, struct row *row)
{
    char entry[PATH_MAX];

    if (bench->model.bytes > bench->device->free_memory)
        row_skip(row, false, "not enough memory on %s: needs %.1f GB, %.1f of %.1f GB are free",
                 bench->device->name, (double)bench->model.bytes / 1e9,
                 (double)bench->device->free_memory / 1e9, (double)bench->device->memory / 1e9);
    else if (!model_entry(row->mounted && !bench->own_mount ? &bench->mounted : &bench->model,
                          entry))
        row_skip(row, false,
                 "libfstfs opens shards without an index only in a directory of their own");
}

static void
check_rows(struct bench *bench)
{
    struct reason no_mount = {0};
    uint64_t available = machine_memory_available();
    bool can_mount = !bench->own_mount || mount_program(bench->program, &no_mount) == 0;

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct row *row = &bench->rows[i];

        if (!row_exists(row))
            row_skip(row, false, "bypasses the page cache");
        if (!row->skipped[0] && row->mounted && !can_mount)
            row_skip(row, false, "%s", no_mount.text);
        if (!row->skipped[0] && row->method->kind == METHOD_LOADER)
            check_loader(bench, row);
        if (!row->skipped[0] && row->method->kind == METHOD_DEVICE)
            check_device(bench, row);
        if (!row->skipped[0])
            check_memory(bench, row, available);
    }
}

errint_t
bench_open(const char *path, const struct bench_options *options, const struct device *device,
           struct bench *bench, struct reason *reason)
{
    errint_t error;

    *bench = (struct bench){.options = options, .device = device};
    error = find_model(path, bench, reason);
    if (!error)
        error = check_model_size(bench, reason);
    if (!error)
        error = choose_methods(bench, reason);
    if (!error)
        error = make_rows(bench, reason);
    if (!error)
        check_rows(bench);
    return error;
}

void
bench_close(struct bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++)
        cJSON_Delete(bench->rows[i].storage);
    free(bench->rows);
    model_close(&bench->model);
    model_close(&bench->mounted);
}
