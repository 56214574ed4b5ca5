/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing byte array, for headers, indexes and status pages.
 *
 * Append functions report no errors. After the first failed allocation they do nothing; check
 * buffer_failed() once, at the end. One thread at a time.
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
    bool counting; /* counts `length` only, without storing bytes */
};

#define BUFFER_INIT                                                                                \
    {                                                                                              \
        NULL, 0, 0, false, false                                                                   \
    }
#define BUFFER_COUNTING                                                                            \
    {                                                                                              \
        NULL, 0, 0, false, true                                                                    \
    }

/* Frees the bytes. The buffer is empty afterwards. */
void buffer_free(struct buffer *buffer);

/* Makes room for `more` bytes after the current length. */
void buffer_reserve(struct buffer *buffer, size_t more);

void buffer_add(struct buffer *buffer, const void *bytes, size_t length);
void buffer_add_text(struct buffer *buffer, const char *text);
void buffer_add_char(struct buffer *buffer, char c);
void buffer_add_repeat(struct buffer *buffer, char c, size_t count);
void buffer_add_u64(struct buffer *buffer, uint64_t value); /* decimal */
void buffer_add_u64le(struct buffer *buffer, uint64_t value); /* 8 bytes, little-endian */
void buffer_addf(struct buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds `length` bytes as a JSON string with quotes. Only '"', '\\' and bytes below 0x20 are
 * escaped. A byte that is not UTF-8, as in some file names, becomes \udcXX, which Python's
 * os.fsencode() turns back into the byte. */
void buffer_add_json_string(struct buffer *buffer, const char *text, size_t length);
/* The same for names in output that people may also read: escapes what buffer_add_quoted() escapes,
 * too. */
void buffer_add_json_name(struct buffer *buffer, const char *text, size_t length);
/* As buffer_add_json_name(), but a byte that is not UTF-8 becomes U+FFFD, since many parsers refuse
 * \udcXX. */
void buffer_add_json_shown(struct buffer *buffer, const char *text, size_t length);
/* Adds the member `name` of a JSON object, and a comma. Its value is {"on":true} if `why_not` is
 * NULL or "", else {"on":false} with the reason. */
void buffer_add_json_switch(struct buffer *buffer, const char *name, const char *why_not);

/*
 * Adds untrusted text for display on one line, so that it cannot forge a line or control a
 * terminal: bytes below 0x20, DEL, C1 controls, Unicode bidirectional marks and line separators,
 * and bytes that are not UTF-8 become \xNN, a backslash \\. Input beyond `most` bytes is replaced
 * by "...".
 */
void buffer_add_quoted(struct buffer *buffer, const char *text, size_t length, size_t most);

static inline bool
buffer_failed(const struct buffer *buffer)
{
    return buffer->failed;
}

#endif
