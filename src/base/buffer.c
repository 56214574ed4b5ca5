/* SPDX-License-Identifier: Apache-2.0 */
/* See buffer.h. All append functions use buffer_room(); only buffer_reserve() allocates. */
#include "base/buffer.h"

#include "base/quote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
buffer_free(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer)BUFFER_INIT;
}

void
buffer_reserve(struct buffer *buffer, size_t more)
{
    if (buffer->failed || buffer->counting || more < buffer->capacity - buffer->length)
        return; /* one byte is reserved for the NUL; 0 - 0 if nothing is allocated */
    if (more >= SIZE_MAX / 2 - buffer->length) {
        buffer->failed = true;
        return;
    }

    size_t needed = buffer->length + more + 1;
    size_t capacity = buffer->capacity + buffer->capacity / 2;
    if (capacity < needed)
        capacity = needed;
    if (capacity < 64)
        capacity = 64;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    data[buffer->length] = '\0';
}

/* Returns where to write `count` more bytes, already counted and NUL-terminated. NULL: the buffer
 * has failed or only counts. */
static char *
buffer_room(struct buffer *buffer, size_t count)
{
    buffer_reserve(buffer, count);
    if (buffer->failed)
        return NULL;
    if (buffer->counting) {
        buffer->length += count;
        return NULL;
    }
    char *room = buffer->data + buffer->length;
    buffer->length += count;
    buffer->data[buffer->length] = '\0';
    return room;
}

void
buffer_add(struct buffer *buffer, const void *bytes, size_t length)
{
    char *room = buffer_room(buffer, length);
    if (room && length)
        memcpy(room, bytes, length);
}

void
buffer_add_text(struct buffer *buffer, const char *text)
{
    buffer_add(buffer, text, strlen(text));
}

void
buffer_add_char(struct buffer *buffer, char c)
{
    buffer_add(buffer, &c, 1);
}

void
buffer_add_repeat(struct buffer *buffer, char c, size_t count)
{
    char *room = buffer_room(buffer, count);
    if (room)
        memset(room, c, count);
}

void
buffer_add_u64(struct buffer *buffer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    buffer_add(buffer, digits + at, sizeof(digits) - at);
}

void
buffer_add_u64le(struct buffer *buffer, uint64_t value)
{
    char bytes[8];

    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(value >> 8 * i);
    buffer_add(buffer, bytes, sizeof(bytes));
}

void
buffer_addf(struct buffer *buffer, const char *format, ...)
{
    va_list arguments, again;

    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) {
        buffer->failed = true;
    } else {
        char *room = buffer_room(buffer, (size_t)length);
        if (room)
            vsnprintf(room, (size_t)length + 1, format, again);
    }
    va_end(again);
}

/* `shown`: escapes the characters for which quote_hides() is true; they are below U+10000, so one
 * \u escape is enough. `exact`: a byte that is not UTF-8 becomes \udcXX, not U+FFFD. */
static void
add_json_string(struct buffer *buffer, const char *text, size_t length, bool shown, bool exact)
{
    size_t plain = 0; /* start of the run that needs no escape */

    buffer_add_char(buffer, '"');
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        uint32_t code = c;
        unsigned used = c < 0x80 ? 1 : utf8_decode(text + i, length - i, &code);

        if (used && shown && code >= 0x7F && quote_hides(code)) {
            buffer_add(buffer, text + plain, i - plain);
            buffer_addf(buffer, "\\u%04x", code);
            i += used - 1;
            plain = i + 1;
            continue;
        }
        if (used && c >= 0x20 && c != '"' && c != '\\') {
            i += used - 1;
            continue;
        }
        buffer_add(buffer, text + plain, i - plain);
        plain = i + 1;
        switch (c) {
        case '"':
        case '\\':
            buffer_add_char(buffer, '\\');
            buffer_add_char(buffer, (char)c);
            break;
        case '\b':
            buffer_add_text(buffer, "\\b");
            break;
        case '\t':
            buffer_add_text(buffer, "\\t");
            break;
        case '\n':
            buffer_add_text(buffer, "\\n");
            break;
        case '\f':
            buffer_add_text(buffer, "\\f");
            break;
        case '\r':
            buffer_add_text(buffer, "\\r");
            break;
        default:
            buffer_addf(buffer, "\\u%04x", used ? c : exact ? 0xdc00u + c : 0xfffdu);
        }
    }
    buffer_add(buffer, text + plain, length - plain);
    buffer_add_char(buffer, '"');
}

void
buffer_add_json_string(struct buffer *buffer, const char *text, size_t length)
{
    add_json_string(buffer, text, length, false, true);
}

void
buffer_add_json_name(struct buffer *buffer, const char *text, size_t length)
{
    add_json_string(buffer, text, length, true, true);
}

void
buffer_add_json_shown(struct buffer *buffer, const char *text, size_t length)
{
    add_json_string(buffer, text, length, true, false);
}

void
buffer_add_json_switch(struct buffer *buffer, const char *name, const char *why_not)
{
    bool on = !why_not || !*why_not;

    buffer_addf(buffer, "\"%s\":{\"on\":%s", name, on ? "true" : "false");
    if (!on) {
        buffer_add_text(buffer, ",\"why\":");
        buffer_add_json_string(buffer, why_not, strlen(why_not));
    }
    buffer_add_text(buffer, "},");
}

void
buffer_add_quoted(struct buffer *buffer, const char *text, size_t length, size_t most)
{
    char piece[QUOTE_PIECE];
    size_t piece_length, at = 0;

    while (at < length) {
        size_t used = quote_next(text + at, length - at, piece, &piece_length);
        if (at + used > most) {
            buffer_add_text(buffer, "...");
            return;
        }
        buffer_add(buffer, piece, piece_length);
        at += used;
    }
}
