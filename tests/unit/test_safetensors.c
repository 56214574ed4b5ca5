/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules, tables, reading and writing. The rules are also compared with the
 * safetensors library itself, over a larger corpus: tests/format.
 */
#include "format/safetensors.h"
#include "random.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parses from memory that ends with the header, so that AddressSanitizer detects reads past its
 * end. */
static errint_t
parse(const char *json, size_t n, uint64_t data, struct st_table **table, struct reason *reason)
{
    char *copy = malloc(n ? n : 1);

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, json, n);
    errint_t error = st_table_parse(copy, n, 8 + n + data, table, reason);
    free(copy);
    return error;
}

static struct st_table *
parse_good(const char *json, size_t n, uint64_t data)
{
    struct st_table *table;
    struct reason reason;

    ck_assert_msg(parse(json, n, data, &table, &reason) == 0, "%s: %s", reason.rule, reason.text);
    return table;
}

#define PARSE(json, data) parse_good(json, sizeof(json) - 1, data)

#define A "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"
#define TENSOR(dtype, shape, begin, end)                                                           \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *json;
    uint64_t data;
    const char *rule; /* NULL: accepted */
    const char *text; /* part of the reason */
} cases[] = {
    {"{}", 0, NULL, NULL},
    {"{\"a\":" A "}", 1, NULL, NULL},
    {" {\"a\":" A "}\n ", 1, NULL, NULL},
    {"{\"a\xff\":" A "}", 1, "InvalidHeader", "byte 0xff at offset 3"},
    {"", 0, "InvalidHeaderDeserialization", "the text ends unexpectedly, at offset 0"},
    {"\xEF\xBB\xBF{}", 0, "InvalidHeaderDeserialization", "not JSON"},
    {"{} x", 0, "InvalidHeaderDeserialization",
     "expected nothing after the JSON value, at offset 3"},
    {"[]", 0, "InvalidHeaderDeserialization", "not a JSON object"},
    {"{\"a\n\":" A "}", 1, "InvalidHeaderDeserialization", "control character"},
    {"{\"a\\ud800\":" A "}", 1, "InvalidHeaderDeserialization", "surrogate"},
    {"{\"a\":3}", 1, "InvalidHeaderDeserialization", "tensor \"a\": the entry is not an object"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "InvalidHeaderDeserialization",
     "tensor \"a\": dtype is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "InvalidHeaderDeserialization",
     "shape is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "InvalidHeaderDeserialization",
     "data_offsets is missing"},
    {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "InvalidHeaderDeserialization", "dtype is not a string"},
    {"{\"a\":{\"dtype\":{\"U8\":null},\"shape\":[1],\"data_offsets\":[0,1]}}", 1, NULL, NULL},
    {"{\"a\":{\"dtype\":{\"U8\":0},\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "InvalidHeaderDeserialization", "dtype is an object"},
    {"{\"a\":{\"dtype\":{\"U8\":null,\"I8\":null},\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "InvalidHeaderDeserialization", "dtype is an object"},
    {"{\"a\":{\"dtype\":{},\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "InvalidHeaderDeserialization", "dtype is an object"},
    {"{\"a\":" TENSOR("U8", "-1", "0", "1") "}", 1, "InvalidHeaderDeserialization",
     "shape contains -1, expected a whole number"},
    {"{\"a\":" TENSOR("U8", "1.0", "0", "1") "}", 1, "InvalidHeaderDeserialization", "1.0"},
    {"{\"a\":" TENSOR("U8", "\"1\"", "0", "1") "}", 1, "InvalidHeaderDeserialization", "\"1\""},
    {"{\"a\":" TENSOR("U8", "1", "0", "18446744073709551616") "}", 1,
     "InvalidHeaderDeserialization", "18446744073709551616"},
    {"{\"a\":" TENSOR("U8", "1", "0", "1,2") "}", 1, "InvalidHeaderDeserialization", "more than 2"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1,
     "InvalidHeaderDeserialization", "1 numbers, expected 2"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"shape\":[1]}}", 1,
     "InvalidHeaderDeserialization", "shape appears twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":[{}],\"x\":1}}", 1, NULL,
     NULL},
    {"{\"a\":[\"U8\",[1],[0,1]]}", 1, NULL, NULL},
    {"{\"a\":[\"U8\",[1]]}", 1, "InvalidHeaderDeserialization", "array of 2"},
    {"{\"a\":[\"U8\",[1],[0,1],0]}", 1, "InvalidHeaderDeserialization", "array of more than 3"},
    {"{\"__metadata__\":null}", 0, NULL, NULL},
    {"{\"__metadata__\":[]}", 0, "InvalidHeaderDeserialization", "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "InvalidHeaderDeserialization",
     "the value of \"a\" is not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "InvalidHeaderDeserialization",
     "__metadata__ appears twice"},
    {"{\"a\":" A ",\"\\u0061\":" A "}", 1, "DuplicateTensorName", "tensor \"a\""},
    {"{\"b\":" TENSOR("U8", "1", "0", "1") ",\"a\":" A ",\"b\":" A "}", 1, "DuplicateTensorName",
     "tensor \"b\""},
    {"{\"a\":" TENSOR("U8", "1", "1", "2") "}", 2, "InvalidOffset",
     "tensor \"a\": data_offsets [1, 2], expected to begin at 0"},
    {"{\"a\":" A ",\"b\":" TENSOR("U8", "1", "2", "3") "}", 3, "InvalidOffset", "\"b\""},
    {"{\"a\":" TENSOR("U8", "2", "0", "2") ",\"b\":" TENSOR("U8", "2", "1", "3") "}", 3,
     "InvalidOffset", "\"b\""},
    {"{\"a\":" A ",\"b\":" TENSOR("U8", "0", "1", "0") "}", 1, "InvalidOffset",
     "end before they begin"},
    {"{\"a\":" TENSOR("U8", "9223372036854775808,2", "0", "1") "}", 1, "ValidationOverflow",
     "give a size of 2^64 bits or more"},
    {"{\"a\":" TENSOR("U8", "2305843009213693952", "0", "1") "}", 1, "ValidationOverflow", "U8"},
    {"{\"a\":" TENSOR("U8", "2305843009213693951", "0", "1") "}", 1, "TensorInvalidInfo",
     "make 2305843009213693951"},
    {"{\"a\":" TENSOR("U8", "0,9223372036854775808,4", "0", "0") "}", 0, NULL, NULL},
    {"{\"a\":" TENSOR("U8", "9223372036854775808,4,0", "0", "0") "}", 0, "ValidationOverflow",
     "\"a\""},
    {"{\"a\":" TENSOR("F4", "3", "0", "1") "}", 1, "MisalignedSlice", "F4 give 12 bits"},
    {"{\"a\":" TENSOR("F4", "2", "0", "1") "}", 1, NULL, NULL},
    {"{\"a\":" TENSOR("F6_E2M3", "4", "0", "3") "}", 3, NULL, NULL},
    {"{\"a\":" TENSOR("F32", "1", "0", "3") "}", 3, "TensorInvalidInfo",
     "data_offsets [0, 3] hold 3 bytes, its shape and dtype F32 make 4"},
    {"{\"a\":" TENSOR("F32", "", "0", "4") "}", 4, NULL, NULL},
    {"{\"a\":" TENSOR("Q2", "5,5", "0", "4") "}", 4, NULL, NULL},
    {"{\"a\":" TENSOR("Q2", "5,5", "1", "4") "}", 4, "InvalidOffset", "\"a\""},
    {"{\"a\":" A "}", 2, "MetadataIncompleteBuffer",
     "the tensors end at byte 1 of the data, the file has 2"},
    {"{\"a\":" A "}", 0, "MetadataIncompleteBuffer", "the file has 0"},
    {"{}", 1, "MetadataIncompleteBuffer", "end at byte 0"},
    /* Names cannot forge a line of the report. */
    {"{\"a\\n\":3}", 0, "InvalidHeaderDeserialization", "tensor \"a\\\\n\""},
    {"{\"a\\n\":" A "}", 2, "MetadataIncompleteBuffer", ""},
    {"{\"a\\nb\":" TENSOR("U8", "1", "1", "2") "}", 2, "InvalidOffset", "tensor \"a\\x0ab\""},
};

START_TEST(rules)
{
    struct st_table *table;
    struct reason reason;
    const char *json = cases[_i].json;
    errint_t error = parse(json, strlen(json), cases[_i].data, &table, &reason);

    if (!cases[_i].rule) {
        ck_assert_msg(error == 0, "%s: %s %s", json, reason.rule, reason.text);
        st_table_free(table);
        return;
    }
    ck_assert_int_eq(error, -EBADMSG);
    ck_assert_msg(strcmp(reason.rule, cases[_i].rule) == 0, "%s: %s", json, reason.rule);
    ck_assert_msg(strstr(reason.text, cases[_i].text) != NULL, "%s: %s", json, reason.text);
    /* The reason is optional. */
    ck_assert_int_eq(parse(json, strlen(json), cases[_i].data, &table, NULL), -EBADMSG);
}
END_TEST

START_TEST(header_lengths)
{
    static const struct {
        uint64_t n, file_size;
        const char *rule;
    } lengths[] = {
        {0, 0, "HeaderTooSmall"},
        {0, 7, "HeaderTooSmall"},
        {0, 8, NULL},
        {1, 8, "InvalidHeaderLength"},
        {1, 9, NULL},
        {ST_MAX_HEADER, 8 + (uint64_t)ST_MAX_HEADER, NULL},
        {ST_MAX_HEADER, 7 + (uint64_t)ST_MAX_HEADER, "InvalidHeaderLength"},
        {ST_MAX_HEADER, UINT64_MAX, NULL},
        {ST_MAX_HEADER + 1, UINT64_MAX, "HeaderTooLarge"},
        {ST_MAX_HEADER + 1, 8, "HeaderTooLarge"},
        {UINT64_MAX, UINT64_MAX, "HeaderTooLarge"},
        {UINT64_MAX - 7, 8, "HeaderTooLarge"},
    };

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t have = lengths[i].file_size < 8 ? (size_t)lengths[i].file_size : 8;
        char *bytes = malloc(have + !have);
        struct reason reason;
        uint64_t n = 99;
        for (size_t k = 0; k < have; k++)
            bytes[k] = (char)(lengths[i].n >> 8 * k);
        errint_t error = st_header_length(bytes, lengths[i].file_size, &n, &reason);
        free(bytes);
        ck_assert_int_eq(error, lengths[i].rule ? -EBADMSG : 0);
        if (error)
            ck_assert_str_eq(reason.rule, lengths[i].rule);
        else
            ck_assert_uint_eq(n, lengths[i].n);
    }
}
END_TEST

static void
assert_text(const struct st_table *table, uint32_t at, uint32_t length, const char *expected,
            size_t expected_length)
{
    ck_assert_uint_eq(length, expected_length);
    ck_assert_mem_eq(table->text + at, expected, expected_length);
}

START_TEST(tables)
{
    struct st_table *t =
        PARSE("{\"z\":" TENSOR("U8", "0", "4", "4") ",\"b\\u0000\":" TENSOR(
                  "F32", "", "0", "4") ",\"__metadata__\":{\"k\":\"1\",\"a\\n\":"
                                       "\"\",\"k\":\"\\u00002\"},\"a\":" TENSOR(
                                           "N\\u0065w", "2, 3", "4",
                                           "18") ",\"y\":" TENSOR("U8", "0", "4", "4") "}",
              14 + 4);
    size_t length;

    ck_assert_uint_eq(t->data_length, 18);
    ck_assert_uint_eq(t->count, 4);

    /* By begin, then end, then name. */
    assert_text(t, t->tensors[0].name, t->tensors[0].name_length, "b\0", 2);
    assert_text(t, t->tensors[1].name, t->tensors[1].name_length, "y", 1);
    assert_text(t, t->tensors[2].name, t->tensors[2].name_length, "z", 1);
    assert_text(t, t->tensors[3].name, t->tensors[3].name_length, "a", 1);

    ck_assert_int_eq(t->tensors[0].dtype, DTYPE_F32);
    ck_assert_uint_eq(t->tensors[0].rank, 0);
    ck_assert_uint_eq(t->tensors[0].end, 4);
    const char *dtype = st_dtype_text(t, &t->tensors[0], &length);
    ck_assert(length == 3 && memcmp(dtype, "F32", 3) == 0);

    ck_assert_int_eq(t->tensors[3].dtype, DTYPE_UNKNOWN);
    ck_assert_uint_eq(t->tensors[3].rank, 2);
    ck_assert_uint_eq(t->dims[t->tensors[3].shape], 2);
    ck_assert_uint_eq(t->dims[t->tensors[3].shape + 1], 3);
    ck_assert_uint_eq(t->tensors[3].begin, 4);
    ck_assert_uint_eq(t->tensors[3].end, 18);
    dtype = st_dtype_text(t, &t->tensors[3], &length);
    ck_assert(length == 3 && memcmp(dtype, "New", 3) == 0);

    /* Sorted by key; the last of two values, as in the reference. */
    ck_assert(t->has_metadata);
    ck_assert_uint_eq(t->metadata_count, 2);
    assert_text(t, t->metadata[0].key, t->metadata[0].key_length, "a\n", 2);
    assert_text(t, t->metadata[0].value, t->metadata[0].value_length, "", 0);
    assert_text(t, t->metadata[1].key, t->metadata[1].key_length, "k", 1);
    assert_text(t, t->metadata[1].value, t->metadata[1].value_length, "\0002", 2);
    st_table_free(t);
}
END_TEST

START_TEST(last_of_empty_keys)
{
    struct st_table *t = PARSE("{\"__metadata__\":{\"\":\"\",\"\":\"x\",\"\":\"\",\"\":\"y\"}}", 0);

    ck_assert_uint_eq(t->metadata_count, 1);
    assert_text(t, t->metadata[0].value, t->metadata[0].value_length, "y", 1);
    st_table_free(t);
    t = PARSE("{\"__metadata__\":null}", 0);
    ck_assert(!t->has_metadata);
    st_table_free(t);
    t = PARSE("{\"__metadata__\":{}}", 0);
    ck_assert(t->has_metadata);
    ck_assert_uint_eq(t->metadata_count, 0);
    st_table_free(t);
}
END_TEST

/* A table has no unused bytes: its arrays and texts fill it. */
START_TEST(tables_have_no_unused_bytes)
{
    struct st_table *t =
        PARSE("{\"__metadata__\":{\"format\":\"pt\"},\"a.b\":" TENSOR(
                  "U8", "1,2,3", "0", "6") ",\"c\":" TENSOR("X", "7", "6", "7") "}",
              7);

    ck_assert_uint_eq(t->bytes, sizeof(*t) + 2 * sizeof(struct st_tensor) +
                                    sizeof(struct st_metadata) + 4 * sizeof(uint64_t) +
                                    strlen("formatpta.bcX"));
    ck_assert_uint_le(sizeof(struct st_tensor), 40);
    st_table_free(t);
}
END_TEST

/* --- Reading files --- */

static int
file_with(const void *bytes, size_t length)
{
    char path[] = "/tmp/fstfs-test-XXXXXX";
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    unlink(path);
    ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
    return fd;
}

/* Headers that are shorter than, as long as, and longer than the first read. */
START_TEST(reads)
{
    static const uint32_t lengths[] = {60,    65536 - 8 - 1, 65536 - 8, 65536 - 8 + 1,
                                       65536, 2 * 65536,     1000000};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct buffer out = BUFFER_INIT;
        struct st_table *table;
        struct reason reason;
        buffer_add_u64le(&out, lengths[i]);
        buffer_add_text(&out, "{\"a\":" A "}");
        buffer_add_repeat(&out, ' ', 8 + lengths[i] - out.length);
        buffer_add_char(&out, 'x');
        int fd = file_with(out.data, out.length);
        ck_assert_int_eq(st_table_read(fd, out.length, NULL, NULL, &table, &reason), 0);
        ck_assert_uint_eq(table->data_start, 8 + lengths[i]);
        ck_assert_uint_eq(table->count, 1);
        st_table_free(table);

        /* The file was truncated after its size was determined. */
        ck_assert_int_eq(ftruncate(fd, (off_t)lengths[i] / 2), 0);
        ck_assert_int_eq(st_table_read(fd, out.length, NULL, NULL, &table, &reason), -ESTALE);
        ck_assert_str_eq(reason.rule, "IoError");
        close(fd);
        buffer_free(&out);
    }
}
END_TEST

START_TEST(reads_small_files)
{
    struct st_table *table;
    struct reason reason;

    for (size_t size = 0; size < 10; size++) {
        int fd = file_with("\x02\0\0\0\0\0\0\0{}", size);
        ck_assert_int_eq(st_table_read(fd, size, NULL, NULL, &table, &reason), -EBADMSG);
        ck_assert_str_eq(reason.rule, size < 8 ? "HeaderTooSmall" : "InvalidHeaderLength");
        close(fd);
    }
    int fd = file_with("\x02\0\0\0\0\0\0\0{}", 10);
    ck_assert_int_eq(st_table_read(fd, 10, NULL, NULL, &table, &reason), 0);
    ck_assert_uint_eq(table->count, 0);
    st_table_free(table);
    close(fd);
}
END_TEST

START_TEST(read_errors)
{
    struct st_table *table;
    struct reason reason;

    ck_assert_int_eq(st_table_read(-1, 100, NULL, NULL, &table, &reason), -EBADF);
    ck_assert_str_eq(reason.rule, "IoError");
}
END_TEST

/* --- Writing, and random headers --- */

static size_t
random_name(char *out, size_t most)
{
    static const char *const pieces[] = {"a", "b", ".", "/", "\"", "\\", "\n", "\x01", "\x7f", "é"};
    size_t length = 0, pieces_left = random_below(12);

    while (pieces_left-- && length + 2 <= most) {
        const char *piece = pieces[random_below(sizeof(pieces) / sizeof(pieces[0]))];
        if (random_below(20) == 0)
            piece = ""; /* a NUL */
        do
            out[length++] = *piece;
        while (*piece && *++piece);
    }
    return length;
}

#define MOST 12

/* Writes a header of tensors whose names are their index and random bytes. */
static void
write_random(struct buffer *out, uint64_t *data)
{
    uint32_t count = random_below(MOST + 1), align = random_below(3) ? 8 : 4096;
    uint64_t at = 0;

    st_header_begin(out);
    if (random_below(2))
        st_header_metadata(out, "format", 6, "p\"t", 3);
    if (random_below(2))
        st_header_metadata(out, "b\0", 2, "", 0);
    for (uint32_t i = 0; i < count; i++) {
        char name[64];
        uint64_t dims[4] = {random_below(4), random_below(4), random_below(4), random_below(4)};
        uint32_t rank = random_below(4);
        uint64_t size = 2;
        size_t length = random_name(name + 1, sizeof(name) - 1) + 1;
        name[0] = (char)('A' + i);
        for (uint32_t k = 0; k < rank; k++)
            size *= dims[k];
        st_header_tensor(out, name, length, "BF16", 4, dims, rank, at, at + size);
        at += size;
    }
    ck_assert_int_eq(st_header_finish(out, align), 0);
    ck_assert_uint_eq(out->length % align, 0);
    *data = at;
}

START_TEST(round_trips)
{
    random_state = 42 + (uint64_t)_i;
    for (unsigned turn = 0; turn < 500; turn++) {
        struct buffer out = BUFFER_INIT, again = BUFFER_INIT;
        struct reason reason;
        uint64_t data, n;
        write_random(&out, &data);
        ck_assert_int_eq(st_header_length(out.data, out.length + data, &n, &reason), 0);
        ck_assert_uint_eq(8 + n, out.length);
        struct st_table *table = parse_good(out.data + 8, n, data);

        st_header_begin(&again);
        for (uint32_t i = table->metadata_count; i-- > 0;) /* "format" was first */
            st_header_metadata(
                &again, table->text + table->metadata[i].key, table->metadata[i].key_length,
                table->text + table->metadata[i].value, table->metadata[i].value_length);
        for (uint32_t i = 0; i < table->count; i++) {
            const struct st_tensor *tensor = &table->tensors[i];
            size_t length;
            const char *dtype = st_dtype_text(table, tensor, &length);
            st_header_tensor(&again, table->text + tensor->name, tensor->name_length, dtype, length,
                             table->dims + tensor->shape, tensor->rank, tensor->begin, tensor->end);
        }
        ck_assert_int_eq(st_header_finish(&again, 8), 0);
        size_t least = out.length < again.length ? out.length : again.length;
        /* Empty tensors with one offset may be in another order: then only sizes agree. */
        bool ordered = true;
        for (uint32_t i = 1; i < table->count; i++)
            ordered &=
                table->text[table->tensors[i - 1].name] < table->text[table->tensors[i].name];
        if (ordered)
            ck_assert_mem_eq(out.data + 8, again.data + 8, least - 8);
        st_table_free(table);
        buffer_free(&out);
        buffer_free(&again);
    }
}
END_TEST

START_TEST(written_text)
{
    struct buffer out = BUFFER_INIT;
    const uint64_t dims[] = {2, 3};

    st_header_begin(&out);
    ck_assert_int_eq(st_header_finish(&out, 1), 0);
    ck_assert_mem_eq(out.data, "\x02\0\0\0\0\0\0\0{}", 10);
    buffer_free(&out);

    st_header_begin(&out);
    st_header_metadata(&out, "a", 1, "b", 1);
    st_header_metadata(&out, "c", 1, "\n", 1);
    st_header_tensor(&out, "x\"", 2, "F32", 3, dims, 2, 0, 24);
    st_header_tensor(&out, "", 0, "U8", 2, dims, 0, 24, 25);
    ck_assert_int_eq(st_header_finish(&out, 64), 0);
    const char expected[] = "{\"__metadata__\":{\"a\":\"b\",\"c\":\"\\n\"},"
                            "\"x\\\"\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                            "\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]}} ";
    ck_assert_mem_eq(out.data + 8, expected, sizeof(expected) - 1);
    ck_assert_uint_eq(out.length, 192);
    ck_assert_int_eq(out.data[0], (char)(192 - 8));
    buffer_free(&out);
}
END_TEST

/* A header of exactly the maximum length, and of one more byte. */
START_TEST(header_length_limit)
{
    struct buffer out = BUFFER_INIT;
    char *name = malloc(ST_MAX_HEADER);

    memset(name, 'a', ST_MAX_HEADER);
    st_header_begin(&out);
    st_header_tensor(&out, name, 0, "U8", 2, NULL, 0, 0, 1);
    ck_assert_int_eq(st_header_finish(&out, 1), 0);
    size_t most = 8 + (size_t)ST_MAX_HEADER - out.length;
    buffer_free(&out);
    for (size_t over = 0; over < 2; over++) {
        st_header_begin(&out);
        st_header_tensor(&out, name, most + over, "U8", 2, NULL, 0, 0, 1);
        ck_assert_int_eq(st_header_finish(&out, 1), over ? -EFBIG : 0);
        buffer_free(&out);
    }
    free(name);

    out.failed = true;
    st_header_begin(&out);
    st_header_metadata(&out, "a", 1, "b", 1);
    st_header_tensor(&out, "a", 1, "U8", 2, NULL, 0, 0, 1);
    ck_assert_int_eq(st_header_finish(&out, 8), -ENOMEM);
}
END_TEST

/* Truncated and changed headers: any result, but no access out of bounds. */
START_TEST(mutations)
{
    unsigned good = 0, refused = 0;

    random_state = 7 + (uint64_t)_i;
    for (unsigned turn = 0; turn < 4000; turn++) {
        struct buffer out = BUFFER_INIT;
        struct st_table *table;
        struct reason reason;
        uint64_t data;
        write_random(&out, &data);
        size_t n = out.length - 8;
        while (n && out.data[8 + n - 1] == ' ')
            n--;
        for (uint32_t changes = 1 + random_below(3); changes--;)
            out.data[8 + random_below((uint32_t)n)] = "{}[]\",:\\019 u\x80"[random_below(14)];
        size_t length = random_below(4) ? n : random_below((uint32_t)n + 1);
        if (parse(out.data + 8, length, data, &table, &reason)) {
            ck_assert_uint_gt(strlen(reason.text), 0);
            refused++;
        } else {
            st_table_free(table);
            good++;
        }
        buffer_free(&out);
    }
    ck_assert_uint_gt(good, 0);
    ck_assert_uint_gt(refused, good);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("safetensors");
    TCase *c = tcase_create("safetensors");

    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, rules, 0, sizeof(cases) / sizeof(cases[0]));
    tcase_add_test(c, header_lengths);
    tcase_add_test(c, tables);
    tcase_add_test(c, last_of_empty_keys);
    tcase_add_test(c, tables_have_no_unused_bytes);
    tcase_add_test(c, reads);
    tcase_add_test(c, reads_small_files);
    tcase_add_test(c, read_errors);
    tcase_add_loop_test(c, round_trips, 0, 4);
    tcase_add_test(c, written_text);
    tcase_add_test(c, header_length_limit);
    tcase_add_loop_test(c, mutations, 0, 4);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
