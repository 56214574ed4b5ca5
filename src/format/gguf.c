/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf.h. */
#include "format/gguf.h"

#include "base/array.h"
#include "base/text.h"
#include "format/bytes.h"
#include "format/gguf_pairs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_MAX_BYTES = 63, /* GGML_MAX_NAME - 1 */
    TENSOR_LEAST_BYTES = 24, /* shortest description of a tensor */
};

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

enum { GGML_TYPES = COUNT_OF(ggml_types) };

/* ---- tensors ---- */

struct gguf_tensor {
    char name[NAME_MAX_BYTES];
    size_t name_length;
    uint32_t rank, type;
    uint64_t dims[GGUF_MAX_DIMS]; /* as in the file: the first one varies fastest */
    uint64_t offset; /* from the start of the data */
    uint64_t bytes;
};

static errint_t
refuse_gguf_tensor(const struct gguf_reader *in, const char *rule, const struct gguf_tensor *tensor,
                   const char *what, uint64_t found)
{
    char shown[QUOTED_SIZE];

    return gguf_refuse(in->reason, rule, "tensor \"%s\": %s %" PRIu64,
                       quoted(shown, tensor->name, tensor->name_length), what, found);
}

/* Computes the bytes from shape and type. Numbers of GGUF are signed: at most 2^63 - 1. */
static errint_t
measure_tensor(const struct gguf_reader *in, struct gguf_tensor *tensor)
{
    uint64_t elements = 1;
    bool overflow = false;

    if (tensor->type >= GGML_TYPES || !ggml_types[tensor->type].name)
        return refuse_gguf_tensor(in, "GgufType", tensor, "unknown type", tensor->type);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        overflow |= tensor->dims[i] > INT64_MAX;
        overflow |= __builtin_mul_overflow(elements, tensor->dims[i], &elements);
    }
    if (overflow || elements > INT64_MAX)
        return refuse_gguf_tensor(in, "GgufShape", tensor,
                                  "a dimension or the number of elements exceeds 2^63 - 1; rank",
                                  tensor->rank);
    if (tensor->dims[0] % ggml_types[tensor->type].elements)
        return refuse_gguf_tensor(
            in, "GgufShape", tensor,
            "its row is not a multiple of its type's block; elements of a row:", tensor->dims[0]);
    if (__builtin_mul_overflow(elements / ggml_types[tensor->type].elements,
                               (uint64_t)ggml_types[tensor->type].bytes, &tensor->bytes) ||
        tensor->bytes > INT64_MAX)
        return refuse_gguf_tensor(in, "GgufShape", tensor,
                                  "its size in bytes exceeds 2^63 - 1; elements", elements);
    return 0;
}

static errint_t
take_tensor_name(struct gguf_reader *in, struct gguf_tensor *tensor)
{
    const unsigned char *bytes = NULL;
    uint64_t length;
    errint_t error = gguf_take_u64(in, &length);

    if (error)
        return error;
    if (length > NAME_MAX_BYTES)
        return gguf_refuse(in->reason, "GgufName",
                           "the name of a tensor has %" PRIu64 " bytes, at most %d are allowed",
                           length, NAME_MAX_BYTES);
    error = gguf_take(in, (size_t)length, &bytes);
    if (error)
        return error;
    if (memchr(bytes, '\0', (size_t)length)) /* llama.cpp ends the name there */
        return gguf_refuse(in->reason, "GgufName", "the name of a tensor has a NUL byte");
    memcpy(tensor->name, bytes, (size_t)length);
    tensor->name_length = (size_t)length;
    return 0;
}

static errint_t
take_gguf_tensor(struct gguf_reader *in, struct gguf_tensor *tensor)
{
    errint_t error;

    *tensor = (struct gguf_tensor){.dims = {1, 1, 1, 1}};
    error = take_tensor_name(in, tensor);
    if (!error)
        error = gguf_take_u32(in, &tensor->rank);
    if (!error && tensor->rank > GGUF_MAX_DIMS)
        error = refuse_gguf_tensor(in, "GgufShape", tensor,
                                   "at most 4 dimensions are allowed, found", tensor->rank);
    for (uint32_t i = 0; !error && i < tensor->rank; i++)
        error = gguf_take_u64(in, &tensor->dims[i]);
    if (!error)
        error = gguf_take_u32(in, &tensor->type);
    if (!error)
        error = gguf_take_u64(in, &tensor->offset);
    return error ? error : measure_tensor(in, tensor);
}

/* Reads all tensor descriptions, counts them, and adds them to the builder unless that is NULL. */
static errint_t
take_gguf_tensors(struct gguf_reader *in, uint32_t alignment, uint64_t count,
                  struct st_counts *counts, struct st_builder *builder)
{
    const uint64_t most = INT64_MAX - (uint64_t)alignment; /* leaves room for the padding */
    uint64_t expected = 0;
    errint_t error = 0;

    for (uint64_t i = 0; !error && i < count; i++) {
        struct gguf_tensor tensor;
        uint64_t dims[GGUF_MAX_DIMS];

        error = take_gguf_tensor(in, &tensor);
        if (error)
            break;
        const struct ggml_type *type = &ggml_types[tensor.type];
        if (tensor.offset != expected)
            return refuse_gguf_tensor(in, "GgufOffset", &tensor,
                                      "its data is expected at the padded end of the previous "
                                      "tensor's data, found at offset",
                                      tensor.offset);
        if (expected > most || tensor.bytes > most - expected)
            return refuse_gguf_tensor(in, "GgufOffset", &tensor, "its data ends after 2^63; bytes",
                                      tensor.bytes);
        expected += gguf_padded(tensor.bytes, alignment);
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
            .name = tensor.name,
            .name_length = tensor.name_length,
            .dtype = (enum dtype)type->dtype,
            .dtype_text = type->dtype == DTYPE_UNKNOWN ? type->name : NULL,
            .dims = dims,
            .rank = tensor.rank,
            .begin = tensor.offset,
            .end = tensor.offset + tensor.bytes,
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
    uint64_t start = gguf_padded(in->at, alignment);
    const struct st_tensor *last;

    builder->table->data_start = start;
    builder->table->data_length = in->file_size > start ? in->file_size - start : 0;
    if (table->count == 0)
        return 0;
    last = &table->tensors[table->count - 1];
    if (last->end > table->data_length)
        return gguf_refuse(in->reason, "GgufData",
                           "the data of its tensors has %" PRIu64 " bytes, the file %" PRIu64
                           " after the header",
                           last->end, table->data_length);
    return 0;
}

/* Reads the tensor descriptions, which follow the pairs, and makes the table. */
static errint_t
read_gguf_tensors(struct gguf_reader *in, st_admit *admit, void *arg, uint64_t count,
                  const struct gguf_info *info, const struct gguf_pairs *pairs,
                  struct st_table **table)
{
    const uint64_t infos = in->at;
    struct st_counts counts = {.info = sizeof(*info)}, again = {0};
    struct st_builder builder;
    errint_t error = take_gguf_tensors(in, info->alignment, count, &counts, NULL);

    if (!error)
        error = st_admit_bytes(admit, arg, counts.tensors * GGUF_TENSOR_BYTES, in->reason);
    if (error)
        return error;
    gguf_pairs_count(pairs, &counts);
    if (!st_builder_init(&builder, &counts))
        return reason_no_memory(in->reason);
    memcpy(builder.info, info, sizeof(*info));
    builder.table->gguf = builder.info;
    gguf_pairs_add(pairs, &builder);
    in->at = infos;
    error = take_gguf_tensors(in, info->alignment, count, &again, &builder);
    if (!error)
        error = set_gguf_data(in, &builder, info->alignment);
    if (!error)
        error = st_builder_check_names(&builder, in->reason);
    if (error)
        st_table_free(builder.table);
    else
        *table = builder.table;
    return error;
}

static errint_t
read_gguf(struct gguf_reader *in, st_admit *admit, void *arg, struct st_table **table)
{
    const unsigned char *head = NULL;
    struct gguf_info info = {0};
    struct gguf_pairs pairs;
    uint64_t count, pair_count;
    errint_t error = gguf_take(in, GGUF_HEAD_BYTES, &head);

    if (error)
        return error;
    if (!gguf_has_magic(head))
        return gguf_refuse(in->reason, "GgufMagic", "the file does not begin with \"GGUF\"");
    info.version = bytes_u32(head + 4);
    if (info.version != 2 && info.version != 3)
        return gguf_refuse(in->reason, "GgufVersion",
                           "its version is %" PRIu32 ", expected 2 or 3%s", info.version,
                           (info.version & 0xffff) ? "" : "; the file is big-endian");
    count = bytes_u64(head + 8);
    pair_count = bytes_u64(head + 16);
    if (count > (in->file_size - GGUF_HEAD_BYTES) / TENSOR_LEAST_BYTES)
        return gguf_refuse(in->reason, "GgufTensors",
                           "the header declares %" PRIu64 " tensors, in a file of %" PRIu64
                           " bytes",
                           count, in->file_size);
    if (pair_count > GGUF_MAX_PAIRS)
        return gguf_refuse(in->reason, "GgufPairs",
                           "the header declares %" PRIu64 " key-value pairs, at most %u are read",
                           pair_count, GGUF_MAX_PAIRS);
    error = st_admit_bytes(admit, arg, pair_count * GGUF_PAIR_BYTES, in->reason);
    if (error)
        return error;
    error = gguf_pairs_read(in, pair_count, &info, &pairs);
    if (!error)
        error = read_gguf_tensors(in, admit, arg, count, &info, &pairs, table);
    gguf_pairs_free(&pairs);
    return error;
}

bool
gguf_has_magic(const void *first)
{
    return memcmp(first, "GGUF", 4) == 0;
}

errint_t
gguf_read(int fd, uint64_t file_size, st_admit *admit, void *arg, struct st_table **table,
          struct reason *reason)
{
    struct gguf_reader *in;
    errint_t error = st_admit_bytes(admit, arg, GGUF_LEAST, reason);

    if (error)
        return error;
    in = gguf_reader_new(fd, file_size, reason);
    if (!in)
        return reason_no_memory(reason);
    error = read_gguf(in, admit, arg, table);
    gguf_reader_free(in);
    return error;
}

uint32_t
gguf_type_number(const struct st_table *table, const struct st_tensor *tensor)
{
    size_t length;
    const char *name = st_dtype_text(table, tensor, &length);

    for (uint32_t i = 0; i < GGML_TYPES; i++)
        if (ggml_types[i].name && text_is(name, length, ggml_types[i].name))
            return i;
    return UINT32_MAX;
}

uint64_t
gguf_row_bytes(const struct st_table *table, const struct st_tensor *tensor)
{
    const struct ggml_type *type = &ggml_types[gguf_type_number(table, tensor)];

    return tensor->rank
               ? table->dims[tensor->shape + tensor->rank - 1] / type->elements * type->bytes
               : type->bytes;
}
