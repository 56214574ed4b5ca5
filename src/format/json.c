/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See json.h. cJSON is not used for headers: it does not apply serde_json's rules, stores numbers
 * as doubles (offsets must be exact up to 2^64 - 1), ends strings at \u0000 ("U8\u0000" would be a
 * known dtype), and needs about forty bytes per byte of `[0,0,0,...]`: gigabytes for a header of
 * 100 MB. index.c uses it only for the metadata of an index, which is small and has no fixed form.
 */
#include "format/json.h"

#include "base/text.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
json_check_utf8(const char *text, size_t length, size_t *at)
{
    const uint64_t high_bits = 0x8080808080808080u;
    uint64_t eight;
    uint32_t code;
    size_t i = 0;

    while (i < length) {
        if (length - i >= sizeof(eight)) {
            memcpy(&eight, text + i, sizeof(eight));
            if (!(eight & high_bits)) {
                i += sizeof(eight);
                continue;
            }
        }
        unsigned used = utf8_decode(text + i, length - i, &code);
        if (!used) {
            *at = i;
            return false;
        }
        i += used;
    }
    return true;
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* --- The check --- */

struct json_scan {
    const char *at;
    const char *end;
    const char *what; /* the fault at `at`; NULL: none so far */
    bool has_bytes; /* see json_check_names() */
};

static bool
json_refuse(struct json_scan *s, const char *what)
{
    s->what = what;
    return false;
}

static void
skip_space(struct json_scan *s)
{
    while (s->at < s->end && is_space(*s->at))
        s->at++;
}

/* The next byte; NUL at the end, which JSON allows nowhere. */
static char
peek(const struct json_scan *s)
{
    return s->at < s->end ? *s->at : '\0';
}

static bool
check_word(struct json_scan *s, const char *word)
{
    size_t length = strlen(word);

    if ((size_t)(s->end - s->at) < length || memcmp(s->at, word, length) != 0)
        return json_refuse(s, "expected a JSON value");
    s->at += length;
    return true;
}

/* Whether a number (valid by the grammar, without its sign) is in the range of a double, which
 * serde_json requires even of numbers that it ignores. */
static bool
number_fits(const char *at, const char *end)
{
    uint64_t digits = 0; /* the leading digits, as many as fit */
    int64_t scale = 0, exponent = 0;
    bool fraction = false, full = false, negative = false;

    for (; at < end && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        full = full || digits > (UINT64_MAX - 9) / 10;
        if (!full)
            digits = digits * 10 + (uint64_t)(*at - '0');
        scale += (full ? 1 : 0) - (fraction ? 1 : 0);
    }
    if (at < end && (*++at == '-' || *at == '+'))
        negative = *at++ == '-';
    for (; at < end; at++) {
        if (exponent < 1000000000)
            exponent = exponent * 10 + (*at - '0');
    }
    scale += negative ? -exponent : exponent;
    if (digits == 0 || scale <= 288) /* 2^64 is under 10^20 */
        return true;
    if (scale > 308)
        return false;

    /* Without a decimal point strtod does not depend on the locale. */
    char text[48];
    snprintf(text, sizeof(text), "%llue%lld", (unsigned long long)digits, (long long)scale);
    return isfinite(strtod(text, NULL));
}

static bool
check_digits(struct json_scan *s)
{
    if (!is_digit(peek(s)))
        return json_refuse(s, "expected a digit");
    while (is_digit(peek(s)))
        s->at++;
    return true;
}

static bool
check_number(struct json_scan *s)
{
    if (peek(s) == '-')
        s->at++;
    const char *start = s->at;
    bool exponent = false;

    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s)))
            return json_refuse(s, "a number has a leading zero");
    } else if (!check_digits(s)) {
        return false;
    }
    if (peek(s) == '.') {
        s->at++;
        if (!check_digits(s))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        exponent = true;
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (!check_digits(s))
            return false;
    }
    if ((exponent || s->at - start > 300) && !number_fits(start, s->at)) {
        s->at = start;
        return json_refuse(s, "a number is too large");
    }
    return true;
}

/* The value of the four hexadecimal digits at `at`; -1: there are fewer than four. */
static int32_t
hex4(const char *at, const char *end)
{
    int32_t value = 0;

    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int32_t digit;
        if (is_digit(c))
            digit = c - '0';
        else if (c >= 'a' && c <= 'f')
            digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - 'A' + 10;
        else
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Whether the escape of the second half of a surrogate pair is at `at`. */
static bool
is_low_surrogate(const char *at, const char *end)
{
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return false;
    int32_t code = hex4(at + 2, end);
    return code >= 0xDC00 && code <= 0xDFFF;
}

/* Whether a lone surrogate stands for a byte. */
static bool
is_byte(int32_t code)
{
    return code >= 0xDC80 && code <= 0xDCFF;
}

/* Starts at the backslash. */
static bool
check_escape(struct json_scan *s)
{
    char c = s->end - s->at < 2 ? '\0' : s->at[1];

    if (c != 'u') {
        if (c == '\0' || !strchr("\"\\/bfnrt", c))
            return json_refuse(s, "unknown escape");
        s->at += 2;
        return true;
    }

    int32_t code = hex4(s->at + 2, s->end);
    if (code < 0)
        return json_refuse(s, "expected four hexadecimal digits after \\u");
    if (code >= 0xD800 && code <= 0xDFFF && !(s->has_bytes && is_byte(code))) {
        if (code >= 0xDC00 || !is_low_surrogate(s->at + 6, s->end))
            return json_refuse(s, "lone surrogate");
        s->at += 6;
    }
    s->at += 6;
    return true;
}

/* Starts at the opening quote. */
static bool
check_string(struct json_scan *s)
{
    const char *at = s->at + 1, *end = s->end;

    for (;;) {
        while (at < end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
            at++;
        s->at = at;
        if (at == end)
            return json_refuse(s, "unterminated string");
        if ((unsigned char)*at < 0x20)
            return json_refuse(s, "control character in a string");
        if (*at == '"') {
            s->at++;
            return true;
        }
        if (!check_escape(s))
            return false;
        at = s->at;
    }
}

/* A key and its colon. */
static bool
check_key(struct json_scan *s)
{
    skip_space(s);
    if (peek(s) != '"')
        return json_refuse(s, "expected a key");
    if (!check_string(s))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return json_refuse(s, "expected ':' after a key");
    s->at++;
    return true;
}

static bool
check_scalar(struct json_scan *s)
{
    switch (peek(s)) {
    case '"':
        return check_string(s);
    case 't':
        return check_word(s, "true");
    case 'f':
        return check_word(s, "false");
    case 'n':
        return check_word(s, "null");
    default:
        if (peek(s) == '-' || is_digit(peek(s)))
            return check_number(s);
        return json_refuse(s,
                           s->at < s->end ? "expected a JSON value" : "the text ends unexpectedly");
    }
}

/* Checks the whole text. `open[i]` is the bracket that closes level i. */
static bool
check_text(struct json_scan *s)
{
    char open[JSON_DEPTH];
    unsigned depth = 0;

    for (;;) {
        /* A value. */
        skip_space(s);
        char c = peek(s);
        if (c == '{' || c == '[') {
            if (depth == JSON_DEPTH)
                return json_refuse(s, "values are nested too deeply");
            open[depth++] = c == '{' ? '}' : ']';
            s->at++;
            skip_space(s);
            if (peek(s) != open[depth - 1]) {
                if (c == '{' && !check_key(s))
                    return false;
                continue;
            }
        } else if (!check_scalar(s)) {
            return false;
        }

        /* After the value: closing brackets, then a comma or the end of the text. */
        skip_space(s);
        while (depth && peek(s) == open[depth - 1]) {
            depth--;
            s->at++;
            skip_space(s);
        }
        if (!depth)
            return s->at == s->end || json_refuse(s, "expected nothing after the JSON value");
        if (peek(s) != ',')
            return json_refuse(s, s->at < s->end ? "expected ',' or the closing bracket"
                                                 : "the text ends unexpectedly");
        s->at++;
        if (open[depth - 1] == '}' && !check_key(s))
            return false;
    }
}

static errint_t
check_all(struct json_scan s, struct json_fault *fault)
{
    const char *text = s.at;

    if (check_text(&s))
        return 0;
    fault->what = s.what;
    fault->at = (size_t)(s.at - text);
    return -EBADMSG;
}

errint_t
json_check(const char *text, size_t length, struct json_fault *fault)
{
    return check_all((struct json_scan){.at = text, .end = text + length}, fault);
}

errint_t
json_check_names(const char *text, size_t length, struct json_fault *fault)
{
    return check_all((struct json_scan){.at = text, .end = text + length, .has_bytes = true},
                     fault);
}

/* --- Reading a checked text --- */

static void
pass_space(struct json_reader *reader)
{
    while (reader->at < reader->end && is_space(*reader->at))
        reader->at++;
}

struct json_reader
json_read(const char *text, size_t length)
{
    struct json_reader reader = {text, text + length};

    pass_space(&reader);
    return reader;
}

enum json_type
json_type(const struct json_reader *reader)
{
    switch (*reader->at) {
    case '{':
        return JSON_OBJECT;
    case '[':
        return JSON_ARRAY;
    case '"':
        return JSON_STRING;
    case 'n':
        return JSON_NULL;
    case 't':
    case 'f':
        return JSON_BOOL;
    default:
        return JSON_NUMBER;
    }
}

void
json_enter(struct json_reader *reader)
{
    reader->at++;
}

bool
json_next_element(struct json_reader *reader)
{
    pass_space(reader);
    if (*reader->at == ',') {
        reader->at++;
        pass_space(reader);
        return true;
    }
    if (*reader->at != ']' && *reader->at != '}')
        return true; /* the first one */
    reader->at++;
    return false;
}

bool
json_next_key(struct json_reader *reader, struct json_span *key)
{
    if (!json_next_element(reader))
        return false;
    *key = json_take_string(reader);
    pass_space(reader);
    reader->at++; /* the colon */
    pass_space(reader);
    return true;
}

/* Whether the quote at `at` is escaped, in a string that starts at `start`. */
static bool
is_escaped(const char *start, const char *at)
{
    const char *before = at;

    while (before > start && before[-1] == '\\')
        before--;
    return (at - before) % 2 != 0;
}

struct json_span
json_take_string(struct json_reader *reader)
{
    const char *start = reader->at + 1, *at = start;

    for (;; at++) {
        at = memchr(at, '"', (size_t)(reader->end - at));
        if (!is_escaped(start, at))
            break;
    }
    reader->at = at + 1;
    return (struct json_span){start, (size_t)(at - start)};
}

/* Takes a number or a word: everything up to the next delimiter. */
static void
take_scalar(struct json_reader *reader)
{
    while (reader->at < reader->end && *reader->at != ',' && *reader->at != '}' &&
           *reader->at != ']' && !is_space(*reader->at))
        reader->at++;
}

struct json_span
json_take(struct json_reader *reader)
{
    const char *start = reader->at;
    unsigned depth = 0;

    do {
        switch (*reader->at) {
        case '"':
            json_take_string(reader);
            break;
        case '{':
        case '[':
            depth++;
            reader->at++;
            break;
        case '}':
        case ']':
            depth--;
            reader->at++;
            break;
        case ',':
        case ':':
            reader->at++;
            break;
        default:
            take_scalar(reader);
        }
        if (depth)
            pass_space(reader);
    } while (depth);
    return (struct json_span){start, (size_t)(reader->at - start)};
}

bool
json_take_u64(struct json_reader *reader, uint64_t *number)
{
    const char *at = reader->at;
    uint64_t n = 0;

    for (; at < reader->end && is_digit(*at); at++) {
        if (__builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*at - '0'), &n))
            return false;
    }
    if (at == reader->at || (at < reader->end && (*at == '.' || *at == 'e' || *at == 'E')))
        return false;
    reader->at = at;
    *number = n;
    return true;
}

/* Decodes the escape at *at (its backslash) into `out`, and advances *at past it. An invalid escape
 * stays as it is. */
static unsigned
unescape_one(const char **at, const char *end, char out[4])
{
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    const char *s = *at;

    if (!check_escape(&(struct json_scan){.at = s, .end = end, .has_bytes = true})) {
        *at = s + 1;
        out[0] = '\\';
        return 1;
    }
    if (s[1] != 'u') {
        *at = s + 2;
        out[0] = bytes[strchr(letters, s[1]) - letters];
        return 1;
    }
    uint32_t code = (uint32_t)hex4(s + 2, end);
    *at = s + 6;
    if (is_byte((int32_t)code)) {
        out[0] = (char)(code & 0xFF);
        return 1;
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + ((uint32_t)hex4(s + 8, end) - 0xDC00);
        *at = s + 12;
    }
    return utf8_encode(code, out);
}

size_t
json_unescape(struct json_span raw, char *out)
{
    const char *at = raw.text, *end = at + raw.length;
    size_t length = 0;
    char one[4];

    for (;;) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape ? escape : end) - at);
        if (out)
            memcpy(out + length, at, plain);
        length += plain;
        if (!escape)
            return length;
        at = escape;
        unsigned used = unescape_one(&at, end, one);
        if (out)
            memcpy(out + length, one, used);
        length += used;
    }
}

bool
json_raw_is(struct json_span raw, const char *text)
{
    char plain[6 * 32]; /* the longest escape of a byte is \u00XX */

    if (!memchr(raw.text, '\\', raw.length))
        return text_is(raw.text, raw.length, text);
    if (raw.length > sizeof(plain))
        return false;
    return text_is(plain, json_unescape(raw, plain), text);
}
