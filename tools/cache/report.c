/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "common/units.h"

#include <inttypes.h>
#include <string.h>

/* ---- table ---- */

static void
table_add_row(struct buffer *out, const struct selection_row *row, const char *path)
{
    /* The pages at the ends of a tensor or file contain other bytes, or none. */
    double all = (double)row->bytes, cached = (double)row->cached * (double)page_bytes();
    char size[UNITS_SIZE], cached_size[UNITS_SIZE];

    units_bytes(cached_size, cached < all ? cached : all);
    buffer_addf(out, "%9s%9s", row->is_hidden ? "unknown" : cached_size, units_bytes(size, all));
    if (row->is_hidden || row->pages == 0)
        buffer_addf(out, "%6s", "-");
    else /* rounded down: 100 % means all pages */
        buffer_addf(out, "%4" PRIu64 " %%", row->cached * 100 / row->pages);
    buffer_add_text(out, "  ");
    buffer_add_quoted(out, path, strlen(path), SIZE_MAX);
    buffer_add_char(out, '\n');
}

void
report_add_table(struct buffer *out, const struct selection *selection)
{
    if (selection->row_count == 0)
        return;
    buffer_addf(out, "%9s%9s\n", "cached", "of");
    for (size_t i = 0; i < selection->row_count; i++)
        table_add_row(out, &selection->rows[i], selection->rows[i].path);
    if (selection->row_count > 1) {
        struct selection_row total = selection_total(selection);

        table_add_row(out, &total, "total");
    }
}

/* ---- JSON ---- */

static void
json_add_members(struct buffer *out, const struct selection_row *row)
{
    buffer_addf(out,
                "\"files\": %zu, \"tensors\": %zu, \"bytes\": %" PRIu64 ", \"pages\": %" PRIu64,
                row->files, row->tensors, row->bytes, row->pages);
    if (row->is_hidden)
        buffer_add_text(out, ", \"cached_pages\": null");
    else
        buffer_addf(out, ", \"cached_pages\": %" PRIu64, row->cached);
}

void
report_add_json(struct buffer *out, const struct selection *selection)
{
    struct selection_row total = selection_total(selection);

    buffer_addf(out, "{\n  \"version\": \"" FSTFS_VERSION "\",\n  \"page_bytes\": %" PRIu64 ",\n  ",
                page_bytes());
    json_add_members(out, &total);
    buffer_add_text(out, ",\n  \"paths\": [");
    for (size_t i = 0; i < selection->row_count; i++) {
        const struct selection_row *row = &selection->rows[i];

        buffer_add_text(out, i ? ",\n    {\"path\": " : "\n    {\"path\": ");
        buffer_add_json_name(out, row->path, strlen(row->path));
        buffer_add_text(out, ", ");
        json_add_members(out, row);
        buffer_add_char(out, '}');
    }
    buffer_add_text(out, selection->row_count ? "\n  ]\n}\n" : "]\n}\n");
}
