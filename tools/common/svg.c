/* SPDX-License-Identifier: Apache-2.0 */
#include "svg.h"

#include "base/error.h"

#include <string.h>

void
svg_begin(struct buffer *out, int width, int height, const char *style)
{
    buffer_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\">\n<style>%s</style>\n",
                width, height, width, height, style);
}

void
svg_add_text(struct buffer *out, const char *text)
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

void
svg_add_label(struct buffer *out, int x, int y, const char *class, const char *text)
{
    buffer_addf(out, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, class);
    svg_add_text(out, text);
    buffer_add_text(out, "</text>\n");
}
