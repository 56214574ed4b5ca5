/* SPDX-License-Identifier: Apache-2.0 */
#include "common/json.h"
#include "report.h"

#include <stdio.h>
#include <string.h>

static const char head[] = "  %-36.36s %-7s %6s  %13s  %7s  %7s  %7s  %7s  %6s  %6s\n";

const char *
row_place(const struct row *row)
{
    return row->mounted ? "mounted" : "bare";
}

const char *
row_state(const struct row *row)
{
    return row->temperature == COLD ? "cold" : "warm";
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

static void
table_add_model(struct buffer *out, const struct bench *bench)
{
    const char *path = bench_path(bench);
    char name[QUOTED_SIZE];

    buffer_addf(out, "\n%s: ", quoted(name, path, strlen(path)));
    report_model(out, bench);
    buffer_addf(out, "\n%u round%s%s; cold: dropped from the page cache%s (%s); %s\n",
                bench->rounds, bench->rounds == 1 ? "" : "s",
                bench->interrupted ? ", then interrupted" : "",
                bench->eviction.dropped_all ? " together with everything else" : "",
                bench->eviction.unverified ? "not verified: only possible for the files' owner"
                                           : "verified",
                bench->own_mount ? "each run on a new mount"
                                 : "on an existing mount, which may have buffered data");
}

static void
table_format_size(char text[16], uint64_t bytes)
{
    if (bytes == 0)
        snprintf(text, 16, "-");
    else if (bytes < 10000000000u)
        snprintf(text, 16, "%.0f MB", (double)bytes / 1e6);
    else
        snprintf(text, 16, "%.1f GB", (double)bytes / 1e9);
}

/* The median ratio to another row; "-" if there is none, or it is the same row. */
static void
table_format_ratio(char text[16], const struct row *row, const struct row *to)
{
    if (!to || to == row || to->rounds == 0)
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, "%.2f", row_ratio(row, to).median);
}

/* Bytes as a percentage of the model. */
static void
table_format_share(char text[16], const struct bench *bench, uint64_t bytes)
{
    snprintf(text, 16, "%.0f %%", (double)bytes * 100 / (double)bench->model.bytes);
}

static void
table_add_row(struct buffer *out, const struct bench *bench, const struct row *row)
{
    char reader[16], daemon[16], bare[16], best[16], range[32], cache[16] = "-", storage[16] = "-";
    char median[16];
    struct spread rate = row_rate(row);

    snprintf(range, sizeof(range), "%.2f - %.2f", rate.least / 1e9, rate.most / 1e9);
    table_format_ratio(bare, row, row->mounted ? bench_bare(bench, row) : NULL);
    table_format_ratio(best, row, bench_best(bench));
    table_format_size(reader, row->reader_memory);
    table_format_size(daemon, row->daemon_memory);
    if (!bench->eviction.unverified)
        table_format_share(cache, bench, row->bare_cache + row->mount_cache);
    if (row->mounted)
        table_format_share(storage, bench, row->storage_bytes);
    snprintf(median, sizeof(median), "%.2f", rate.median / 1e9);
    buffer_addf(out, head, row->method->text, row_place(row), median, range, bare, best, reader,
                daemon, cache, storage);
}

static void
table_add_rows(struct buffer *out, const struct bench *bench, enum temperature temperature)
{
    bool begun = false;

    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (row->temperature != temperature || row->rounds == 0)
            continue;
        if (!begun)
            buffer_addf(out, head, row_state(row), "", "GB/s", "range", "of bare", "of best",
                        "reader", "daemon", "cached", "source");
        begun = true;
        table_add_row(out, bench, row);
    }
}

/* ---- rows that were not measured ---- */

enum { SKIPPED_LINES_MOST = 6 };

static bool
is_same_gap(const struct row *a, const struct row *b)
{
    return row_exists(a) && row_exists(b) && a->skipped[0] && a->failed == b->failed &&
           strcmp(a->skipped, b->skipped) == 0;
}

/* Whether no earlier row was skipped for the same reason. */
static bool
is_first_of_gap(const struct bench *bench, const struct row *row)
{
    for (const struct row *other = bench->rows; other < row; other++)
        if (is_same_gap(other, row))
            return false;
    return row->skipped[0] && row_exists(row);
}

/* Prints one line: all methods with rows that were skipped for the same reason as `first`, and the
 * place and state that these rows share. */
static void
table_add_gap(struct buffer *out, const struct bench *bench, const struct row *first)
{
    const char *before = first->failed ? "  FAILED: " : "  skipped: ";
    unsigned places = 0, states = 0;
    const struct method *last = NULL;

    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (!is_same_gap(row, first))
            continue;
        places |= 1u << row->mounted;
        states |= row->method->has_warm ? 1u << row->temperature : 0;
        if (row->method != last)
            buffer_addf(out, "%s%s", before, row->method->name);
        last = row->method;
        before = ", ";
    }
    if (places != 3)
        buffer_addf(out, " (%s", row_place(first));
    if (states == 1 || states == 2)
        buffer_addf(out, "%s%s", places != 3 ? ", " : " (", states == 1 ? "cold" : "warm");
    if (places != 3 || states == 1 || states == 2)
        buffer_add_char(out, ')');
    buffer_addf(out, ": %s\n", first->skipped);
}

/* Everything that failed, and a few lines about what was skipped. */
static void
table_add_gaps(struct buffer *out, const struct bench *bench)
{
    unsigned gaps = 0, shown = 0;

    for (unsigned i = 0; i < bench->row_count; i++)
        gaps += !bench->rows[i].failed && is_first_of_gap(bench, &bench->rows[i]);
    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];

        if (!is_first_of_gap(bench, row))
            continue;
        if (row->failed || gaps <= SKIPPED_LINES_MOST || shown < SKIPPED_LINES_MOST - 1)
            table_add_gap(out, bench, row);
        shown += !row->failed;
    }
    if (gaps > SKIPPED_LINES_MOST)
        buffer_addf(out, "  skipped for %u other reasons; see --json\n",
                    gaps - (SKIPPED_LINES_MOST - 1));
}

/* ---- the device ---- */

/* by "ring" from 259:2; not "unified": ...; not "cufile": ... */
static void
table_add_backends(struct buffer *out, const cJSON *storage)
{
    static const char *const backends[] = {"unified", "cufile", "ring"};
    char why[QUOTED_SIZE];

    buffer_addf(out, "by \"%s\" from %s", json_text(storage, "backend"),
                json_text(storage, "number"));
    for (size_t i = 0; i < sizeof(backends) / sizeof(*backends); i++) {
        const char *text = json_text(storage, backends[i]);

        if (*text)
            buffer_addf(out, "; not \"%s\": %s", backends[i], quoted(why, text, strlen(text)));
    }
}

/* Further results of METHOD_DEVICE: the backend, and the rate of plain copies. */
static void
table_add_device(struct buffer *out, const struct bench *bench)
{
    for (unsigned i = 0; i < bench->row_count; i++) {
        const struct row *row = &bench->rows[i];
        const cJSON *storage;

        if (row->method->kind != METHOD_DEVICE || row->rounds == 0)
            continue;
        buffer_addf(out, "  %s, %s, %s: ", row->method->name, row_place(row), row_state(row));
        if (row_pinned(row).least > 0)
            buffer_addf(out, "%.2f of plain copies from pinned memory (%.2f GB/s); ",
                        row_ratio_to_pinned(row).median, row_pinned(row).median / 1e9);
        cJSON_ArrayForEach(storage, row->storage)
        {
            buffer_add_text(out, storage == row->storage->child ? "" : "; ");
            table_add_backends(out, storage);
        }
        buffer_add_char(out, '\n');
    }
}

void
report_table(struct buffer *out, const struct bench *bench)
{
    table_add_model(out, bench);
    table_add_rows(out, bench, COLD);
    table_add_rows(out, bench, WARM);
    table_add_device(out, bench);
    table_add_gaps(out, bench);
    buffer_add_text(
        out, "  of bare: ratio to the same method on the bare files; of best: ratio to O_DIRECT on"
             " them;\n  reader, daemon: peak memory; cached: left in the page cache, and source:"
             " read from storage\n  by fstfs, both in % of the model's size\n");
}
