/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON, as strictly as the safetensors library reads it (serde_json).
 *
 * Two steps. json_check() looks at a whole text once and says whether it is
 * JSON. What it has passed is then read where it lies, value by value, in one
 * go from front to back. No tree is made, nothing is allocated, and the work is
 * linear in the text; all of it is functions of the arguments.
 *
 * Reading a text that was not checked is not safe.
 */
#ifndef FSTFS_FORMAT_JSON_H
#define FSTFS_FORMAT_JSON_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH 127 /* objects and arrays inside each other; serde_json's limit */

/* Why and where (byte of the text) a text was refused. */
struct json_fault {
    const char *what;
    size_t at;
};

/* Whether the text is UTF-8; if not, `*at` is the first byte that is not. */
bool json_check_utf8(const char *text, size_t length, size_t *at);

/*
 * Whether the text, which must be UTF-8, is one JSON value by RFC 8259, with
 * nothing but white space around it; and, as in serde_json, no lone surrogate
 * in a string, no number too big for a double, no nesting over JSON_DEPTH.
 * 0, or -EBADMSG with the fault.
 */
errint_t json_check(const char *text, size_t length, struct json_fault *fault);

/* Text inside a checked text. A raw string is what stands between the quotes of
 * a string, with its escapes. */
struct json_span {
    const char *text;
    size_t length;
};

/* A place in a checked text: at a value, or inside a container between values. */
struct json_reader {
    const char *at;
    const char *end;
};

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* At the one value of a checked text. */
struct json_reader json_read(const char *text, size_t length);
/* Of the value the reader is at. */
enum json_type json_type(const struct json_reader *reader);

/*
 * Objects and arrays: json_enter() them, then ask for the next member until
 * there is none, which leaves the container. Each member's value must be taken,
 * or skipped, before the next is asked for. Keys are raw strings.
 */
void json_enter(struct json_reader *reader);
bool json_next_key(struct json_reader *reader, struct json_span *key);
bool json_next_element(struct json_reader *reader);

/* Takes the value, whatever it is, and gives its text. */
struct json_span json_take(struct json_reader *reader);
/* Takes a string; gives it raw. */
struct json_span json_take_string(struct json_reader *reader);
/* Takes a number, exactly. False, and nothing is taken, where the value is no
 * number, or has a sign, a fraction or an exponent, or is over 2^64 - 1. */
bool json_take_u64(struct json_reader *reader, uint64_t *number);

/* Bytes of a raw string without its escapes, and those bytes in UTF-8 written
 * to `out`; never more than raw.length. May hold NUL. */
size_t json_unescaped_length(struct json_span raw);
size_t json_unescape(struct json_span raw, char *out);

/* Whether the raw string says `text`, of at most 32 bytes, however escaped. */
bool json_raw_is(struct json_span raw, const char *text);

#endif
