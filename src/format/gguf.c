/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf.h. */
#include "format/gguf.h"

#include "base/text.h"
#include "format/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WINDOW_BYTES = 65536,
    NAME_MAX_BYTES = 63, /* GGML_MAX_NAME - 1 */
    DIMENSIONS_MAX = 4, /* GGML_MAX_DIMS */
    TENSOR_LEAST_BYTES = 24, /* shortest description of a tensor */
    ALIGNMENT_DEFAULT = 32,
    VALUE_STRING = 8,
    VALUE_ARRAY = 9,
};

/* Bytes of a value, by type; 0: a string or an array. */
static const unsigned char value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

enum { VALUE_TYPES = sizeof(value_bytes) };

/* The types of ggml, by number, with the elements and the bytes of a block. */
static const struct ggml_type {
    const char *name; /* NULL: unused or removed */
    uint16_t elements, bytes;
    unsigned char dtype;
} ggml_types[] = {
    [0] = {"F32", 1, 4, DTYPE_F32},
    [1] = {"F16", 1, 2, DTYPE_F16},
    [2] = {"Q4_0", 32, 18, DTYPE_UNKNOWN},
    [3] = {"Q4_1", 32, 20, DTYPE_UNKNOWN},
    [6] = {"Q5_0", 32, 22, DTYPE_UNKNOWN},
    [7] = {"Q5_1", 32, 24, DTYPE_UNKNOWN},
    [8] = {"Q8_0", 32, 34, DTYPE_UNKNOWN},
    [9] = {"Q8_1", 32, 36, DTYPE_UNKNOWN},
    [10] = {"Q2_K", 256, 84, DTYPE_UNKNOWN},
    [11] = {"Q3_K", 256, 110, DTYPE_UNKNOWN},
    [12] = {"Q4_K", 256, 144, DTYPE_UNKNOWN},
    [13] = {"Q5_K", 256, 176, DTYPE_UNKNOWN},
    [14] = {"Q6_K", 256, 210, DTYPE_UNKNOWN},
    [15] = {"Q8_K", 256, 292, DTYPE_UNKNOWN},
    [16] = {"IQ2_XXS", 256, 66, DTYPE_UNKNOWN},
    [17] = {"IQ2_XS", 256, 74, DTYPE_UNKNOWN},
    [18] = {"IQ3_XXS", 256, 98, DTYPE_UNKNOWN},
    [19] = {"IQ1_S", 256, 50, DTYPE_UNKNOWN},
    [20] = {"IQ4_NL", 32, 18, DTYPE_UNKNOWN},
    [21] = {"IQ3_S", 256, 110, DTYPE_UNKNOWN},
    [22] = {"IQ2_S", 256, 82, DTYPE_UNKNOWN},
    [23] = {"IQ4_XS", 256, 136, DTYPE_UNKNOWN},
    [24] = {"I8", 1, 1, DTYPE_I8},
    [25] = {"I16", 1, 2, DTYPE_I16},
    [26] = {"I32", 1, 4, DTYPE_I32},
    [27] = {"I64", 1, 8, DTYPE_I64},
    [28] = {"F64", 1, 8, DTYPE_F64},
    [29] = {"IQ1_M", 256, 56, DTYPE_UNKNOWN},
    [30] = {"BF16", 1, 2, DTYPE_BF16},
    [34] = {"TQ1_0", 256, 54, DTYPE_UNKNOWN},
    [35] = {"TQ2_0", 256, 66, DTYPE_UNKNOWN},
    [39] = {"MXFP4", 32, 17, DTYPE_UNKNOWN},
    [40] = {"NVFP4", 64, 36, DTYPE_UNKNOWN},
    [41] = {"Q1_0", 128, 18, DTYPE_UNKNOWN},
};

enum { GGML_TYPES = sizeof(ggml_types) / sizeof(ggml_types[0]) };

#define refuse_gguf(reason, rule, ...) reason_set(reason, -EBADMSG, rule, __VA_ARGS__)

/* ---- sequential reads of the header ---- */

/* Buffers a window of the file for small sequential reads. */
struct gguf_reader {
    int fd;
    uint64_t file_size;
    uint64_t at; /* offset of the next byte */
    uint64_t window_start;
    size_t window_length;
    struct reason *reason;
    unsigned char window[WINDOW_BYTES];
};

/* Takes the next `length` bytes, at most WINDOW_BYTES. They are valid until the next call. */
static errint_t
gguf_take(struct gguf_reader *in, size_t length, const unsigned char **bytes)
{
    uint64_t left = in->file_size - in->at;
    errint_t error;

    if (length > left || in->at + length > GGUF_MAX_HEADER)
        return refuse_gguf(in->reason, length > left ? "GgufCutOff" : "GgufTooLarge",
                           length > left ? "the file ends within its header, at byte %" PRIu64
                                         : "the header has more than %" PRIu64 " bytes",
                           length > left ? in->file_size : GGUF_MAX_HEADER);
    if (in->at < in->window_start || in->at + length > in->window_start + in->window_length) {
        in->window_start = in->at;
        in->window_length = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
        error = bytes_read_at(in->fd, in->window, in->window_length, in->at, in->reason);
        if (error) {
            in->window_length = 0;
            return error;
        }
    }
    *bytes = in->window + (in->at - in->window_start);
    in->at += length;
    return 0;
}

static errint_t
skip(struct gguf_reader *in, uint64_t length)
{
    if (length > in->file_size - in->at)
        return refuse_gguf(in->reason, "GgufCutOff",
                           "the file ends within its header, at byte %" PRIu64, in->file_size);
    in->at += length;
    return 0;
}

static errint_t
take_u32(struct gguf_reader *in, uint32_t *value)
{
    const unsigned char *bytes = NULL;
    errint_t error = gguf_take(in, 4, &bytes);

    *value = error ? 0 : bytes_u32(bytes);
    return error;
}

static errint_t
take_u64(struct gguf_reader *in, uint64_t *value)
{
    const unsigned char *bytes = NULL;
    errint_t error = gguf_take(in, 8, &bytes);

    *value = error ? 0 : bytes_u64(bytes);
    return error;
}

/* ---- key-value pairs ---- */

static errint_t
skip_string(struct gguf_reader *in)
{
    uint64_t length;
    errint_t error = take_u64(in, &length);

    return error ? error : skip(in, length);
}

static errint_t
skip_array(struct gguf_reader *in, const char *key)
{
    char shown[QUOTED_SIZE];
    uint32_t type;
    uint64_t count, bytes;
    errint_t error = take_u32(in, &type);

    if (!error)
        error = take_u64(in, &count);
    if (error)
        return error;
    if (type >= VALUE_TYPES || type == VALUE_ARRAY)
        return refuse_gguf(in->reason, "GgufValue", "key \"%s\": an array of type %" PRIu32,
                           quoted(shown, key, strlen(key)), type);
    if (type != VALUE_STRING) {
        if (__builtin_mul_overflow(count, (uint64_t)value_bytes[type], &bytes))
            bytes = UINT64_MAX;
        return skip(in, bytes);
    }
    for (uint64_t i = 0; !error && i < count; i++)
        error = skip_string(in);
    return error;
}

/* The keys read so far, which must be unique. */
struct gguf_keys {
    char *text;
    size_t length;
    struct gguf_key {
        uint32_t at, length;
    } * keys;
    uint32_t count;
};

/* Reads the value of a key that this reader uses: a whole number, whose type must be `expected`. */
static errint_t
take_setting(struct gguf_reader *in, const char *key, uint32_t type, uint32_t expected,
             uint64_t *value)
{
    const unsigned char *bytes = NULL;
    errint_t error;

    if (type != expected)
        return refuse_gguf(in->reason, "GgufValue",
                           "key \"%s\": its value has type %" PRIu32 ", expected %" PRIu32, key,
                           type, expected);
    error = gguf_take(in, value_bytes[type], &bytes);
    *value = 0;
    for (unsigned i = 0; !error && i < value_bytes[type]; i++)
        *value |= (uint64_t)bytes[i] << 8 * i;
    return error;
}

enum { TYPE_U16 = 2, TYPE_U32 = 4, TYPE_I32 = 5 };

static errint_t
take_value(struct gguf_reader *in, const char *key, uint32_t type, struct gguf_file *file,
           uint64_t start)
{
    uint64_t value;
    errint_t error;

    if (strcmp(key, "general.alignment") == 0) {
        error = take_setting(in, key, type, TYPE_U32, &value);
        if (!error && (value == 0 || (value & (value - 1))))
            return refuse_gguf(in->reason, "GgufAlignment",
                               "general.alignment is %" PRIu64 ", expected a power of 2", value);
        file->alignment = (uint32_t)value;
    } else if (strcmp(key, "split.no") == 0) {
        error = take_setting(in, key, type, TYPE_U16, &value);
        file->split_number = (uint32_t)value;
        file->split[0] = (struct gguf_range){start, in->at};
    } else if (strcmp(key, "split.count") == 0) {
        error = take_setting(in, key, type, TYPE_U16, &value);
        file->split_count = (uint32_t)value;
        file->split[1] = (struct gguf_range){start, in->at};
    } else if (strcmp(key, "split.tensors.count") == 0) {
        error = take_setting(in, key, type, TYPE_I32, &value);
        file->split_tensors = value;
        file->split[2] = (struct gguf_range){start, in->at};
    } else if (type == VALUE_STRING) {
        error = skip_string(in);
    } else if (type == VALUE_ARRAY) {
        error = skip_array(in, key);
    } else {
        error = skip(in, value_bytes[type]);
    }
    return error;
}

/* Takes a key and appends it to `keys->text`, NUL-terminated. */
static errint_t
take_key(struct gguf_reader *in, struct gguf_keys *keys)
{
    const unsigned char *bytes = NULL;
    uint64_t length;
    errint_t error = take_u64(in, &length);

    if (error)
        return error;
    if (length == 0 || length > WINDOW_BYTES / 2 || keys->length + length + 1 > GGUF_MAX_KEYS)
        return refuse_gguf(in->reason, "GgufKey",
                           "a key has %" PRIu64 " bytes, or all keys over %" PRIu64, length,
                           GGUF_MAX_KEYS);
    error = gguf_take(in, (size_t)length, &bytes);
    if (error)
        return error;
    if (memchr(bytes, '\0', (size_t)length))
        return refuse_gguf(in->reason, "GgufKey", "a key has a NUL byte");
    keys->keys[keys->count++] = (struct gguf_key){(uint32_t)keys->length, (uint32_t)length};
    memcpy(keys->text + keys->length, bytes, (size_t)length);
    keys->length += (size_t)length;
    keys->text[keys->length++] = '\0';
    return 0;
}

static errint_t
take_pair(struct gguf_reader *in, struct gguf_keys *keys, struct gguf_file *file)
{
    const uint64_t start = in->at;
    char shown[QUOTED_SIZE];
    const char *key;
    uint32_t type;
    errint_t error = take_key(in, keys);

    if (!error)
        error = take_u32(in, &type);
    if (error)
        return error;
    key = keys->text + keys->keys[keys->count - 1].at;
    if (type >= VALUE_TYPES)
        return refuse_gguf(in->reason, "GgufValue", "key \"%s\": its value has type %" PRIu32,
                           quoted(shown, key, strlen(key)), type);
    return take_value(in, key, type, file, start);
}

static int
compare_keys(const void *a, const void *b, void *text)
{
    const struct gguf_key *x = a, *y = b;
    const char *in = text;

    return text_compare(in + x->at, x->length, in + y->at, y->length);
}

static errint_t
check_keys(struct gguf_keys *keys, struct reason *reason)
{
    char shown[QUOTED_SIZE];

    qsort_r(keys->keys, keys->count, sizeof(*keys->keys), compare_keys, keys->text);
    for (uint32_t i = 1; i < keys->count; i++)
        if (compare_keys(&keys->keys[i - 1], &keys->keys[i], keys->text) == 0)
            return refuse_gguf(reason, "GgufKey", "key \"%s\" appears twice",
                               quoted(shown, keys->text + keys->keys[i].at, keys->keys[i].length));
    return 0;
}

static errint_t
take_pairs(struct gguf_reader *in, struct gguf_file *file)
{
    struct gguf_keys keys = {.text = malloc(GGUF_MAX_KEYS)};
    errint_t error = 0;

    if (file->pair_count > GGUF_MAX_PAIRS) {
        free(keys.text);
        return refuse_gguf(in->reason, "GgufPairs",
                           "%" PRIu64 " key-value pairs are announced, at most %u are read",
                           file->pair_count, GGUF_MAX_PAIRS);
    }
    keys.keys = calloc(file->pair_count + 1, sizeof(*keys.keys));
    if (!keys.text || !keys.keys)
        error = reason_set(in->reason, -ENOMEM, "OutOfMemory", "no memory for the header");
    file->pairs.start = in->at;
    for (uint64_t i = 0; !error && i < file->pair_count; i++)
        error = take_pair(in, &keys, file);
    file->pairs.end = in->at;
    if (!error)
        error = check_keys(&keys, in->reason);
    if (!error && file->split_count && file->split_number >= file->split_count)
        error =
            refuse_gguf(in->reason, "GgufSplit", "split.no is %" PRIu32 ", split.count %" PRIu32,
                        file->split_number, file->split_count);
    free(keys.keys);
    free(keys.text);
    return error;
}

/* ---- tensors ---- */

struct gguf_tensor {
    char name[NAME_MAX_BYTES];
    size_t name_length;
    uint32_t rank, type;
    uint64_t dims[DIMENSIONS_MAX]; /* as in the file: the first one varies fastest */
    uint64_t offset; /* from the start of the data */
    uint64_t bytes;
};

static errint_t
refuse_gguf_tensor(const struct gguf_reader *in, const char *rule, const struct gguf_tensor *tensor,
                   const char *what, uint64_t found)
{
    char shown[QUOTED_SIZE];

    return refuse_gguf(in->reason, rule, "tensor \"%s\": %s %" PRIu64,
                       quoted(shown, tensor->name, tensor->name_length), what, found);
}

/* Computes the bytes from shape and type. Numbers of GGUF are signed: at most 2^63 - 1. */
static errint_t
measure_tensor(const struct gguf_reader *in, struct gguf_tensor *tensor)
{
    uint64_t elements = 1;
    bool overflow = false;

    if (tensor->type >= GGML_TYPES || !ggml_types[tensor->type].name)
        return refuse_gguf_tensor(in, "GgufType", tensor, "there is no type", tensor->type);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        overflow |= tensor->dims[i] > INT64_MAX;
        overflow |= __builtin_mul_overflow(elements, tensor->dims[i], &elements);
    }
    if (overflow || elements > INT64_MAX)
        return refuse_gguf_tensor(in, "GgufShape", tensor, "its elements overflow; rank",
                                  tensor->rank);
    if (tensor->dims[0] % ggml_types[tensor->type].elements)
        return refuse_gguf_tensor(
            in, "GgufShape", tensor,
            "the row is no multiple of the block of its type:", tensor->dims[0]);
    if (__builtin_mul_overflow(elements / ggml_types[tensor->type].elements,
                               (uint64_t)ggml_types[tensor->type].bytes, &tensor->bytes) ||
        tensor->bytes > INT64_MAX)
        return refuse_gguf_tensor(in, "GgufShape", tensor, "its bytes overflow; elements",
                                  elements);
    return 0;
}

static errint_t
take_tensor_name(struct gguf_reader *in, struct gguf_tensor *tensor)
{
    const unsigned char *bytes = NULL;
    uint64_t length;
    errint_t error = take_u64(in, &length);

    if (error)
        return error;
    if (length > NAME_MAX_BYTES)
        return refuse_gguf(in->reason, "GgufName",
                           "the name of a tensor has %" PRIu64 " bytes, at most %d are allowed",
                           length, NAME_MAX_BYTES);
    error = gguf_take(in, (size_t)length, &bytes);
    if (!error)
        memcpy(tensor->name, bytes, (size_t)length);
    tensor->name_length = (size_t)length;
    return error;
}

static errint_t
take_gguf_tensor(struct gguf_reader *in, struct gguf_tensor *tensor)
{
    errint_t error;

    *tensor = (struct gguf_tensor){.dims = {1, 1, 1, 1}};
    error = take_tensor_name(in, tensor);
    if (!error)
        error = take_u32(in, &tensor->rank);
    if (!error && tensor->rank > DIMENSIONS_MAX)
        error = refuse_gguf_tensor(in, "GgufShape", tensor, "at most 4 dimensions are allowed, not",
                                   tensor->rank);
    for (uint32_t i = 0; !error && i < tensor->rank; i++)
        error = take_u64(in, &tensor->dims[i]);
    if (!error)
        error = take_u32(in, &tensor->type);
    if (!error)
        error = take_u64(in, &tensor->offset);
    return error ? error : measure_tensor(in, tensor);
}

/* Takes all descriptions, counts them, and adds them to the builder unless that is NULL. */
static errint_t
take_gguf_tensors(struct gguf_reader *in, const struct gguf_file *file, uint64_t count,
                  struct st_counts *counts, struct st_builder *builder)
{
    uint64_t expected = 0;
    errint_t error = 0;

    for (uint64_t i = 0; !error && i < count; i++) {
        struct gguf_tensor tensor;
        uint64_t dims[DIMENSIONS_MAX];

        error = take_gguf_tensor(in, &tensor);
        if (error)
            break;
        const struct ggml_type *type = &ggml_types[tensor.type];
        if (tensor.offset != expected)
            return refuse_gguf_tensor(in, "GgufOffset", &tensor,
                                      "its data does not begin where that of the one before ends, "
                                      "padded, but at",
                                      tensor.offset);
        if (tensor.bytes > INT64_MAX - expected - file->alignment)
            return refuse_gguf_tensor(in, "GgufOffset", &tensor, "its data ends after 2^63; bytes",
                                      tensor.bytes);
        expected += (tensor.bytes + file->alignment - 1) & ~(uint64_t)(file->alignment - 1);
        counts->tensors++;
        counts->dims += tensor.rank;
        counts->text += tensor.name_length;
        if (type->dtype == DTYPE_UNKNOWN)
            counts->text += strlen(type->name);
        if (!builder)
            continue;
        for (uint32_t d = 0; d < tensor.rank; d++)
            dims[d] = tensor.dims[tensor.rank - 1 - d];
        const struct st_entry entry = {
            tensor.name,
            tensor.name_length,
            (enum dtype)type->dtype,
            type->dtype == DTYPE_UNKNOWN ? type->name : NULL,
            dims,
            tensor.rank,
            tensor.offset,
            tensor.offset + tensor.bytes,
        };
        if (!st_builder_add(builder, &entry))
            error =
                reason_set(in->reason, -ESTALE, "IoError", "the file changed while it was read");
    }
    return error;
}

/* Sets the range of the data: from the padded end of the header to the end of the file. */
static errint_t
set_gguf_data(const struct gguf_reader *in, struct st_builder *builder, uint32_t alignment)
{
    const struct st_table *table = builder->table;
    uint64_t start = (in->at + alignment - 1) & ~(uint64_t)(alignment - 1);
    const struct st_tensor *last;

    builder->table->data_start = start;
    builder->table->data_length = in->file_size > start ? in->file_size - start : 0;
    if (table->count == 0)
        return 0;
    last = &table->tensors[table->count - 1];
    if (last->end > table->data_length)
        return refuse_gguf(in->reason, "GgufData",
                           "the data of its tensors has %" PRIu64 " bytes, the file %" PRIu64
                           " after the header",
                           last->end, table->data_length);
    return 0;
}

static errint_t
read_gguf(struct gguf_reader *in, errint_t (*admit)(void *, uint64_t, struct reason *), void *arg,
          struct gguf_file *file)
{
    const unsigned char *head = NULL;
    struct st_counts counts = {0}, again = {0};
    struct st_builder builder;
    uint64_t count, infos;
    errint_t error = gguf_take(in, GGUF_HEAD_BYTES, &head);

    if (error)
        return error;
    if (!gguf_has_magic(head))
        return refuse_gguf(in->reason, "GgufMagic", "the file does not begin with \"GGUF\"");
    file->version = bytes_u32(head + 4);
    if (file->version != 2 && file->version != 3)
        return refuse_gguf(in->reason, "GgufVersion",
                           "its version is %" PRIu32 ", expected 2 or 3%s", file->version,
                           (file->version & 0xffff) ? "" : "; the file is big-endian");
    count = bytes_u64(head + 8);
    file->pair_count = bytes_u64(head + 16);
    if (count > (in->file_size - GGUF_HEAD_BYTES) / TENSOR_LEAST_BYTES)
        return refuse_gguf(in->reason, "GgufTensors",
                           "%" PRIu64 " tensors are announced, in a file of %" PRIu64 " bytes",
                           count, in->file_size);
    error = take_pairs(in, file);
    infos = in->at;
    if (!error)
        error = take_gguf_tensors(in, file, count, &counts, NULL);
    if (!error)
        error = admit(arg, counts.tensors * GGUF_TENSOR_BYTES, in->reason);
    if (error)
        return error;
    if (!st_builder_init(&builder, &counts))
        return reason_set(in->reason, -ENOMEM, "OutOfMemory", "no memory for the header");
    in->at = infos;
    error = take_gguf_tensors(in, file, count, &again, &builder);
    if (!error)
        error = set_gguf_data(in, &builder, file->alignment);
    if (!error)
        error = st_builder_check_names(&builder, in->reason);
    if (error)
        st_table_free(builder.table);
    else
        file->table = builder.table;
    return error;
}

bool
gguf_has_magic(const void *first)
{
    return memcmp(first, "GGUF", 4) == 0;
}

errint_t
gguf_read(int fd, uint64_t file_size,
          errint_t (*admit)(void *arg, uint64_t bytes, struct reason *reason), void *arg,
          struct gguf_file *file, struct reason *reason)
{
    struct gguf_reader *in;
    errint_t error = admit(arg, GGUF_LEAST, reason);

    *file = (struct gguf_file){.alignment = ALIGNMENT_DEFAULT};
    if (error)
        return error;
    in = calloc(1, sizeof(*in));
    if (!in)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the header");
    in->fd = fd;
    in->file_size = file_size;
    in->reason = reason;
    error = read_gguf(in, admit, arg, file);
    explicit_bzero(in->window, sizeof(in->window)); /* may contain weights */
    free(in);
    return error;
}

void
gguf_file_free(struct gguf_file *file)
{
    st_table_free(file->table);
    *file = (struct gguf_file){0};
}

uint64_t
gguf_row_bytes(const struct st_table *table, const struct st_tensor *tensor)
{
    const uint64_t *dims = table->dims + tensor->shape;
    uint64_t rows = 1;

    for (uint32_t i = 0; i + 1 < tensor->rank; i++)
        rows *= dims[i];
    return rows ? (tensor->end - tensor->begin) / rows : 0;
}
