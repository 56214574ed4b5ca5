/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy_header(), read back by this file's own code. tests/fuzz/verdicts.py compares it with NumPy's
 * reader.
 *
 * Input: a byte for the dtype, one for the number of repetitions of the last dimension (in steps of
 * 16), 8 for the size in bytes, 8 for each dimension.
 */
#include "fuzz.h"

#include "format/npy.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DIMS = 8192 };

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return 0;
}

static void
skip(const char **at, const char *text)
{
    EXPECT(strncmp(*at, text, strlen(text)) == 0);
    *at += strlen(text);
}

/* Checks magic, version and length; returns the dictionary. */
static const char *
check_frame(const struct buffer *out)
{
    const unsigned char *bytes = (const unsigned char *)out->data;
    size_t prefix = 10, length;

    EXPECT(out->length > 12 && memcmp(bytes, "\x93NUMPY", 6) == 0 && bytes[7] == 0);
    length = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] == 2) {
        prefix = 12;
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
        EXPECT(length > UINT16_MAX);
    } else {
        EXPECT(bytes[6] == 1);
    }
    EXPECT(prefix + length == out->length && out->length % 64 == 0);
    EXPECT(bytes[out->length - 1] == '\n' && strlen(out->data + prefix) == length);
    return out->data + prefix;
}

static void
check(enum dtype dtype, uint64_t *dims, uint32_t rank, uint64_t bytes)
{
    const char *descr = dtype_npy_descr(dtype), *at;
    struct buffer out = BUFFER_INIT;
    char *end;

    EXPECT(npy_header(&out, dtype, dims, rank, bytes) == 0);
    at = check_frame(&out);
    skip(&at, "{'descr': '");
    skip(&at, descr ? descr : "|u1");
    skip(&at, "', 'fortran_order': False, 'shape': (");
    if (!descr) {
        dims[0] = bytes;
        rank = 1;
    }
    for (uint32_t i = 0; i < rank; i++) {
        if (i)
            skip(&at, ", ");
        EXPECT(*at >= '0' && *at <= '9' && strtoull(at, &end, 10) == dims[i]);
        at = end;
    }
    skip(&at, rank == 1 ? ",), }" : "), }");
    at += strspn(at, " ");
    skip(&at, "\n");
    EXPECT(!*at);
    buffer_free(&out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t dims[MOST_DIMS];
    struct input input = {(const char *)data, size};
    uint8_t dtype = input_byte(&input), repeat = input_byte(&input);
    uint64_t bytes = input_number(&input);
    uint32_t rank = 0;
    struct buffer none = BUFFER_INIT;

    while (input.left && rank < MOST_DIMS / 2)
        dims[rank++] = input_number(&input);
    for (uint32_t i = 0; rank && i < 16u * repeat; i++, rank++)
        dims[rank] = dims[rank - 1];
    check((enum dtype)(dtype % DTYPE_COUNT), dims, rank, bytes);
    EXPECT(npy_header(&none, DTYPE_UNKNOWN, dims, rank, bytes) < 0);
    buffer_free(&none);
    return 0;
}
