/* SPDX-License-Identifier: Apache-2.0 */
/* See error.h. */
#include "base/error.h"

#include "base/quote.h"

#include <stdarg.h>
#include <stdio.h>

/* Removes the last character of a truncated text if it is incomplete. */
static void
drop_cut_character(char *text, size_t length)
{
    size_t start = length - 1;
    uint32_t code;

    while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80)
        start--;
    if (!utf8_decode(text + start, length - start, &code))
        text[start] = '\0';
}

void
reason_fill(struct reason *reason, const char *rule, const char *format, ...)
{
    const int saved = errno;
    va_list arguments;

    if (!reason)
        return;
    reason->rule = rule;
    va_start(arguments, format);
    int length = vsnprintf(reason->text, sizeof(reason->text), format, arguments);
    va_end(arguments);
    if (length < 0)
        reason->text[0] = '\0';
    else if ((size_t)length >= sizeof(reason->text))
        drop_cut_character(reason->text, sizeof(reason->text) - 1);
    errno = saved;
}

errint_t
reason_errno(struct reason *reason, errint_t error, const char *what)
{
    return reason_set(reason, error, "IoError", "%s%s%s", what ? what : "", what ? ": " : "",
                      strerror(-error));
}

char *
quoted(char out[QUOTED_SIZE], const char *text, size_t length)
{
    static const char mark[] = "...";
    char piece[QUOTE_PIECE];
    size_t piece_length, filled = 0, at = 0;
    size_t cut = 0; /* the last character boundary that leaves room for the mark */

    while (at < length) {
        at += quote_next(text + at, length - at, piece, &piece_length);
        if (filled + sizeof(mark) <= QUOTED_SIZE)
            cut = filled;
        if (filled + piece_length >= QUOTED_SIZE) {
            memcpy(out + cut, mark, sizeof(mark));
            return out;
        }
        memcpy(out + filled, piece, piece_length);
        filled += piece_length;
    }
    out[filled] = '\0';
    return out;
}
