/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bar chart: see report.h. Rows stand below each other, cold ones before
 * warm ones, bare beside mounted; the line on each bar spans its rounds.
 */
#include "report.h"

#include <string.h>

enum {
    WIDTH = 860,
    LEFT = 300, /* of the bars */
    BARS = 460, /* how long the longest is */
    BAR = 14,
    LINE = 20,
    TITLE = 34,
};

static const char style[] =
    "<style>text{font:12px sans-serif;fill:#222}.head{font-weight:bold}.bare{fill:#9aa5b1}"
    ".mounted{fill:#2f6fb0}.range{stroke:#222}svg{background:#fff}</style>\n";

/* Text for XML: what it cannot hold is a question mark. */
static void
add_text(struct buffer *out, const char *text)
{
    char safe[QUOTED_SIZE];

    quoted(safe, text, strlen(text));
    for (const char *c = safe; *c; c++) {
        if (*c == '<')
            buffer_add_text(out, "&lt;");
        else if (*c == '>')
            buffer_add_text(out, "&gt;");
        else if (*c == '&')
            buffer_add_text(out, "&amp;");
        else
            buffer_add_char(out, *c);
    }
}

static void
add_label(struct buffer *out, int x, int y, const char *class, const char *text)
{
    buffer_addf(out, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, class);
    add_text(out, text);
    buffer_add_text(out, "</text>\n");
}

static void
add_bar(struct buffer *out, const struct row *row, double longest, int y)
{
    const char *place = row->mounted ? "mounted" : "bare";
    struct spread rate = row_rate(row);
    double scale = longest > 0 ? BARS / longest : 0;

    buffer_addf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 8, y + 11);
    add_text(out, row->way->text);
    buffer_addf(out, ", %s</text>\n", place);
    buffer_addf(out,
                "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n"
                "<line class=\"range\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n"
                "<text x=\"%.1f\" y=\"%d\">%.2f GB/s</text>\n",
                place, LEFT, y, rate.median * scale, BAR, LEFT + rate.least * scale,
                LEFT + rate.most * scale, y + BAR / 2, y + BAR / 2, LEFT + rate.most * scale + 6,
                y + 11, rate.median / 1e9);
}

static double
fastest(const struct bench *bench)
{
    double most = 0;

    for (unsigned i = 0; i < bench->row_count; i++) {
        struct spread rate = row_rate(&bench->rows[i]);

        if (rate.most > most)
            most = rate.most;
    }
    return most;
}

/* Draws one model from `y` on; gives where it ends. */
static int
add_bench(struct buffer *out, const struct bench *bench, int y)
{
    const char *path = bench->own_mount ? bench->model.path : bench->mounted.path;
    struct buffer about = BUFFER_INIT;
    double longest = fastest(bench);

    add_label(out, 16, y + 14, "head", path);
    report_model(&about, bench);
    add_label(out, 16, y + 14 + LINE, "about", about.data ? about.data : "");
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
                add_label(out, 16, y + 11, "head", t == COLD ? "cold" : "warm");
            begun = true;
            add_bar(out, row, longest, y);
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
    add_label(&body, 16, 20, "about", about.data ? about.data : "");
    out->failed = out->failed || buffer_failed(&about);
    buffer_free(&about);
    for (unsigned i = 0; i < count; i++)
        y = add_bench(&body, &benches[i], y);
    buffer_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\">\n",
                WIDTH, y + LINE, WIDTH, y + LINE);
    buffer_add_text(out, style);
    buffer_add(out, body.data, body.length);
    buffer_add_text(out, "</svg>\n");
    out->failed = out->failed || buffer_failed(&body);
    buffer_free(&body);
}
