/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char head[] = "  %-36.36s %-7s %6s  %13s  %7s  %7s  %7s  %7s  %6s  %6s\n";

bool
report_has(const struct row *row)
{
    return row->temperature == COLD || row->way->has_warm;
}

void
report_machine(struct buffer *out, const struct machine *machine)
{
    buffer_addf(out, "fstfs-bench " FSTFS_VERSION ": %s, %u x %s, %.0f GB of memory",
                machine->kernel, machine->processors,
                machine->processor[0] ? machine->processor : "processor",
                (double)machine->memory / 1e9);
}

void
report_model(struct buffer *out, const struct bench *bench)
{
    char on[QUOTED_SIZE], storage[160];

    machine_storage_of(bench->model.directory, storage);
    buffer_addf(out, "%.2f GB, %zu tensors, %zu file%s, %s", (double)bench->model.bytes / 1e9,
                bench->model.tensor_count, bench->model.file_count,
                bench->model.file_count == 1 ? "" : "s", quoted(on, storage, strlen(storage)));
}

void
report_table_machine(struct buffer *out, const struct machine *machine, const struct device *device)
{
    report_machine(out, machine);
    buffer_add_char(out, '\n');
    if (device)
        buffer_addf(out, "%s: %s, %.0f GB of memory\n", device->name, device->model,
                    (double)device->memory / 1e9);
}

/* How cold cold was. */
static void
add_coldness(struct buffer *out, const struct bench *bench)
{
    buffer_addf(out, "cold: dropped from the page cache%s%s; %s\n",
                bench->eviction.dropped_all ? ", by dropping all of it, which root may" : "",
                bench->eviction.unverified
                    ? "; whether it is gone, the kernel tells only the files' owner"
                    : ", and looked that it is gone",
                bench->own_mount ? "a fresh mount for each run"
                                 : "your own mount, which may have kept some in its buffers");
}

static void
add_head(struct buffer *out, const struct bench *bench)
{
    const struct model *model = bench->own_mount ? &bench->model : &bench->mounted;
    char name[QUOTED_SIZE];

    buffer_addf(out, "\n%s: ", quoted(name, model->path, strlen(model->path)));
    report_model(out, bench);
    buffer_addf(out, "\n%u round%s%s; ", bench->rounds, bench->rounds == 1 ? "" : "s",
                bench->interrupted ? ", then interrupted" : "");
    add_coldness(out, bench);
}

static void
add_size(char text[16], uint64_t bytes)
{
    if (bytes == 0)
        snprintf(text, 16, "-");
    else if (bytes < 10000000000u)
        snprintf(text, 16, "%.0f MB", (double)bytes / 1e6);
    else
        snprintf(text, 16, "%.1f GB", (double)bytes / 1e9);
}

/* A ratio to another row; "-" where there is none, or it is this one. */
static void
add_ratio(char text[16], const struct row *row, const struct row *to)
{
    if (!to || to == row || to->rounds == 0)
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, "%.2f", row_ratio(row, to).median);
}

/* Bytes, of those that the model has. */
static void
add_share(char text[16], const struct bench *bench, uint64_t bytes)
{
    snprintf(text, 16, "%.0f %%", (double)bytes * 100 / (double)bench->model.bytes);
}

static void
add_row(struct buffer *out, const struct bench *bench, const struct row *row)
{
    char reader[16], daemon[16], bare[16], best[16], range[32], cache[16] = "-", storage[16] = "-";
    char median[16];
    struct spread rate = row_rate(row);

    snprintf(range, sizeof(range), "%.2f - %.2f", rate.least / 1e9, rate.most / 1e9);
    add_ratio(bare, row, row->mounted ? bench_bare(bench, row) : NULL);
    add_ratio(best, row, bench_best(bench));
    add_size(reader, row->reader_memory);
    add_size(daemon, row->daemon_memory);
    if (!bench->eviction.unverified) /* else it is not known */
        add_share(cache, bench, row->bare_cache + row->mount_cache);
    if (row->mounted)
        add_share(storage, bench, row->storage_bytes);
    snprintf(median, sizeof(median), "%.2f", rate.median / 1e9);
    buffer_addf(out, head, row->way->text, row->mounted ? "mounted" : "bare", median, range, bare,
                best, reader, daemon, cache, storage);
}

static void
add_rows(struct buffer *out, const struct bench *bench, enum temperature temperature)
{
    bool begun = false;

    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (row->temperature != temperature || row->rounds == 0)
            continue;
        if (!begun)
            buffer_addf(out, head, temperature == COLD ? "cold" : "warm", "", "GB/s", "range",
                        "of bare", "of best", "reader", "daemon", "cached", "source");
        begun = true;
        add_row(out, bench, row);
    }
}

/* ---- what was not measured ---- */

enum { SKIPPED_MOST = 6, ROWS_OF_WAY = 2 * TEMPERATURES };

static bool
is_missing(const struct row *row)
{
    return row->skipped[0] && report_has(row);
}

static bool
is_same_gap(const struct row *a, const struct row *b)
{
    return is_missing(a) && is_missing(b) && a->failed == b->failed &&
           strcmp(a->skipped, b->skipped) == 0;
}

/* Which rows of a way are missing as this one is: a bit for each, from bare and cold on. A row
 * that a way does not have is as its cold one. */
static unsigned
gap_mask(const struct bench *bench, unsigned way, const struct row *row)
{
    const struct row *rows = &bench->rows[way * ROWS_OF_WAY];
    unsigned mask = 0;

    for (unsigned i = 0; i < ROWS_OF_WAY; i++) {
        unsigned like = report_has(&rows[i]) ? i : i - 1;

        mask |= (unsigned)is_same_gap(&rows[like], row) << i;
    }
    return mask;
}

/* Whether a row before this one is in the same line. */
static bool
is_shown(const struct bench *bench, unsigned number)
{
    const struct row *row = &bench->rows[number];
    unsigned mask = gap_mask(bench, number / ROWS_OF_WAY, row);

    for (unsigned i = 0; i < number; i++)
        if (is_same_gap(&bench->rows[i], row) &&
            gap_mask(bench, i / ROWS_OF_WAY, &bench->rows[i]) == mask)
            return true;
    return false;
}

/* " (mounted, cold)": of which rows; nothing of all. */
static void
add_states(struct buffer *out, unsigned mask)
{
    static const char *const states[1 << ROWS_OF_WAY] = {
        [1] = "bare, cold", [2] = "bare, warm",    [3] = "bare",  [4] = "mounted, cold",
        [5] = "cold",       [8] = "mounted, warm", [10] = "warm", [12] = "mounted",
    };
    static const char *const single[] = {"bare and cold", "bare and warm", "mounted and cold",
                                         "mounted and warm"};
    const char *before = " (";

    if (mask == (1 << ROWS_OF_WAY) - 1)
        return;
    for (unsigned i = 0; i < ROWS_OF_WAY && !states[mask]; i++) {
        if (mask & 1u << i) {
            buffer_addf(out, "%s%s", before, single[i]);
            before = "; ";
        }
    }
    if (states[mask])
        buffer_addf(out, " (%s", states[mask]);
    buffer_add_char(out, ')');
}

/* All ways that miss the same rows for the same reason, in a line. */
static void
add_gap(struct buffer *out, const struct bench *bench, const struct row *row)
{
    unsigned mask = gap_mask(bench, (unsigned)(row - bench->rows) / ROWS_OF_WAY, row);
    const char *before = row->failed ? "  FAILED: " : "  skipped: ";

    for (unsigned way = 0; way < bench->way_count; way++) {
        if (gap_mask(bench, way, row) != mask)
            continue;
        buffer_addf(out, "%s%s", before, bench->ways[way].name);
        before = ", ";
    }
    add_states(out, mask);
    buffer_addf(out, ": %s\n", row->skipped);
}

/* All that failed; and what was skipped, in a few lines. */
static void
add_missing(struct buffer *out, const struct bench *bench)
{
    const struct row *gaps[ROWS_MOST];
    unsigned count = 0, shown;

    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (!is_missing(row) || is_shown(bench, i))
            continue;
        if (row->failed)
            add_gap(out, bench, row);
        else
            gaps[count++] = row;
    }
    shown = count > SKIPPED_MOST ? SKIPPED_MOST - 1 : count;
    for (unsigned i = 0; i < shown; i++)
        add_gap(out, bench, gaps[i]);
    if (shown < count)
        buffer_addf(out, "  skipped for %u other reasons, which --json has\n", count - shown);
}

/* ---- what a device says ---- */

static const char *
text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));

    return text ? text : "";
}

/* by "ring" from 259:2; not "unified": ...; not "cufile": ... */
static void
add_rungs(struct buffer *out, const cJSON *storage)
{
    static const char *const rungs[] = {"unified", "cufile", "ring"};
    char why[QUOTED_SIZE];

    buffer_addf(out, "by \"%s\" from %s", text_of(storage, "rung"), text_of(storage, "number"));
    for (size_t i = 0; i < sizeof(rungs) / sizeof(*rungs); i++) {
        const char *text = text_of(storage, rungs[i]);

        if (*text)
            buffer_addf(out, "; not \"%s\": %s", rungs[i], quoted(why, text, strlen(text)));
    }
}

/* What a way into a device says besides: by what it came, and what copies can do. */
static void
add_device(struct buffer *out, const struct bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];
        const cJSON *storage;

        if (!row->way->is_device || row->rounds == 0)
            continue;
        buffer_addf(out, "  %s, %s, %s: ", row->way->name, row->mounted ? "mounted" : "bare",
                    row->temperature == COLD ? "cold" : "warm");
        if (row_pinned(row).least > 0)
            buffer_addf(out, "%.2f of bare copies from pinned memory, %.2f GB/s; ",
                        row_of_pinned(row).median, row_pinned(row).median / 1e9);
        cJSON_ArrayForEach(storage, row->storage)
        {
            buffer_add_text(out, storage == row->storage->child ? "" : "; ");
            add_rungs(out, storage);
        }
        buffer_add_char(out, '\n');
    }
}

void
report_table(struct buffer *out, const struct bench *bench)
{
    add_head(out, bench);
    add_rows(out, bench, COLD);
    add_rows(out, bench, WARM);
    add_device(out, bench);
    add_missing(out, bench);
    buffer_add_text(out, "  of bare: over the bare files by the same reader; of best: over O_DIRECT"
                         " on them;\n  reader, daemon: most memory; of the model's size,"
                         " cached: page cache it left, source: what fstfs read of it\n");
}
