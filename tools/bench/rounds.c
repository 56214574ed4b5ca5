/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring: see bench.h. A pair is one way, bare or mounted, cold and then warm:
 * the cold read is what warms it. A round runs all pairs, every second one
 * backwards, so that what goes on meanwhile meets all of them.
 */
#include "bench.h"

#include "machine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where a pair reads. */
struct place {
    const struct model *model;
    char directory[PATH_MAX]; /* where its files are; "": where the model says */
    struct mount mount; /* when mounted */
    struct plan plan;
};

static uint64_t
most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t
cached(char *const *paths, size_t count)
{
    uint64_t all = 0, one;

    for (size_t i = 0; i < count; i++) {
        if (cache_bytes(paths[i], &one) == 0)
            all += one;
    }
    return all;
}

/* ---- one run ---- */

/* What a run gave. */
struct found {
    struct reader_result result;
    bool has_sum;
    struct device_report device; /* of a way into it */
};

/* Through a mount only where that is what is measured: libfstfs would go past it. */
static errint_t
run_device(const struct bench *bench, const struct row *row, const struct place *place,
           struct progress *progress, struct found *found, struct reason *reason)
{
    struct watch watch = {progress_tick, progress};
    const char *directory = place->directory[0] ? place->directory : place->model->directory;
    char entry[PATH_MAX], path[2 * PATH_MAX];
    struct device_load load = {bench->device->name, path, &place->plan, row->mounted};

    model_entry(place->model, entry);
    snprintf(path, sizeof(path), "%s/%s", directory, entry);
    return device_run(&load, &watch, progress->running, &found->result, &found->device, reason);
}

static errint_t
run(const struct bench *bench, const struct row *row, const struct place *place,
    struct progress *progress, struct found *found, struct reason *reason)
{
    struct watch watch = {progress_tick, progress};

    *found = (struct found){.has_sum = true};
    if (row->way->is_device)
        return run_device(bench, row, place, progress, found, reason);
    if (row->way->is_loader)
        return loader_run(row->way->name, place->model,
                          place->directory[0] ? place->directory : NULL, &watch, &found->result,
                          &found->has_sum, reason);
    return reader_run(&row->way->reader, &place->plan, &watch, progress->running, &found->result,
                      reason);
}

/* Reads the files into the page cache. A way into a device need not leave them there. */
static errint_t
warm_up(const struct bench *bench, const struct row *row, const struct place *place,
        struct progress *progress, struct reason *reason)
{
    static const struct reader reader = {READER_READ, 1 << 20, 1, 1, 1, false};
    struct watch watch = {progress_tick, progress};
    struct found unused = {0};

    if (row->way->is_device)
        return reader_run(&reader, &place->plan, &watch, NULL, &unused.result, reason);
    return run(bench, row, place, progress, &unused, reason);
}

/* Whether the bytes are those that others have read; the first says which. */
static bool
is_same_sum(struct bench *bench, const struct row *row, const struct reader_result *result)
{
    enum order order = row->way->order;

    /* A merged or re-cut file has the same tensors and is another file. */
    if (order == ORDER_FILES && row->mounted && !bench->own_mount)
        return true;
    if (!bench->has_sum[order]) {
        bench->has_sum[order] = true;
        bench->sums[order] = result->sum;
    }
    return bench->sums[order] == result->sum;
}

static void
take_result(const struct bench *bench, struct row *row, const struct place *place,
            struct found *found, uint64_t storage_before)
{
    const struct reader_result *result = &found->result;

    if (found->device.storage) {
        cJSON_Delete(row->storage);
        row->storage = found->device.storage;
        found->device.storage = NULL;
    }
    row->pinned[row->rounds] = found->device.pinned;
    row->seconds[row->rounds++] = result->seconds;
    row->bytes = result->bytes;
    row->reader_memory = most(row->reader_memory, result->memory);
    row->bare_cache = most(row->bare_cache, cached(bench->model.files, bench->model.file_count));
    if (!row->mounted)
        return;
    row->mount_cache = most(row->mount_cache, cached(place->plan.files, place->plan.file_count));
    row->daemon_memory = most(row->daemon_memory, machine_peak(place->mount.daemon));
    row->storage_bytes =
        most(row->storage_bytes, mount_storage_bytes(&place->mount) - storage_before);
}

/* How a row ends that could not be run. A loader that cannot load the bare files
 * is not what is measured here, nor is it tried on the mounted ones. */
static void
give_up(struct bench *bench, struct row *row, errint_t error, const struct reason *reason)
{
    bool is_loaders = row->way->is_loader && !row->mounted;

    if (error == -EINTR)
        bench->interrupted = true;
    else
        row_skip(row, error != -ENOTSUP && !is_loaders, reason->text);
    if (is_loaders && row->skipped[0] && !row[TEMPERATURES].skipped[0])
        row_skip(&row[TEMPERATURES], false, reason->text);
}

static void
measure(struct bench *bench, struct row *row, const struct place *place, struct progress *progress)
{
    uint64_t before = row->mounted ? mount_storage_bytes(&place->mount) : 0;
    struct reason reason;
    struct found found;
    errint_t error = run(bench, row, place, progress, &found, &reason);

    if (error)
        give_up(bench, row, error, &reason);
    else if (found.has_sum && !is_same_sum(bench, row, &found.result))
        row_skip(row, true, "it gave other bytes than the way that was first");
    else
        take_result(bench, row, place, &found, before);
    cJSON_Delete(found.device.storage);
}

/* ---- one pair ---- */

static errint_t
find_place(const struct bench *bench, const struct row *row, struct place *place,
           struct reason *reason)
{
    errint_t error;

    *place = (struct place){.model = &bench->model};
    if (row->mounted && bench->own_mount) {
        error = mount_begin(bench->program, bench->model.directory, &place->mount, reason);
        if (error)
            return error;
        snprintf(place->directory, sizeof(place->directory), "%.*s/shards", PATH_MAX - 8,
                 place->mount.point);
    } else if (row->mounted) {
        place->model = &bench->mounted;
        place->mount = bench->mount;
    }
    error = model_plan(place->model, place->directory[0] ? place->directory : NULL, row->way->order,
                       &place->plan);
    return error ? reason_set(reason, error, "Plan", "%s", strerror(-error)) : 0;
}

static void
leave_place(const struct bench *bench, struct place *place)
{
    plan_free(&place->plan);
    if (bench->own_mount)
        mount_end(&place->mount);
}

/* Makes the files cold. When they cannot be, no row of the bench is. */
static void
evict(struct bench *bench, const struct place *place)
{
    struct reason reason;
    errint_t error =
        cache_evict(bench->model.files, bench->model.file_count, &bench->eviction, &reason);

    if (!error && place->model == &bench->mounted)
        error = cache_evict(place->plan.files, place->plan.file_count, &bench->eviction, &reason);
    for (unsigned i = 0; error && i < bench->row_count; i++) {
        struct row *row = &bench->rows[i];

        if (row->temperature == COLD && !row->skipped[0])
            row_skip(row, false, reason.text);
    }
}

static void
say_what(const struct bench *bench, const struct row *row, struct progress *progress)
{
    char what[120];

    snprintf(what, sizeof(what), "round %u of %u: %s, %s, %s", bench->rounds + 1,
             bench->options->rounds, row->way->name, row->mounted ? "mounted" : "bare",
             row->temperature == COLD ? "cold" : "warm");
    progress_start(progress, what);
}

static void
run_cold(struct bench *bench, struct row *row, const struct place *place, struct progress *progress)
{
    if (row->skipped[0])
        return;
    say_what(bench, row, progress);
    evict(bench, place);
    if (!row->skipped[0])
        measure(bench, row, place, progress);
    progress_finish(progress, bench->model.bytes);
}

static void
run_warm(struct bench *bench, struct row *row, bool is_warm, const struct place *place,
         struct progress *progress)
{
    struct reason reason;
    errint_t error = 0;

    if (row->skipped[0])
        return;
    say_what(bench, row, progress);
    if (!is_warm)
        error = warm_up(bench, row, place, progress, &reason);
    if (error)
        give_up(bench, row, error, &reason);
    else
        measure(bench, row, place, progress);
    progress_finish(progress, bench->model.bytes);
}

static void
run_pair(struct bench *bench, unsigned way, bool mounted, struct progress *progress)
{
    struct row *cold = bench_row(bench, way, mounted, COLD);
    struct row *warm = bench_row(bench, way, mounted, WARM);
    struct reason reason;
    struct place place;
    errint_t error;

    if (cold->skipped[0] && warm->skipped[0])
        return;
    error = find_place(bench, cold, &place, &reason);
    if (error) {
        if (!cold->skipped[0])
            give_up(bench, cold, error, &reason);
        if (!warm->skipped[0])
            give_up(bench, warm, error, &reason);
    } else {
        run_cold(bench, cold, &place, progress);
        if (!bench->interrupted)
            run_warm(bench, warm, !cold->skipped[0] && !warm->way->is_device, &place, progress);
    }
    leave_place(bench, &place);
}

static bool
is_wanted(struct bench *bench)
{
    bench->interrupted = bench->interrupted || progress_signal();
    return !bench->interrupted;
}

void
bench_run(struct bench *bench)
{
    const unsigned pairs = bench->way_count * 2;
    struct progress progress;
    uint64_t rows = 0;

    for (unsigned i = 0; i < bench->row_count; i++)
        rows += !bench->rows[i].skipped[0];
    progress_begin(&progress, rows * bench->options->rounds * bench->model.bytes);
    while (bench->rounds < bench->options->rounds && is_wanted(bench)) {
        for (unsigned i = 0; i < pairs && is_wanted(bench); i++) {
            unsigned pair = bench->rounds % 2 ? pairs - 1 - i : i;

            run_pair(bench, pair / 2, pair % 2, &progress);
        }
        bench->rounds += !bench->interrupted;
    }
    progress_end(&progress);
}
