/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_header_length() and st_table_parse(), and that a header written by st_header_*() is read as
 * the same table.
 *
 * Input: 8 bytes with the length of the data after the header, and the header's JSON.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return 0;
}

static void
expect_same(const struct st_table *a, const struct st_table *b)
{
    EXPECT(a->count == b->count && a->metadata_count == b->metadata_count);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct st_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        size_t x_length, y_length;
        const char *x_dtype = st_dtype_text(a, x, &x_length);
        const char *y_dtype = st_dtype_text(b, y, &y_length);

        EXPECT(x->begin == y->begin && x->end == y->end && x->rank == y->rank);
        EXPECT(!fuzz_compare(a->text + x->name, x->name_length, b->text + y->name, y->name_length));
        EXPECT(!fuzz_compare(x_dtype, x_length, y_dtype, y_length));
        for (uint32_t d = 0; d < x->rank; d++)
            EXPECT(a->dims[x->shape + d] == b->dims[y->shape + d]);
    }
    for (uint32_t i = 0; i < a->metadata_count; i++) {
        const struct st_metadata *x = &a->metadata[i], *y = &b->metadata[i];

        EXPECT(!fuzz_compare(a->text + x->key, x->key_length, b->text + y->key, y->key_length));
        EXPECT(!fuzz_compare(a->text + x->value, x->value_length, b->text + y->value,
                             y->value_length));
    }
}

static void
write_anew(const struct st_table *table, struct buffer *out, uint32_t align)
{
    st_header_begin(out);
    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i];

        st_header_metadata(out, table->text + pair->key, pair->key_length,
                           table->text + pair->value, pair->value_length);
    }
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];
        size_t length;
        const char *dtype = st_dtype_text(table, tensor, &length);

        st_header_tensor(out, table->text + tensor->name, tensor->name_length, dtype, length,
                         table->dims + tensor->shape, tensor->rank, tensor->begin, tensor->end);
    }
    EXPECT(st_header_finish(out, align) == 0);
}

static void
round_trip(const struct st_table *table)
{
    static const uint32_t aligns[] = {1, 8, 4096};
    uint32_t align = aligns[table->count % 3];
    struct buffer out = BUFFER_INIT;
    struct st_table *again;
    struct reason reason;
    uint64_t n, file_size;

    write_anew(table, &out, align);
    EXPECT(out.length % align == 0);
    file_size = out.length + table->data_length;
    EXPECT(st_header_length(out.data, file_size, &n, &reason) == 0 && n == out.length - 8);
    EXPECT(st_table_parse(out.data + 8, n, file_size, &again, &reason) == 0);
    expect_same(table, again);
    fuzz_expect_header(out.data + 8, n, table);
    st_table_free(again);
    buffer_free(&out);
}

/* Checks the first bytes as those of files of several sizes. */
static void
check_length(const char *first, size_t size, uint64_t file_size)
{
    struct reason reason = {NULL, ""};
    uint64_t n;

    if (size < 8 && file_size > size)
        file_size = size;
    if (st_header_length(first, file_size, &n, &reason))
        fuzz_expect_reason(&reason);
    else
        EXPECT(n <= ST_MAX_HEADER && n <= file_size - 8);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size};
    /* Limits the size, so that 8 + N + data does not overflow. */
    uint64_t data_length = input_number(&input) & INT64_MAX >> 1;
    struct reason reason = {NULL, ""};
    struct st_table *table = NULL;
    /* A copy of exactly this size, so that ASan detects reads beyond it. */
    char *json = malloc(input.left ? input.left : 1);

    check_length((const char *)data, size, data_length);
    memcpy(json, input.at, input.left);
    if (st_table_parse(json, input.left, 8 + input.left + data_length, &table, &reason)) {
        fuzz_expect_reason(&reason);
    } else {
        fuzz_expect_table(table, data_length);
        EXPECT(table->data_start == 8 + input.left);
        round_trip(table);
        st_table_free(table);
    }
    free(json);
    return 0;
}
