/* SPDX-License-Identifier: Apache-2.0 */
/* The bar chart. Rows are listed cold first, bare next to mounted. The line on each bar is the
 * range of the rounds. */
#include "common/svg.h"
#include "report.h"

enum {
    WIDTH = 860,
    LEFT = 300, /* x of the bars */
    BARS = 460, /* width of the longest */
    BAR = 14,
    LINE = 20,
    TITLE = 34,
};

static const char style[] =
    "text{font:12px sans-serif;fill:#222}.head{font-weight:bold}.bare{fill:#9aa5b1}"
    ".mounted{fill:#2f6fb0}.range{stroke:#222}svg{background:#fff}";

static void
svg_add_bar(struct buffer *out, const struct row *row, double longest, int y)
{
    struct spread rate = row_rate(row);
    double scale = longest > 0 ? BARS / longest : 0;

    buffer_addf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 8, y + 11);
    svg_add_text(out, row->method->text);
    buffer_addf(out, ", %s</text>\n", row_place(row));
    buffer_addf(out,
                "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n"
                "<line class=\"range\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n"
                "<text x=\"%.1f\" y=\"%d\">%.2f GB/s</text>\n",
                row_place(row), LEFT, y, rate.median * scale, BAR, LEFT + rate.least * scale,
                LEFT + rate.most * scale, y + BAR / 2, y + BAR / 2, LEFT + rate.most * scale + 6,
                y + 11, rate.median / 1e9);
}

static double
svg_fastest_rate(const struct bench *bench)
{
    double most = 0;

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct spread rate = row_rate(&bench->rows[i]);

        if (rate.most > most)
            most = rate.most;
    }
    return most;
}

/* Draws one model from `y` down. Returns the y coordinate below it. */
static int
svg_add_bench(struct buffer *out, const struct bench *bench, int y)
{
    struct buffer about = BUFFER_INIT;
    double longest = svg_fastest_rate(bench);

    svg_add_label(out, 16, y + 14, "head", bench_path(bench));
    report_model(&about, bench);
    svg_add_label(out, 16, y + 14 + LINE, "about", about.data ? about.data : "");
    out->failed = out->failed || buffer_failed(&about);
    buffer_free(&about);
    y += TITLE + LINE;
    for (int t = COLD; t < TEMPERATURES; t++) {
        bool begun = false;

        for (unsigned i = 0; i < bench->row_count; i++) {
            const struct row *row = &bench->rows[i];

            if ((int)row->temperature != t || row->rounds == 0)
                continue;
            if (!begun)
                svg_add_label(out, 16, y + 11, "head", row_state(row));
            begun = true;
            svg_add_bar(out, row, longest, y);
            y += LINE;
        }
        y += begun ? LINE / 2 : 0;
    }
    return y;
}

void
report_svg(struct buffer *out, const struct machine *machine, const struct bench *benches,
           unsigned count)
{
    struct buffer body = BUFFER_INIT, about = BUFFER_INIT;
    int y = TITLE;

    report_machine(&about, machine);
    svg_add_label(&body, 16, 20, "about", about.data ? about.data : "");
    out->failed = out->failed || buffer_failed(&about);
    buffer_free(&about);
    for (unsigned i = 0; i < count; i++)
        y = svg_add_bench(&body, &benches[i], y);
    svg_begin(out, WIDTH, y + LINE, style);
    buffer_add(out, body.data, body.length);
    buffer_add_text(out, "</svg>\n");
    out->failed = out->failed || buffer_failed(&body);
    buffer_free(&body);
}
