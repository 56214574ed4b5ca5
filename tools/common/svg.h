/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of SVG images. */
#ifndef FSTFS_COMMON_SVG_H
#define FSTFS_COMMON_SVG_H

#include "base/buffer.h"

/* Appends the start of an image of this size in pixels, with the style sheet `style`. */
void svg_begin(struct buffer *out, int width, int height, const char *style);

/* Appends text, quoted as in messages and escaped for XML. */
void svg_add_text(struct buffer *out, const char *text);

/* Appends a text element of a class of the style sheet. */
void svg_add_label(struct buffer *out, int x, int y, const char *class, const char *text);

#endif
