/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load as an SVG image. Above: its rate over time, one bar for each slice; the dark part of a bar
 * is the share of the slice with reads in flight. Below: what the time was spent on.
 */
#include "base/array.h"
#include "common/svg.h"
#include "common/units.h"
#include "loads.h"
#include "report.h"

#include <string.h>

enum {
    WIDTH = 860,
    LEFT = 90, /* x of the chart */
    CHART = 740, /* its width */
    TOP = 84, /* y of the chart */
    HEIGHT = 180, /* of the highest bar */
    PARTS = TOP + HEIGHT + 56, /* y of the parts of the time */
    PART = 22, /* height of that bar */
    LINE = 18,
};

static const char style[] =
    "text{font:12px sans-serif;fill:#222}.head{font-weight:bold;font-size:14px}"
    ".axis{fill:#666}.line{stroke:#ccc}.bytes{fill:#a9c4e0}.waiting{fill:#2f6fb0}"
    ".storage{fill:#c9543a}.fstfs{fill:#2f6fb0}.reader{fill:#9aa5b1}svg{background:#fff}";

static double
slice_length(const struct load *load, unsigned slice)
{
    double rest = load->seconds - slice * load->slice_seconds;

    return rest < load->slice_seconds ? rest : load->slice_seconds;
}

/* Bytes per second. The last slice is usually shorter than the others. */
static double
slice_rate(const struct load *load, unsigned slice)
{
    double seconds = slice_length(load, slice);

    return seconds > load->slice_seconds / 20 ? load->slices[slice] / seconds : 0;
}

static void
add_title(struct buffer *out, const struct load *load)
{
    struct buffer about = BUFFER_INIT;
    struct tm local;
    char date[32] = "", bytes[UNITS_SIZE], rate[UNITS_SIZE];

    buffer_addf(&about, "%s (%s)", load->checkpoint, load->view);
    svg_add_label(out, 16, 24, "head", about.data ? about.data : "");
    buffer_free(&about);
    if (localtime_r(&load->start, &local))
        strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &local);
    buffer_addf(&about, "%s in %.2f s (%s/s) by %s, started %s; order of tensors: %s",
                units_bytes(bytes, load->bytes), load->seconds,
                units_bytes(rate, load->seconds > 0 ? load->bytes / load->seconds : 0),
                load->command, date, load->order);
    svg_add_label(out, 16, 24 + LINE, "about", about.data ? about.data : "");
    out->failed = out->failed || buffer_failed(&about);
    buffer_free(&about);
    svg_add_label(out, 16, 24 + 2 * LINE, "head", load->verdict);
}

/* A horizontal line at this share of the chart's height, with its rate. */
static void
add_rate_line(struct buffer *out, double rate, double share)
{
    char text[UNITS_SIZE];
    double y = TOP + HEIGHT * (1 - share);

    buffer_addf(out,
                "<line class=\"line\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n"
                "<text class=\"axis\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s/s</text>\n",
                LEFT, LEFT + CHART, y, y, LEFT - 6, y + 4, units_bytes(text, rate));
}

static void
add_slices(struct buffer *out, const struct load *load)
{
    double most = 0, scale;

    for (unsigned i = 0; i < load->slice_count; i++)
        most = slice_rate(load, i) > most ? slice_rate(load, i) : most;
    for (int i = 0; i <= 2; i++)
        add_rate_line(out, most * i / 2, i / 2.0);
    scale = load->seconds > 0 ? CHART / load->seconds : 0;
    for (unsigned i = 0; i < load->slice_count; i++) {
        double x = LEFT + i * load->slice_seconds * scale, width = slice_length(load, i) * scale;
        double height = most > 0 ? HEIGHT * slice_rate(load, i) / most : 0;
        double waiting = height * (load->busy[i] < 1 ? load->busy[i] : 1);

        buffer_addf(out,
                    "<rect class=\"bytes\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                    "height=\"%.1f\"/>\n"
                    "<rect class=\"waiting\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                    "height=\"%.1f\"/>\n",
                    x, TOP + HEIGHT - height, width > 2 ? width - 1 : width, height - waiting, x,
                    TOP + HEIGHT - waiting, width > 2 ? width - 1 : width, waiting);
    }
    for (int i = 0; i <= 4; i++)
        buffer_addf(out,
                    "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.2f s</text>\n",
                    LEFT + CHART * i / 4, TOP + HEIGHT + LINE, load->seconds * i / 4);
    svg_add_label(out, LEFT, TOP + HEIGHT + 2 * LINE, "axis",
                  "Rate over time. Dark: share of the time with reads in flight.");
}

static void
add_parts(struct buffer *out, const struct load *load)
{
    const struct {
        const char *class, *text;
        double seconds;
    } parts[] = {
        {"storage", "waiting for storage", load->storage},
        {"fstfs", "waiting for fstfs", load->daemon},
        {"reader", "the reader's own time", load->reader},
    };
    double x = LEFT, scale = load->seconds > 0 ? CHART / load->seconds : 0;

    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        int y = PARTS + PART + LINE * (int)(i + 1);

        buffer_addf(out,
                    "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n"
                    "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"10\" height=\"10\"/>\n"
                    "<text x=\"%d\" y=\"%d\">%s: %.2f s, %.0f %%</text>\n",
                    parts[i].class, x, PARTS, parts[i].seconds * scale, PART, parts[i].class, LEFT,
                    y - 9, LEFT + 16, y, parts[i].text, parts[i].seconds,
                    load->seconds > 0 ? 100 * parts[i].seconds / load->seconds : 0);
        x += parts[i].seconds * scale;
    }
}

void
timeline_svg(const struct load *load, struct buffer *out)
{
    svg_begin(out, WIDTH, PARTS + PART + 4 * LINE, style);
    add_title(out, load);
    add_slices(out, load);
    add_parts(out, load);
    buffer_add_text(out, "</svg>\n");
}
