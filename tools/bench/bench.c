/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "format/safetensors.h"
#include "machine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHORTEST 1e-3 /* seconds: what takes less is not timed */
#define SURELY_LONG ((uint64_t)256 << 20) /* bytes that no machine reads in that */
#define PYTHON_MEMORY ((uint64_t)512 << 20) /* of python3 with its packages */

struct row *
bench_row(struct bench *bench, unsigned way, bool mounted, enum temperature temperature)
{
    return &bench->rows[(way * 2 + mounted) * TEMPERATURES + temperature];
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

        if (strcmp(row->way->name, "direct") == 0 && !row->mounted && row->temperature == COLD)
            return row->rounds > 0 ? row : NULL;
    }
    return NULL;
}

void
row_skip(struct row *row, bool failed, const char *why)
{
    snprintf(row->skipped, sizeof(row->skipped), "%s", why);
    row->failed = failed;
    row->rounds = 0;
}

/* ---- the model, bare and mounted ---- */

/* The source of a file of a mount: of the same name, or the checkpoint of which
 * it is the merged file. */
static errint_t
open_source(char *path, struct model *model, struct reason *reason)
{
    size_t length = strlen(path), end = st_suffix_length(path, length);
    errint_t error = model_open(path, model, reason);

    if (error != -ENOENT || end == 0)
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
                          "on a mount, name a checkpoint of its shards/ or merged/");
    if (error)
        return error;
    /* The name of a file or stem that was given, behind its directory. */
    name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (bench->model.is_directory)
        name = "";
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
    error = open_source(source, &bench->model, reason);
    if (error) {
        char text[sizeof(reason->text)];

        strcpy(text, reason->text);
        reason_set(reason, error, "Source", "its source %.200s: %.250s", source, text);
    }
    return error;
}

/* ---- whether it can be timed ---- */

static errint_t
check_size(const struct bench *bench, struct progress *progress, struct reason *reason)
{
    struct reader reader = {READER_READ, 1 << 20, 1, 1, 1, false};
    struct watch watch = {progress_tick, progress};
    struct reader_result result = {0};
    double least = SHORTEST * 2;
    struct plan plan = {0};
    errint_t error;

    if (bench->model.bytes >= SURELY_LONG)
        return 0;
    error = model_plan(&bench->model, NULL, ORDER_FILES, &plan);
    if (error)
        reason_set(reason, error, "Plan", "%s", strerror(-error));
    for (int i = 0; !error && i < 3; i++) {
        error = reader_run(&reader, &plan, &watch, NULL, &result, reason);
        if (!error && result.seconds < least)
            least = result.seconds;
    }
    plan_free(&plan);
    if (!error && least < SHORTEST)
        return reason_set(reason, -ERANGE, "Size",
                          "too small to time: this machine reads its %" PRIu64
                          " bytes in %.3f ms; some %d MB are wanted",
                          bench->model.bytes, least * 1e3, 100);
    return error;
}

/* ---- the ways ---- */

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
add_loaders(struct bench *bench, struct progress *progress, struct reason *reason)
{
    struct loader loaders[LOADERS_MOST];
    struct watch watch = {progress_tick, progress};
    unsigned count;
    errint_t error = loaders_list(loaders, &count, &watch, reason);
    char why[sizeof(reason->text)];

    if (error && error != -EINTR) {
        strcpy(why, reason->text);
        return reason_set(reason, error, "Loaders", "--loaders: %.400s", why);
    }
    for (unsigned i = 0; !error && i < count; i++)
        bench->ways[bench->way_count++] = way_of_loader(&loaders[i]);
    return error;
}

/* Leaves the ways that were chosen. */
static void
choose_ways(struct bench *bench)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < bench->way_count; i++) {
        if (is_chosen(bench->options->ways, bench->ways[i].name))
            bench->ways[kept++] = bench->ways[i];
    }
    bench->way_count = kept;
}

static void
make_rows(struct bench *bench)
{
    bench->row_count = bench->way_count * 2 * TEMPERATURES;
    for (unsigned way = 0; way < bench->way_count; way++) {
        for (int mounted = 0; mounted < 2; mounted++) {
            for (int t = COLD; t < TEMPERATURES; t++) {
                struct row *row = bench_row(bench, way, mounted, (enum temperature)t);

                *row = (struct row){.way = &bench->ways[way],
                                    .mounted = mounted,
                                    .temperature = (enum temperature)t};
                row->seconds = calloc(bench->options->rounds, sizeof(*row->seconds));
                row->pinned = calloc(bench->options->rounds, sizeof(*row->pinned));
                if (!row->seconds || !row->pinned)
                    row_skip(row, true, "no memory");
            }
        }
    }
}

/* ---- what cannot be run, and why ---- */

/* Bytes of memory that a row wants free. */
static uint64_t
memory_wanted(const struct bench *bench, const struct row *row)
{
    uint64_t bytes = bench->model.bytes, wanted = 0;

    if (row->temperature == WARM)
        wanted += bytes; /* in the page cache */
    if (row->way->in_memory)
        wanted += bytes + PYTHON_MEMORY;
    return wanted;
}

static void
check_memory(const struct bench *bench, struct row *row, uint64_t available)
{
    uint64_t wanted = memory_wanted(bench, row);
    char why[200];

    if (wanted <= available)
        return;
    snprintf(why, sizeof(why), "too little memory: it wants %.1f GB, and %.1f GB are free",
             (double)wanted / 1e9, (double)available / 1e9);
    row_skip(row, false, why);
}

static void
check_loader(const struct bench *bench, struct row *row)
{
    const char *name = row->way->name;
    char path[PATH_MAX + 16], why[200];

    if (row->way->missing[0]) {
        row_skip(row, false, row->way->missing);
        return;
    }
    if (strcmp(name, "transformers") != 0 && strcmp(name, "diffusers") != 0)
        return;
    snprintf(path, sizeof(path), "%s/config.json", bench->model.directory);
    if (!bench->model.whole)
        snprintf(why, sizeof(why), "%s wants a directory with one checkpoint in it", name);
    else if (access(path, R_OK) < 0)
        snprintf(why, sizeof(why), "%s wants a config.json beside the checkpoint", name);
    else
        return;
    row_skip(row, false, why);
}

static void
check_device(const struct bench *bench, struct row *row)
{
    char entry[PATH_MAX], why[200];

    if (bench->model.bytes > bench->device->free_memory) {
        snprintf(why, sizeof(why),
                 "too little memory on %s: it wants %.1f GB, and %.1f of its %.1f GB are free",
                 bench->device->name, (double)bench->model.bytes / 1e9,
                 (double)bench->device->free_memory / 1e9, (double)bench->device->memory / 1e9);
        row_skip(row, false, why);
    } else if (!model_entry(row->mounted && !bench->own_mount ? &bench->mounted : &bench->model,
                            entry)) {
        row_skip(row, false,
                 "libfstfs opens shards without an index only in a directory of theirs");
    }
}

static void
check_rows(struct bench *bench)
{
    struct reason no_mount = {0};
    uint64_t available = machine_memory_available();
    bool can_mount = !bench->own_mount || mount_program(bench->program, &no_mount) == 0;

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct row *row = &bench->rows[i];

        if (row->temperature == WARM && !row->way->has_warm)
            row_skip(row, false, "it goes past the page cache");
        if (!row->skipped[0] && row->mounted && !can_mount)
            row_skip(row, false, no_mount.text);
        if (!row->skipped[0] && row->way->is_loader)
            check_loader(bench, row);
        if (!row->skipped[0] && row->way->is_device)
            check_device(bench, row);
        if (!row->skipped[0])
            check_memory(bench, row, available);
    }
}

errint_t
bench_open(const char *path, const struct options *options, const struct device *device,
           struct bench *bench, struct reason *reason)
{
    struct progress progress = {0};
    errint_t error;

    *bench = (struct bench){.options = options, .device = device};
    error = find_model(path, bench, reason);
    if (!error)
        error = check_size(bench, &progress, reason);
    if (error)
        return error;
    bench->way_count = ways_list(bench->ways);
    if (device)
        bench->ways[bench->way_count++] = way_of_device(device->name);
    if (options->loaders)
        error = add_loaders(bench, &progress, reason);
    if (error)
        return error;
    choose_ways(bench);
    make_rows(bench);
    check_rows(bench);
    return 0;
}

void
bench_close(struct bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++) {
        free(bench->rows[i].seconds);
        free(bench->rows[i].pinned);
        cJSON_Delete(bench->rows[i].storage);
    }
    model_close(&bench->model);
    model_close(&bench->mounted);
}
