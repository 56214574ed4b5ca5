/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses and checks headers. See safetensors.h.
 *
 * A header is parsed twice: the first pass checks and counts entries, the second fills a table that
 * was allocated to fit. A header that the first pass refuses needs no memory beyond its text.
 */
#include "format/safetensors.h"

#include "base/array.h"
#include "base/text.h"
#include "format/bytes.h"
#include "format/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static errint_t refuse_tensor(struct reason *reason, const char *rule, struct json_span name,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

static errint_t
refuse_tensor(struct reason *reason, const char *rule, struct json_span name, const char *format,
              ...)
{
    char shown[QUOTED_SIZE], text[160];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return reason_set(reason, -EBADMSG, rule, "tensor \"%s\": %s",
                      quoted(shown, name.text, name.length), text);
}

/* The error for an entry that serde could not deserialize. */
#define refuse_entry(reason, name, ...)                                                            \
    refuse_tensor(reason, "InvalidHeaderDeserialization", name, __VA_ARGS__)

/* --- Rules 1 to 3: the first 8 bytes --- */

errint_t
st_header_length(const void *first, uint64_t file_size, uint64_t *n, struct reason *reason)
{
    uint64_t length;

    if (file_size < 8)
        return reason_set(reason, -EBADMSG, "HeaderTooSmall",
                          "the file has %" PRIu64 " bytes, expected at least 8", file_size);
    length = bytes_u64(first);
    if (length > ST_MAX_HEADER)
        return reason_set(reason, -EBADMSG, "HeaderTooLarge",
                          "the first 8 bytes give a header of %" PRIu64
                          " bytes, expected at most %u",
                          length, ST_MAX_HEADER);
    if (length > file_size - 8)
        return reason_set(reason, -EBADMSG, "InvalidHeaderLength",
                          "the first 8 bytes give a header of %" PRIu64
                          " bytes; the file has %" PRIu64 " after them",
                          length, file_size - 8);
    *n = length;
    return 0;
}

/* --- Rules 4 and 5: text, JSON, entries --- */

/* One entry of the header. */
struct entry {
    struct json_span dtype; /* with escapes */
    struct json_reader shape; /* at an array of whole numbers */
    uint64_t begin;
    uint64_t end;
    size_t rank;
};

/* {"F32":null}: serde's long form of a variant, which the reference implementation accepts. */
static bool
read_variant(struct json_reader *in, struct json_span *name)
{
    struct json_span more;

    json_enter(in);
    if (!json_next_key(in, name) || json_type(in) != JSON_NULL)
        return false;
    json_take(in);
    return !json_next_key(in, &more);
}

static errint_t
read_dtype(struct json_reader *in, struct json_span name, struct entry *entry,
           struct reason *reason)
{
    switch (json_type(in)) {
    case JSON_STRING:
        entry->dtype = json_take_string(in);
        break;
    case JSON_OBJECT:
        if (!read_variant(in, &entry->dtype))
            return refuse_entry(reason, name, "dtype is an object, expected a string");
        break;
    default:
        return refuse_entry(reason, name, "dtype is not a string");
    }
    if (json_unescape(entry->dtype, NULL) > UINT16_MAX)
        return refuse_entry(reason, name, "dtype is a string of over %d bytes", UINT16_MAX);
    return 0;
}

/* Reads an element of the array `field`. The element must be a whole number. */
static errint_t
read_number(struct json_reader *in, struct json_span name, const char *field, uint64_t *number,
            struct reason *reason)
{
    char shown[QUOTED_SIZE];

    if (json_take_u64(in, number))
        return 0;
    struct json_span value = json_take(in);
    return refuse_entry(reason, name, "%s contains %.60s, expected a whole number", field,
                        quoted(shown, value.text, value.length));
}

static errint_t
read_shape(struct json_reader *in, struct json_span name, struct entry *entry,
           struct reason *reason)
{
    uint64_t number;

    if (json_type(in) != JSON_ARRAY)
        return refuse_entry(reason, name, "shape is not an array");
    entry->shape = *in;
    entry->rank = 0;
    json_enter(in);
    while (json_next_element(in)) {
        errint_t error = read_number(in, name, "shape", &number, reason);
        if (error)
            return error;
        entry->rank++;
    }
    return 0;
}

static errint_t
read_offsets(struct json_reader *in, struct json_span name, struct entry *entry,
             struct reason *reason)
{
    uint64_t offsets[2] = {0, 0};
    unsigned count = 0;

    if (json_type(in) != JSON_ARRAY)
        return refuse_entry(reason, name, "data_offsets is not an array");
    json_enter(in);
    while (json_next_element(in)) {
        if (count == 2)
            return refuse_entry(reason, name, "data_offsets has more than 2 numbers");
        errint_t error = read_number(in, name, "data_offsets", &offsets[count++], reason);
        if (error)
            return error;
    }
    if (count < 2)
        return refuse_entry(reason, name, "data_offsets has %u numbers, expected 2", count);
    entry->begin = offsets[0];
    entry->end = offsets[1];
    return 0;
}

static const struct {
    const char *name;
    errint_t (*read)(struct json_reader *in, struct json_span name, struct entry *entry,
                     struct reason *reason);
} fields[] = {
    {"dtype", read_dtype},
    {"shape", read_shape},
    {"data_offsets", read_offsets},
};
#define FIELD_COUNT COUNT_OF(fields)

static unsigned
field_of_key(struct json_span key)
{
    unsigned i = 0;

    while (i < FIELD_COUNT && !json_raw_is(key, fields[i].name))
        i++;
    return i;
}

/* {"dtype":"F32","shape":[2],"data_offsets":[0,8]}; unknown members are ignored. */
static errint_t
read_entry_object(struct json_reader *in, struct json_span name, struct entry *entry,
                  struct reason *reason)
{
    bool seen[FIELD_COUNT] = {false};
    struct json_span key;

    json_enter(in);
    while (json_next_key(in, &key)) {
        unsigned field = field_of_key(key);
        if (field == FIELD_COUNT) {
            json_take(in);
            continue;
        }
        if (seen[field])
            return refuse_entry(reason, name, "%s appears twice", fields[field].name);
        seen[field] = true;
        errint_t error = fields[field].read(in, name, entry, reason);
        if (error)
            return error;
    }
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (!seen[i])
            return refuse_entry(reason, name, "%s is missing", fields[i].name);
    }
    return 0;
}

/* ["F32",[2],[0,8]]: the fields in order, which the reference implementation accepts. */
static errint_t
read_entry_array(struct json_reader *in, struct json_span name, struct entry *entry,
                 struct reason *reason)
{
    unsigned count = 0;

    json_enter(in);
    while (json_next_element(in)) {
        if (count == FIELD_COUNT)
            return refuse_entry(reason, name, "the entry is an array of more than 3 values");
        errint_t error = fields[count++].read(in, name, entry, reason);
        if (error)
            return error;
    }
    if (count < FIELD_COUNT)
        return refuse_entry(reason, name, "the entry is an array of %u values, expected an object",
                            count);
    return 0;
}

static errint_t
read_entry(struct json_reader *in, struct json_span name, struct entry *entry,
           struct reason *reason)
{
    switch (json_type(in)) {
    case JSON_OBJECT:
        return read_entry_object(in, name, entry, reason);
    case JSON_ARRAY:
        return read_entry_array(in, name, entry, reason);
    default:
        return refuse_entry(reason, name, "the entry is not an object");
    }
}

static enum dtype
dtype_of_raw(struct json_span raw)
{
    char plain[6 * 16]; /* the longest name has 11 bytes */

    if (raw.length > sizeof(plain))
        return DTYPE_UNKNOWN;
    return dtype_from_name(plain, json_unescape(raw, plain));
}

static errint_t
count_tensor(struct json_reader *in, struct json_span name, struct st_counts *counts,
             struct reason *reason)
{
    struct entry entry = {0};
    errint_t error = read_entry(in, name, &entry, reason);

    if (error)
        return error;
    counts->tensors++;
    counts->dims += entry.rank;
    counts->text += json_unescape(name, NULL);
    if (dtype_of_raw(entry.dtype) == DTYPE_UNKNOWN)
        counts->text += json_unescape(entry.dtype, NULL);
    return 0;
}

static errint_t
count_metadata(struct json_reader *in, struct st_counts *counts, struct reason *reason)
{
    struct json_span key;

    if (json_type(in) == JSON_NULL) {
        json_take(in);
        return 0;
    }
    if (json_type(in) != JSON_OBJECT)
        return reason_set(reason, -EBADMSG, "InvalidHeaderDeserialization",
                          "__metadata__ is not an object");
    counts->has_metadata = true;
    json_enter(in);
    while (json_next_key(in, &key)) {
        char shown[QUOTED_SIZE];
        if (json_type(in) != JSON_STRING)
            return reason_set(reason, -EBADMSG, "InvalidHeaderDeserialization",
                              "__metadata__: the value of \"%s\" is not a string",
                              quoted(shown, key.text, key.length));
        counts->metadata++;
        counts->text += json_unescape(key, NULL) + json_unescape(json_take_string(in), NULL);
    }
    return 0;
}

/* Checks and counts all entries. */
static errint_t
count_header(struct json_reader in, struct st_counts *counts, struct reason *reason)
{
    struct json_span key;
    bool metadata_seen = false;

    if (json_type(&in) != JSON_OBJECT)
        return reason_set(reason, -EBADMSG, "InvalidHeaderDeserialization",
                          "the header is not a JSON object");
    json_enter(&in);
    while (json_next_key(&in, &key)) {
        bool is_metadata = json_raw_is(key, ST_METADATA_KEY);
        if (is_metadata && metadata_seen)
            return reason_set(reason, -EBADMSG, "InvalidHeaderDeserialization",
                              "__metadata__ appears twice");
        metadata_seen |= is_metadata;
        errint_t error = is_metadata ? count_metadata(&in, counts, reason)
                                     : count_tensor(&in, key, counts, reason);
        if (error)
            return error;
    }
    return 0;
}

/* --- The table --- */

/* Unescapes a string into the text of the table. Returns its length. */
static uint32_t
put_text(struct st_builder *builder, struct json_span raw, uint32_t *where)
{
    uint32_t length = (uint32_t)json_unescape(raw, builder->text + builder->text_length);

    *where = builder->text_length;
    builder->text_length += length;
    return length;
}

static void
fill_tensor(struct st_builder *builder, struct json_reader *in, struct json_span name)
{
    struct st_tensor *tensor = &builder->tensors[builder->table->count++];
    struct entry entry = {0};

    read_entry(in, name, &entry, NULL); /* succeeded in the first pass */
    *tensor = (struct st_tensor){
        .begin = entry.begin,
        .end = entry.end,
        .shape = builder->dim_count,
        .rank = (uint32_t)entry.rank,
        .dtype = (uint8_t)dtype_of_raw(entry.dtype),
    };
    tensor->name_length = put_text(builder, name, &tensor->name);
    if (tensor->dtype == DTYPE_UNKNOWN)
        tensor->dtype_text_length = (uint16_t)put_text(builder, entry.dtype, &tensor->dtype_text);
    json_enter(&entry.shape);
    while (json_next_element(&entry.shape))
        json_take_u64(&entry.shape, &builder->dims[builder->dim_count++]);
}

static void
fill_metadata(struct st_builder *builder, struct json_reader *in)
{
    struct json_span key;

    if (json_type(in) == JSON_NULL) {
        json_take(in);
        return;
    }
    json_enter(in);
    while (json_next_key(in, &key)) {
        struct st_metadata *pair = &builder->metadata[builder->table->metadata_count++];

        pair->key_length = put_text(builder, key, &pair->key);
        pair->value_length = put_text(builder, json_take_string(in), &pair->value) & INT32_MAX;
        pair->is_json = false;
    }
}

static void
fill_table(struct st_builder *builder, struct json_reader in)
{
    struct json_span key;

    json_enter(&in);
    while (json_next_key(&in, &key)) {
        if (json_raw_is(key, ST_METADATA_KEY))
            fill_metadata(builder, &in);
        else
            fill_tensor(builder, &in, key);
    }
}

/* --- Order and duplicates --- */

/* By key; equal keys in the order of the header. */
static int
compare_pairs(const void *a, const void *b, void *text)
{
    const struct st_metadata *x = a, *y = b;
    const char *t = text;
    int order = text_compare(t + x->key, x->key_length, t + y->key, y->key_length);

    if (order)
        return order;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return (x->value_length > y->value_length) - (x->value_length < y->value_length);
}

static struct json_span
name_of(const struct st_builder *builder, const struct st_tensor *tensor)
{
    return (struct json_span){builder->text + tensor->name, tensor->name_length};
}

/* A key that appears twice gets its last value, as in the reference. */
static void
sort_metadata(struct st_builder *builder)
{
    struct st_metadata *pairs = builder->metadata;
    uint32_t kept = 0, count = builder->table->metadata_count;

    qsort_r(pairs, count, sizeof(pairs[0]), compare_pairs, builder->text);
    for (uint32_t i = 0; i < count; i++) {
        if (kept && text_compare(builder->text + pairs[kept - 1].key, pairs[kept - 1].key_length,
                                 builder->text + pairs[i].key, pairs[i].key_length) == 0)
            kept--;
        pairs[kept++] = pairs[i];
    }
    builder->table->metadata_count = kept;
}

/* --- Rules 6 and 7: offsets and sizes --- */

static errint_t
check_size(const struct st_builder *builder, const struct st_tensor *tensor, struct reason *reason)
{
    const uint64_t *dims = builder->dims + tensor->shape;
    const char *dtype = dtype_name(tensor->dtype);
    uint64_t bits = 1;
    bool overflow = false;

    for (uint32_t i = 0; i < tensor->rank && !overflow; i++)
        overflow = __builtin_mul_overflow(bits, dims[i], &bits);
    if (overflow || __builtin_mul_overflow(bits, (uint64_t)dtype_bits(tensor->dtype), &bits))
        return refuse_tensor(reason, "ValidationOverflow", name_of(builder, tensor),
                             "its shape and dtype %s give a size of 2^64 bits or more", dtype);
    if (bits % 8)
        return refuse_tensor(
            reason, "MisalignedSlice", name_of(builder, tensor),
            "its shape and dtype %s give %" PRIu64 " bits, expected a multiple of 8", dtype, bits);
    if (tensor->end - tensor->begin != bits / 8)
        return refuse_tensor(reason, "TensorInvalidInfo", name_of(builder, tensor),
                             "data_offsets [%" PRIu64 ", %" PRIu64 "] hold %" PRIu64
                             " bytes, its shape and dtype %s make %" PRIu64,
                             tensor->begin, tensor->end, tensor->end - tensor->begin, dtype,
                             bits / 8);
    return 0;
}

static errint_t
check_places(const struct st_builder *builder, struct reason *reason)
{
    const struct st_table *table = builder->table;
    uint64_t expected = 0;

    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &builder->tensors[i];
        if (tensor->begin != expected)
            return refuse_tensor(reason, "InvalidOffset", name_of(builder, tensor),
                                 "data_offsets [%" PRIu64 ", %" PRIu64
                                 "], expected to begin at %" PRIu64
                                 ", where the tensor before ends",
                                 tensor->begin, tensor->end, expected);
        if (tensor->end < tensor->begin)
            return refuse_tensor(reason, "InvalidOffset", name_of(builder, tensor),
                                 "data_offsets [%" PRIu64 ", %" PRIu64 "] end before they begin",
                                 tensor->begin, tensor->end);
        expected = tensor->end;
        if (tensor->dtype == DTYPE_UNKNOWN)
            continue;
        errint_t error = check_size(builder, tensor, reason);
        if (error)
            return error;
    }
    if (expected != table->data_length)
        return reason_set(reason, -EBADMSG, "MetadataIncompleteBuffer",
                          "the tensors end at byte %" PRIu64 " of the data, the file has %" PRIu64
                          ": %" PRIu64 " bytes %s",
                          expected, table->data_length,
                          expected > table->data_length ? expected - table->data_length
                                                        : table->data_length - expected,
                          expected > table->data_length ? "are missing" : "too many");
    return 0;
}

errint_t
st_table_parse(const char *json, uint64_t n, uint64_t file_size, struct st_table **table,
               struct reason *reason)
{
    struct st_counts counts = {0};
    struct json_fault fault;
    struct st_builder builder;
    errint_t error;

    if (!json_check_utf8(json, n, &fault.at))
        return reason_set(reason, -EBADMSG, "InvalidHeader",
                          "the header is not UTF-8: byte 0x%02x at offset %zu",
                          (unsigned char)json[fault.at], fault.at);
    if (json_check(json, n, &fault))
        return reason_set(reason, -EBADMSG, "InvalidHeaderDeserialization",
                          "the header is not JSON: %s, at offset %zu", fault.what, fault.at);
    struct json_reader root = json_read(json, n);
    error = count_header(root, &counts, reason);
    if (error)
        return error;

    if (!st_builder_init(&builder, &counts))
        return reason_no_memory(reason);
    builder.table->data_start = 8 + n;
    builder.table->data_length = file_size - 8 - n;
    fill_table(&builder, root);
    sort_metadata(&builder);
    error = st_builder_check_names(&builder, reason);
    if (error)
        goto refused;
    st_builder_sort(&builder);
    error = check_places(&builder, reason);
    if (error)
        goto refused;
    *table = builder.table;
    return 0;

refused:
    st_table_free(builder.table);
    return error;
}
