/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON, as strictly as the safetensors library reads it (serde_json).
 *
 * Two steps. json_check() looks at a whole text once and says whether it is
 * JSON. What it has passed is then walked where it lies: a value is a span of
 * the text, objects and arrays are taken apart member by member. No tree is
 * made, nothing is allocated, and the work is linear in the text; all of it is
 * functions of the arguments.
 *
 * Walking a text that was not checked is not safe.
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

/* A value (without the white space around it), or what is left of an object or
 * an array; a piece of a checked text. */
struct json_span {
    const char *text;
    size_t length;
};

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* The one value of a checked text. */
struct json_span json_root(const char *text, size_t length);
enum json_type json_type(struct json_span value);

/*
 * Takes an object or array apart. `*rest` is json_inside() of it at first; each
 * call moves it past one member and gives that, false when there is none left.
 * Keys are raw, as json_raw() gives them.
 */
struct json_span json_inside(struct json_span container);
bool json_next_member(struct json_span *rest, struct json_span *key, struct json_span *value);
bool json_next_element(struct json_span *rest, struct json_span *value);

/* The number exactly; false where it is no number, or has a sign, a fraction or
 * an exponent, or is over 2^64 - 1. */
bool json_u64(struct json_span value, uint64_t *number);

/* A string's text as it stands, without its quotes and with its escapes. */
struct json_span json_raw(struct json_span string);

/* Bytes of a raw string without its escapes, and those bytes in UTF-8 written
 * to `out`; never more than raw.length. May hold NUL. */
size_t json_unescaped_length(struct json_span raw);
size_t json_unescape(struct json_span raw, char *out);

/* Whether the raw string says `text`, of at most 32 bytes, however escaped. */
bool json_raw_is(struct json_span raw, const char *text);

#endif
