/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing run of bytes, for the texts fstfs makes: headers, indexes, status.
 *
 * Appending never reports an error by itself: the first failed allocation marks
 * the buffer failed, later appends do nothing, and the owner asks once, at the
 * end, with buffer_failed(). One thread at a time.
 */
#ifndef FSTFS_BASE_BUFFER_H
#define FSTFS_BASE_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    char *data; /* malloc'ed; NUL-terminated once anything was appended */
    size_t length; /* bytes, without the NUL */
    size_t capacity;
    bool failed;
};

#define BUFFER_INIT                                                                                \
    {                                                                                              \
        NULL, 0, 0, false                                                                          \
    }

/* Frees the bytes and leaves an empty buffer. */
void buffer_free(struct buffer *buffer);

/* Makes room for `more` bytes beyond the present length. */
void buffer_reserve(struct buffer *buffer, size_t more);

void buffer_add(struct buffer *buffer, const void *bytes, size_t length);
void buffer_add_text(struct buffer *buffer, const char *text);
void buffer_add_char(struct buffer *buffer, char c);
void buffer_add_repeat(struct buffer *buffer, char c, size_t count);
void buffer_add_u64(struct buffer *buffer, uint64_t value); /* decimal */
void buffer_add_u64le(struct buffer *buffer, uint64_t value); /* 8 bytes, little-endian */
void buffer_addf(struct buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds `length` bytes as a JSON string with its quotes: '"', '\\' and everything
 * below 0x20 escaped, DEL and all else as it is. A byte that is not UTF-8 (a file
 * name may hold one) comes as \udcXX, from which Python's os.fsencode() makes it
 * again. */
void buffer_add_json_string(struct buffer *buffer, const char *text, size_t length);
/* The same string for a page that people look at too: what buffer_add_quoted() would
 * not show as it is, is escaped. */
void buffer_add_json_shown(struct buffer *buffer, const char *text, size_t length);

/*
 * Adds text from outside for a person to read on one line: bytes below 0x20,
 * DEL, C1 controls, the Unicode bidirectional marks and line separators, and
 * bytes that are not UTF-8 come as \xNN, a backslash as \\. More than `most`
 * bytes of input are cut, with "..." added. Nothing in it can forge a line or
 * steer a terminal.
 */
void buffer_add_quoted(struct buffer *buffer, const char *text, size_t length, size_t most);

static inline bool
buffer_failed(const struct buffer *buffer)
{
    return buffer->failed;
}

#endif
