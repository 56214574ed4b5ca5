/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measurement, see bench.h. A pair is one method, bare or mounted, cold and then warm: the cold
 * read fills the page cache for the warm one. A round runs all pairs, every second round in
 * reverse order, so that disturbances affect all of them alike.
 */
#include "bench.h"

#include "loaders.h"
#include "machine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What a pair reads. */
struct target {
    const struct model *model;
    struct model shown; /* of the own mount, if it shows other files than those of the model */
    char directory[PATH_MAX]; /* where the files are */
    struct mount mount; /* if mounted */
    struct plan plan;
};

static uint64_t
larger_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t
cached_bytes(char *const *paths, size_t count)
{
    uint64_t all = 0, one;

    for (size_t i = 0; i < count; i++) {
        if (cache_bytes(paths[i], &one) == 0)
            all += one;
    }
    return all;
}

/* ---- one run ---- */

struct run_result {
    struct reader_result reader;
    bool has_sum;
    struct device_report device; /* of METHOD_DEVICE */
};

static errint_t
run_device(const struct bench *bench, const struct row *row, const struct target *target,
           struct progress *progress, struct run_result *result, struct reason *reason)
{
    char entry[PATH_MAX], path[2 * PATH_MAX];
    struct device_load load = {bench->device->name, path, &target->plan, row->mounted};

    model_entry(target->model, entry);
    snprintf(path, sizeof(path), "%s/%s", target->directory, entry);
    return device_run(&load, progress, &result->reader, &result->device, reason);
}

static errint_t
run_method(const struct bench *bench, const struct row *row, const struct target *target,
           struct progress *progress, struct run_result *result, struct reason *reason)
{
    *result = (struct run_result){.has_sum = true};
    switch (row->method->kind) {
    case METHOD_DEVICE:
        return run_device(bench, row, target, progress, result, reason);
    case METHOD_LOADER:
        return loader_run(row->method->name, target->model, target->directory, progress,
                          &result->reader, &result->has_sum, reason);
    default:
        return reader_run(&row->method->reader, &target->plan, progress, &result->reader, reason);
    }
}

/* Reads the files into the page cache. METHOD_DEVICE may bypass it. */
static errint_t
warm_up(const struct bench *bench, const struct row *row, const struct target *target,
        struct progress *progress, struct reason *reason)
{
    static const struct reader reader = {READER_READ, 1 << 20, 1, 1, 1, false};
    struct run_result unused = {0};

    if (row->method->kind == METHOD_DEVICE)
        return reader_run(&reader, &target->plan, progress, &unused.reader, reason);
    return run_method(bench, row, target, progress, &unused, reason);
}

/* Whether the checksum equals that of the first run in the same order. */
static bool
is_same_sum(struct bench *bench, const struct row *row, const struct reader_result *result)
{
    enum order order = row->method->order;

    /* A merged, re-cut or converted file has the same tensors, but is a different file. */
    if (order == ORDER_FILES && row->mounted && (!bench->own_mount || bench->model.shown))
        return true;
    if (!bench->has_sum[order]) {
        bench->has_sum[order] = true;
        bench->sums[order] = result->sum;
    }
    return bench->sums[order] == result->sum;
}

static void
record_result(const struct bench *bench, struct row *row, const struct target *target,
              struct run_result *result, uint64_t storage_before)
{
    if (result->device.storage) {
        cJSON_Delete(row->storage);
        row->storage = result->device.storage;
        result->device.storage = NULL;
    }
    row->pinned[row->rounds] = result->device.pinned;
    row->seconds[row->rounds++] = result->reader.seconds;
    row->bytes = result->reader.bytes;
    row->reader_memory = larger_of(row->reader_memory, result->reader.memory);
    row->bare_cache =
        larger_of(row->bare_cache, cached_bytes(bench->model.files, bench->model.file_count));
    if (!row->mounted)
        return;
    row->mount_cache =
        larger_of(row->mount_cache, cached_bytes(target->plan.files, target->plan.file_count));
    row->daemon_memory = larger_of(row->daemon_memory, machine_peak_memory(target->mount.daemon));
    row->storage_bytes =
        larger_of(row->storage_bytes, mount_storage_bytes(&target->mount) - storage_before);
}

/* Ends a row after an error. A Python loader that cannot load the bare files is skipped, not
 * failed, and is not tried on the mounted ones. */
static void
end_row(struct bench *bench, struct row *row, errint_t error, const struct reason *reason)
{
    bool is_bare_loader = row->method->kind == METHOD_LOADER && !row->mounted;

    if (error == -EINTR)
        bench->interrupted = true;
    else
        row_skip(row, error != -ENOTSUP && !is_bare_loader, "%s", reason->text);
    if (is_bare_loader && row->skipped[0] && !row[TEMPERATURES].skipped[0])
        row_skip(&row[TEMPERATURES], false, "%s", reason->text);
}

static void
measure_row(struct bench *bench, struct row *row, const struct target *target,
            struct progress *progress)
{
    uint64_t before = row->mounted ? mount_storage_bytes(&target->mount) : 0;
    struct run_result result;
    struct reason reason;
    errint_t error = run_method(bench, row, target, progress, &result, &reason);

    if (error)
        end_row(bench, row, error, &reason);
    else if (result.has_sum && !is_same_sum(bench, row, &result.reader))
        row_skip(row, true, "read other bytes than the first method");
    else
        record_result(bench, row, target, &result, before);
    cJSON_Delete(result.device.storage);
}

/* ---- one pair ---- */

static errint_t
target_make_plan(const struct row *row, struct target *target, struct reason *reason)
{
    errint_t error =
        model_plan(target->model, target->directory, row->method->order, &target->plan);

    return error ? reason_set(reason, error, "Plan", "%s", strerror(-error)) : 0;
}

/* Opens the files that the own mount shows instead of the model's. */
static errint_t
target_open_shown(const struct bench *bench, const struct row *row, struct target *target,
                  struct reason *reason)
{
    char path[2 * PATH_MAX];
    errint_t error;

    snprintf(path, sizeof(path), "%s/%s", target->directory, bench->model.shown);
    error = model_open(path, &target->shown, reason);
    if (error)
        return error;
    target->model = &target->shown;
    snprintf(target->directory, sizeof(target->directory), "%s", target->shown.directory);
    return target_make_plan(row, target, reason);
}

static errint_t
target_open(const struct bench *bench, const struct row *row, struct target *target,
            struct reason *reason)
{
    errint_t error;

    *target = (struct target){.model = &bench->model};
    if (row->mounted && bench->own_mount) {
        error = mount_begin(bench->program, bench->model.directory, &target->mount, reason);
        if (error)
            return error;
        snprintf(target->directory, sizeof(target->directory), "%.*s/shards", PATH_MAX - 8,
                 target->mount.point);
        if (bench->model.shown)
            return target_open_shown(bench, row, target, reason);
    } else if (row->mounted) {
        target->model = &bench->mounted;
        target->mount = bench->mount;
    }
    if (!target->directory[0])
        snprintf(target->directory, sizeof(target->directory), "%s", target->model->directory);
    return target_make_plan(row, target, reason);
}

static void
target_close(const struct bench *bench, struct target *target)
{
    plan_free(&target->plan);
    model_close(&target->shown);
    if (bench->own_mount)
        mount_end(&target->mount);
}

/* Drops the files from the page cache. If that fails, all cold rows are skipped. */
static void
make_cold(struct bench *bench, const struct target *target)
{
    struct reason reason;
    errint_t error =
        cache_evict(bench->model.files, bench->model.file_count, &bench->eviction, &reason);

    if (!error && target->model == &bench->mounted)
        error = cache_evict(target->plan.files, target->plan.file_count, &bench->eviction, &reason);
    for (unsigned i = 0; error && i < bench->row_count; i++) {
        struct row *row = &bench->rows[i];

        if (row->temperature == COLD && !row->skipped[0])
            row_skip(row, false, "%s", reason.text);
    }
}

static void
show_row(const struct bench *bench, const struct row *row, struct progress *progress)
{
    char what[120];

    snprintf(what, sizeof(what), "round %u of %u: %s, %s, %s", bench->rounds + 1,
             bench->options->rounds, row->method->name, row->mounted ? "mounted" : "bare",
             row->temperature == COLD ? "cold" : "warm");
    progress_start(progress, what);
}

static void
run_cold(struct bench *bench, struct row *row, const struct target *target,
         struct progress *progress)
{
    if (row->skipped[0])
        return;
    show_row(bench, row, progress);
    make_cold(bench, target);
    if (!row->skipped[0])
        measure_row(bench, row, target, progress);
    progress_finish(progress, bench->model.bytes);
}

static void
run_warm(struct bench *bench, struct row *row, bool is_warm, const struct target *target,
         struct progress *progress)
{
    struct reason reason;
    errint_t error = 0;

    if (row->skipped[0])
        return;
    show_row(bench, row, progress);
    if (!is_warm)
        error = warm_up(bench, row, target, progress, &reason);
    if (error)
        end_row(bench, row, error, &reason);
    else
        measure_row(bench, row, target, progress);
    progress_finish(progress, bench->model.bytes);
}

static void
run_pair(struct bench *bench, unsigned method, bool mounted, struct progress *progress)
{
    struct row *cold = bench_row(bench, method, mounted, COLD);
    struct row *warm = bench_row(bench, method, mounted, WARM);
    struct reason reason;
    struct target target;
    errint_t error;

    if (cold->skipped[0] && warm->skipped[0])
        return;
    error = target_open(bench, cold, &target, &reason);
    if (error) {
        if (!cold->skipped[0])
            end_row(bench, cold, error, &reason);
        if (!warm->skipped[0])
            end_row(bench, warm, error, &reason);
    } else {
        run_cold(bench, cold, &target, progress);
        if (!bench->interrupted)
            run_warm(bench, warm, !cold->skipped[0] && warm->method->kind != METHOD_DEVICE, &target,
                     progress);
    }
    target_close(bench, &target);
}

static bool
bench_goes_on(struct bench *bench)
{
    bench->interrupted = bench->interrupted || progress_signal();
    return !bench->interrupted;
}

void
bench_run(struct bench *bench)
{
    const unsigned pairs = bench->method_count * 2;
    struct progress progress;
    uint64_t rows = 0;

    for (unsigned i = 0; i < bench->row_count; i++)
        rows += !bench->rows[i].skipped[0];
    progress_begin(&progress, rows * bench->options->rounds * bench->model.bytes);
    while (bench->rounds < bench->options->rounds && bench_goes_on(bench)) {
        for (unsigned i = 0; i < pairs && bench_goes_on(bench); i++) {
            unsigned pair = bench->rounds % 2 ? pairs - 1 - i : i;

            run_pair(bench, pair / 2, pair % 2, &progress);
        }
        bench->rounds += !bench->interrupted;
    }
    progress_end(&progress);
}
