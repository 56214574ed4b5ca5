/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_pairs.h. */
#include "format/gguf_pairs.h"

#include "base/text.h"
#include "format/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT_DEFAULT = 32 };

enum {
    VALUE_U8,
    VALUE_I8,
    VALUE_U16,
    VALUE_I16,
    VALUE_U32,
    VALUE_I32,
    VALUE_F32,
    VALUE_BOOL,
    VALUE_STRING,
    VALUE_ARRAY,
    VALUE_U64,
    VALUE_I64,
    VALUE_F64,
    VALUE_TYPES
};

/* Bytes: 0 for a string or an array. */
static const struct value_type {
    const char *name;
    unsigned bytes;
} value_types[VALUE_TYPES] = {
    {"uint8", 1},  {"int8", 1},    {"uint16", 2},  {"int16", 2},  {"uint32", 4},
    {"int32", 4},  {"float32", 4}, {"bool", 1},    {"string", 0}, {"array", 0},
    {"uint64", 8}, {"int64", 8},   {"float64", 8},
};

/* State of reading the pairs. */
struct pair_reader {
    struct gguf_reader *in;
    struct gguf_info *info;
    struct gguf_pairs *out;
    const char *key; /* of the current pair; NUL-terminated; valid until text is added */
    uint64_t keys; /* bytes of all keys so far */
    uint64_t values; /* bytes of all values that are kept so far */
};

/* ---- values as text ---- */

/* Adds the shortest decimal number, with a fraction or an exponent, that parses to the same value.
 * JSON has no infinity and no NaN, so these become strings. */
static void
add_float(struct buffer *out, double value, bool is_single)
{
    char text[40];

    if (!isfinite(value)) {
        buffer_add_text(out, isnan(value) ? "\"NaN\""
                             : value < 0  ? "\"-Infinity\""
                                          : "\"Infinity\"");
        return;
    }
    for (int digits = is_single ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (is_single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    for (char *at = text; *at; at++)
        if (!strchr("0123456789+-e", *at))
            *at = '.'; /* the decimal separator of the program's locale */
    buffer_add_text(out, text);
    if (!strpbrk(text, ".e"))
        buffer_add_text(out, ".0");
}

/* Adds a number or a bool as JSON. */
static void
add_scalar(struct buffer *out, uint32_t type, const unsigned char *bytes)
{
    uint64_t value = 0;
    double wide;
    float single;

    memcpy(&value, bytes, value_types[type].bytes); /* little-endian, as the file */
    switch (type) {
    case VALUE_BOOL:
        buffer_add_text(out, value ? "true" : "false");
        break;
    case VALUE_F32:
        memcpy(&single, bytes, sizeof(single));
        add_float(out, (double)single, true);
        break;
    case VALUE_F64:
        memcpy(&wide, bytes, sizeof(wide));
        add_float(out, wide, false);
        break;
    case VALUE_I8:
        buffer_addf(out, "%d", (int8_t)value);
        break;
    case VALUE_I16:
        buffer_addf(out, "%d", (int16_t)value);
        break;
    case VALUE_I32:
        buffer_addf(out, "%" PRId32, (int32_t)value);
        break;
    case VALUE_I64:
        buffer_addf(out, "%" PRId64, (int64_t)value);
        break;
    default:
        buffer_add_u64(out, value);
    }
}

/* Whether a text of `length` bytes may be kept. */
static bool
has_room_for_value(const struct pair_reader *reader, uint64_t length)
{
    return length <= GGUF_VALUE_MOST && reader->values + length <= GGUF_VALUES_MOST;
}

/* Takes a string and adds it, as JSON if `is_json`. *is_kept is false, and nothing is taken, if
 * there is no room. */
static errint_t
take_string_text(struct pair_reader *reader, bool is_json, bool *is_kept)
{
    struct buffer *text = &reader->out->text;
    const uint64_t start = reader->in->at;
    const unsigned char *bytes = NULL;
    uint64_t length;
    errint_t error = gguf_take_u64(reader->in, &length);

    *is_kept = !error && has_room_for_value(reader, length);
    if (error || !*is_kept) {
        reader->in->at = start;
        return error;
    }
    error = gguf_take(reader->in, (size_t)length, &bytes);
    if (error)
        return error;
    if (is_json)
        buffer_add_json_string(text, (const char *)bytes, (size_t)length);
    else
        buffer_add(text, bytes, (size_t)length);
    return 0;
}

static errint_t
skip_string(struct gguf_reader *in, uint64_t *length)
{
    errint_t error = gguf_take_u64(in, length);

    return error ? error : gguf_skip(in, *length);
}

static errint_t
skip_elements(struct gguf_reader *in, uint32_t type, uint64_t count)
{
    uint64_t bytes;
    errint_t error = 0;

    if (type != VALUE_STRING) {
        if (__builtin_mul_overflow(count, (uint64_t)value_types[type].bytes, &bytes))
            bytes = UINT64_MAX;
        return gguf_skip(in, bytes);
    }
    for (uint64_t i = 0; !error && i < count; i++)
        error = skip_string(in, &bytes);
    return error;
}

/* Adds the elements as a JSON array. *is_kept is false if there is no room; the position of the
 * reader is then undefined. */
static errint_t
take_elements(struct pair_reader *reader, uint32_t type, uint64_t count, bool *is_kept)
{
    struct buffer *text = &reader->out->text;
    const size_t start = text->length;
    const unsigned char *bytes = NULL;
    errint_t error = 0;

    *is_kept = count <= GGUF_ARRAY_MOST;
    if (*is_kept)
        buffer_add_char(text, '[');
    for (uint64_t i = 0; !error && *is_kept && i < count; i++) {
        if (i)
            buffer_add_text(text, ", ");
        if (type == VALUE_STRING) {
            error = take_string_text(reader, true, is_kept);
        } else {
            error = gguf_take(reader->in, value_types[type].bytes, &bytes);
            if (!error)
                add_scalar(text, type, bytes);
        }
        *is_kept = *is_kept && has_room_for_value(reader, text->length - start);
    }
    buffer_add_char(text, ']');
    return error;
}

static errint_t
take_array(struct pair_reader *reader)
{
    struct buffer *text = &reader->out->text;
    const size_t length = text->length;
    char shown[QUOTED_SIZE];
    uint32_t type;
    uint64_t count, start;
    bool is_kept = false;
    errint_t error = gguf_take_u32(reader->in, &type);

    if (!error)
        error = gguf_take_u64(reader->in, &count);
    if (error)
        return error;
    if (type >= VALUE_TYPES || type == VALUE_ARRAY)
        return gguf_refuse(reader->in->reason, "GgufValue", "key \"%s\": an array of type %" PRIu32,
                           quoted(shown, reader->key, strlen(reader->key)), type);
    start = reader->in->at;
    error = take_elements(reader, type, count, &is_kept);
    if (error || is_kept)
        return error;
    text->length = length;
    reader->in->at = start;
    buffer_addf(text, "{\"type\": \"array\", \"of\": \"%s\", \"count\": %" PRIu64 "}",
                value_types[type].name, count);
    return skip_elements(reader->in, type, count);
}

static errint_t
take_text(struct pair_reader *reader, bool *is_json)
{
    uint64_t length;
    bool is_kept;
    errint_t error = take_string_text(reader, false, &is_kept);

    *is_json = !is_kept;
    if (error || is_kept)
        return error;
    error = skip_string(reader->in, &length);
    buffer_addf(&reader->out->text, "{\"type\": \"string\", \"bytes\": %" PRIu64 "}", length);
    return error;
}

static errint_t
take_gguf_scalar(struct pair_reader *reader, uint32_t type)
{
    const unsigned char *bytes = NULL;
    errint_t error = gguf_take(reader->in, value_types[type].bytes, &bytes);

    if (!error)
        add_scalar(&reader->out->text, type, bytes);
    return error;
}

/* ---- keys that fstfs uses ---- */

/* Reads the value of a key that fstfs uses: a whole number, whose type must be `expected`. */
static errint_t
take_setting(struct pair_reader *reader, uint32_t type, uint32_t expected, uint64_t *value)
{
    const unsigned char *bytes = NULL;
    errint_t error;

    if (type != expected)
        return gguf_refuse(reader->in->reason, "GgufValue",
                           "key \"%s\": its value has type %" PRIu32 ", expected %" PRIu32,
                           reader->key, type, expected);
    error = gguf_take(reader->in, value_types[type].bytes, &bytes);
    *value = 0;
    for (unsigned i = 0; !error && i < value_types[type].bytes; i++)
        *value |= (uint64_t)bytes[i] << 8 * i;
    return error;
}

static errint_t
take_alignment(struct pair_reader *reader, uint32_t type)
{
    uint64_t value;
    errint_t error = take_setting(reader, type, VALUE_U32, &value);

    if (error)
        return error;
    if (value == 0 || (value & (value - 1)))
        return gguf_refuse(reader->in->reason, "GgufAlignment",
                           "general.alignment is %" PRIu64 ", expected a power of 2", value);
    reader->info->alignment = (uint32_t)value;
    buffer_add_u64(&reader->out->text, value);
    return 0;
}

/* Finds a split key by its name, and the type that its value must have. GGUF_SPLIT_KEYS: none. */
static enum gguf_split_key
split_key_of(const char *key, uint32_t *type)
{
    static const struct {
        const char *name;
        uint32_t type;
    } keys[GGUF_SPLIT_KEYS] = {
        {"split.no", VALUE_U16}, {"split.count", VALUE_U16}, {"split.tensors.count", VALUE_I32}};
    enum gguf_split_key i = 0;

    while (i < GGUF_SPLIT_KEYS && strcmp(key, keys[i].name) != 0)
        i++;
    *type = i < GGUF_SPLIT_KEYS ? keys[i].type : 0;
    return i;
}

/* ---- pairs ---- */

/* Takes a key and appends it to the text, NUL-terminated. */
static errint_t
take_key(struct pair_reader *reader, struct gguf_pair *pair)
{
    struct gguf_reader *in = reader->in;
    struct buffer *text = &reader->out->text;
    const unsigned char *bytes = NULL;
    uint64_t length;
    errint_t error = gguf_take_u64(in, &length);

    if (error)
        return error;
    if (length == 0 || length > GGUF_WINDOW / 2 || reader->keys + length + 1 > GGUF_MAX_KEYS)
        return gguf_refuse(in->reason, "GgufKey",
                           "a key has %" PRIu64 " bytes, expected 1 to %d, and at most %" PRIu64
                           " in all keys",
                           length, GGUF_WINDOW / 2, GGUF_MAX_KEYS);
    error = gguf_take(in, (size_t)length, &bytes);
    if (error)
        return error;
    if (memchr(bytes, '\0', (size_t)length))
        return gguf_refuse(in->reason, "GgufKey", "a key has a NUL byte");
    pair->key = (uint32_t)text->length;
    pair->key_length = (uint32_t)length;
    reader->keys += length + 1;
    buffer_add(text, bytes, (size_t)length);
    buffer_add_char(text, '\0');
    return buffer_failed(text) ? reason_no_memory(in->reason) : 0;
}

/* Reads a value. *is_pair is set to false for a split key, which is not stored as a pair. */
static errint_t
take_value(struct pair_reader *reader, uint32_t type, uint64_t start, bool *is_pair, bool *is_json)
{
    struct gguf_info *info = reader->info;
    uint32_t expected;
    enum gguf_split_key split = split_key_of(reader->key, &expected);
    errint_t error;

    *is_pair = split == GGUF_SPLIT_KEYS;
    *is_json = true;
    if (!*is_pair) {
        if (info->split[split].end)
            return gguf_refuse(reader->in->reason, "GgufKey", "key \"%s\" appears twice",
                               reader->key);
        error = take_setting(reader, type, expected, &info->split_value[split]);
        info->split[split] = (struct gguf_range){start, reader->in->at};
        return error;
    }
    if (strcmp(reader->key, "general.alignment") == 0)
        return take_alignment(reader, type);
    if (type == VALUE_STRING)
        return take_text(reader, is_json);
    return type == VALUE_ARRAY ? take_array(reader) : take_gguf_scalar(reader, type);
}

static errint_t
take_pair(struct pair_reader *reader)
{
    struct gguf_pairs *out = reader->out;
    struct gguf_pair *pair = &out->pairs[out->count];
    const uint64_t start = reader->in->at;
    char shown[QUOTED_SIZE];
    uint32_t type;
    bool is_pair;
    errint_t error = take_key(reader, pair);

    if (!error)
        error = gguf_take_u32(reader->in, &type);
    if (error)
        return error;
    reader->key = out->text.data + pair->key;
    if (type >= VALUE_TYPES)
        return gguf_refuse(reader->in->reason, "GgufValue",
                           "key \"%s\": its value has type %" PRIu32,
                           quoted(shown, reader->key, pair->key_length), type);
    pair->value = (uint32_t)out->text.length;
    error = take_value(reader, type, start, &is_pair, &pair->is_json);
    if (!error && buffer_failed(&out->text))
        error = reason_no_memory(reader->in->reason);
    pair->value_length = (uint32_t)out->text.length - pair->value;
    reader->values += pair->value_length;
    if (is_pair)
        out->count++;
    return error;
}

static int
compare_gguf_pairs(const void *a, const void *b, void *text)
{
    const struct gguf_pair *x = a, *y = b;
    const char *in = text;

    return text_compare(in + x->key, x->key_length, in + y->key, y->key_length);
}

static errint_t
check_keys(struct gguf_pairs *pairs, struct reason *reason)
{
    char shown[QUOTED_SIZE];

    if (pairs->count)
        qsort_r(pairs->pairs, pairs->count, sizeof(*pairs->pairs), compare_gguf_pairs,
                pairs->text.data);
    for (uint32_t i = 1; i < pairs->count; i++)
        if (compare_gguf_pairs(&pairs->pairs[i - 1], &pairs->pairs[i], pairs->text.data) == 0)
            return gguf_refuse(
                reason, "GgufKey", "key \"%s\" appears twice",
                quoted(shown, pairs->text.data + pairs->pairs[i].key, pairs->pairs[i].key_length));
    return 0;
}

errint_t
gguf_pairs_read(struct gguf_reader *in, uint64_t count, struct gguf_info *info,
                struct gguf_pairs *pairs)
{
    struct pair_reader reader = {.in = in, .info = info, .out = pairs};
    const uint64_t *split = info->split_value;
    errint_t error = 0;

    *pairs = (struct gguf_pairs){.text = BUFFER_INIT};
    info->alignment = ALIGNMENT_DEFAULT;
    info->pair_count = count;
    info->pairs.start = in->at;
    pairs->pairs = calloc(count + 1, sizeof(*pairs->pairs));
    if (!pairs->pairs)
        return reason_no_memory(in->reason);
    for (uint64_t i = 0; !error && i < count; i++)
        error = take_pair(&reader);
    info->pairs.end = in->at;
    if (!error)
        error = check_keys(pairs, in->reason);
    if (!error && split[GGUF_SPLIT_COUNT] && split[GGUF_SPLIT_NO] >= split[GGUF_SPLIT_COUNT])
        error = gguf_refuse(in->reason, "GgufSplit",
                            "split.no is %" PRIu64 ", expected less than split.count, %" PRIu64,
                            split[GGUF_SPLIT_NO], split[GGUF_SPLIT_COUNT]);
    return error;
}

void
gguf_pairs_free(struct gguf_pairs *pairs)
{
    buffer_free(&pairs->text);
    free(pairs->pairs);
}

void
gguf_pairs_count(const struct gguf_pairs *pairs, struct st_counts *counts)
{
    counts->metadata += pairs->count;
    for (uint32_t i = 0; i < pairs->count; i++)
        counts->text += pairs->pairs[i].key_length + pairs->pairs[i].value_length;
}

void
gguf_pairs_add(const struct gguf_pairs *pairs, struct st_builder *builder)
{
    const char *text = pairs->text.data;

    for (uint32_t i = 0; i < pairs->count; i++) {
        const struct gguf_pair *pair = &pairs->pairs[i];

        st_builder_add_pair(builder, (struct st_text){text + pair->key, pair->key_length},
                            (struct st_text){text + pair->value, pair->value_length},
                            pair->is_json);
    }
}
