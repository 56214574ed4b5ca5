/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef FSTFS_BASE_UTF8_H
#define FSTFS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the first character of `text` (`length` bytes, at least 1) into *code. Returns its number
 * of bytes; 0: not UTF-8. */
static inline unsigned
utf8_decode(const char *text, size_t length, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned more;
    uint32_t least, c;

    if (s[0] < 0x80) {
        *code = s[0];
        return 1;
    }
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        more = 1;
        least = 0x80;
        c = s[0] & 0x1Fu;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        more = 2;
        least = 0x800;
        c = s[0] & 0x0Fu;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        more = 3;
        least = 0x10000;
        c = s[0] & 0x07u;
    } else {
        return 0;
    }
    if (length <= more)
        return 0;
    for (unsigned i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    if (c < least || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *code = c;
    return more + 1;
}

/* Encodes a Unicode scalar value. Returns the number of bytes written. */
static inline unsigned
utf8_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

#endif
