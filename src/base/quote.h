/* SPDX-License-Identifier: Apache-2.0 */
/* Escapes one character of untrusted text: see buffer_add_quoted(). For buffer.c and error.c. */
#ifndef FSTFS_BASE_QUOTE_H
#define FSTFS_BASE_QUOTE_H

#include "base/utf8.h"

#include <string.h>

#define QUOTE_PIECE 16 /* bytes of the longest escaped character */

/* Characters that end a line, control a terminal or change the direction of text. */
static inline bool
quote_hides(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x061C || code == 0x200E ||
           code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Escapes the first character (or invalid byte) of `text`, of at least one byte, into `piece`.
 * Returns the length of that character in `text`, in bytes. */
static inline size_t
quote_next(const char *text, size_t length, char piece[QUOTE_PIECE], size_t *piece_length)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t code;
    size_t used = utf8_decode(text, length, &code);

    if (text[0] == '\\') {
        piece[0] = piece[1] = '\\';
        *piece_length = 2;
        return 1;
    }
    if (used && !quote_hides(code)) {
        memcpy(piece, text, used);
        *piece_length = used;
        return used;
    }
    if (!used)
        used = 1;
    for (size_t i = 0; i < used; i++) {
        unsigned char byte = (unsigned char)text[i];
        piece[4 * i] = '\\';
        piece[4 * i + 1] = 'x';
        piece[4 * i + 2] = digits[byte >> 4];
        piece[4 * i + 3] = digits[byte & 15];
    }
    *piece_length = 4 * used;
    return used;
}

#endif
