/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON reader as strict as serde_json, which the safetensors library uses.
 *
 * json_check() validates a whole text. A valid text is then read in place, value by value, from
 * front to back. Nothing is allocated, no tree is built, and the time is linear in the text.
 *
 * The reader relies on the check: reading an unchecked text is undefined behavior.
 */
#ifndef FSTFS_FORMAT_JSON_H
#define FSTFS_FORMAT_JSON_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH 127 /* of nested objects and arrays; serde_json's limit */

/* Why a text was refused, and the offset of the fault: of the wrong byte, or of the start of an
 * escape, number or word that is invalid as a whole. */
struct json_fault {
    const char *what;
    size_t at;
};

/* Whether the text is UTF-8. If not, *at is the offset of the first sequence that is invalid. */
bool json_check_utf8(const char *text, size_t length, size_t *at);

/*
 * Checks that a UTF-8 text is one JSON value (RFC 8259) between optional white space. As in
 * serde_json, a lone surrogate in a string, a number too large for a double and nesting deeper
 * than JSON_DEPTH are refused. 0, or -EBADMSG with the fault.
 */
errint_t json_check(const char *text, size_t length, struct json_fault *fault);
/* The same, but accepts lone surrogates \udc80 to \udcff, which stand for the bytes 0x80 to 0xff:
 * Python's notation for file names that are not UTF-8. */
errint_t json_check_names(const char *text, size_t length, struct json_fault *fault);

/* A part of a checked text. A raw string is the part between the quotes of a string, with its
 * escapes. */
struct json_span {
    const char *text;
    size_t length;
};

/* A position in a checked text: at a value, or between values of an object or array. */
struct json_reader {
    const char *at;
    const char *end;
};

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* A reader at the value of a checked text. */
struct json_reader json_read(const char *text, size_t length);
/* The type of the value at the reader's position. */
enum json_type json_type(const struct json_reader *reader);

/*
 * Reads an object or array: json_enter(), then json_next_key() or json_next_element() until it
 * returns false, which leaves the container. The value of each member must be taken before the
 * next call. Keys are raw strings.
 */
void json_enter(struct json_reader *reader);
bool json_next_key(struct json_reader *reader, struct json_span *key);
bool json_next_element(struct json_reader *reader);

/* Takes a value of any type, and returns its text. */
struct json_span json_take(struct json_reader *reader);
/* Takes a string, and returns it raw. */
struct json_span json_take_string(struct json_reader *reader);
/* Takes a number. Returns false, and takes nothing, if the value is not a number, has a sign, a
 * fraction or an exponent, or is above 2^64 - 1. */
bool json_take_u64(struct json_reader *reader, uint64_t *number);

/* Resolves the escapes of a raw string; invalid ones stay as they are. Writes the result to `out`,
 * unless that is NULL, in UTF-8 except for the bytes that json_check_names() accepts, without a
 * terminator. Returns its length, at most raw.length bytes. It may contain NUL. */
size_t json_unescape(struct json_span raw, char *out);

/* Whether the raw string, once its escapes are resolved, equals `text` (at most 32 bytes). */
bool json_raw_is(struct json_span raw, const char *text);

#endif
