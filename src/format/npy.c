/* SPDX-License-Identifier: Apache-2.0 */
/* See npy.h. The format is that of `_write_array_header` in numpy/lib/format.py. */
#include "format/npy.h"

#include "format/bytes.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NPY_ALIGN 64u
#define NPY_GROWTH_DIGITS 21u /* NumPy reserves room for the first dimension to grow */

/* Writes the dictionary as Python's repr() does, and the spaces that NumPy reserves for growth. */
static void
add_dictionary(struct buffer *out, const char *descr, const uint64_t *dims, uint32_t rank)
{
    size_t start; /* offset of the shape in `out` */
    size_t first = 0; /* digits of the first dimension */

    buffer_addf(out, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    start = out->length;
    for (uint32_t i = 0; i < rank; i++) {
        if (i)
            buffer_add_text(out, ", ");
        buffer_add_u64(out, dims[i]);
        if (!i)
            first = out->length - start;
    }
    buffer_add_text(out, rank == 1 ? ",), }" : "), }");
    if (rank)
        buffer_add_repeat(out, ' ', NPY_GROWTH_DIGITS - first);
}

/* Adds the header with this dictionary, and frees the dictionary. */
static errint_t
add_npy_header(struct buffer *out, struct buffer dictionary)
{
    /* The length includes padding and line break. NumPy always pads: a header that fits exactly
     * gets 64 spaces. */
    size_t length = dictionary.length + 1, prefix = 8 + 2;
    size_t padding = NPY_ALIGN - (prefix + length) % NPY_ALIGN;
    bool wide = length + padding > UINT16_MAX;
    if (wide) {
        prefix = 8 + 4;
        padding = NPY_ALIGN - (prefix + length) % NPY_ALIGN;
    }
    if (length + padding > UINT32_MAX)
        dictionary.failed = true; /* over 200 million dimensions */

    buffer_add(out, wide ? "\x93NUMPY\x02\x00" : "\x93NUMPY\x01\x00", 8);
    for (unsigned i = 0; i < prefix - 8; i++)
        buffer_add_char(out, (char)((length + padding) >> 8 * i));
    buffer_add(out, dictionary.data, dictionary.length);
    buffer_add_repeat(out, ' ', padding);
    buffer_add_char(out, '\n');

    bool failed = dictionary.failed || buffer_failed(out);
    buffer_free(&dictionary);
    return failed ? -ENOMEM : 0;
}

errint_t
npy_header(struct buffer *out, enum dtype dtype, const uint64_t *dims, uint32_t rank,
           uint64_t bytes)
{
    struct buffer dictionary = BUFFER_INIT;
    const char *descr = dtype_npy_descr(dtype);

    if (dtype == DTYPE_UNKNOWN)
        return -EINVAL;
    if (descr)
        add_dictionary(&dictionary, descr, dims, rank);
    else
        add_dictionary(&dictionary, "|u1", &bytes, 1);
    return add_npy_header(out, dictionary);
}

errint_t
npy_packed_header(struct buffer *out, const uint64_t *dims, uint32_t rank, uint64_t row_bytes)
{
    struct buffer dictionary = BUFFER_INIT;
    uint64_t packed[NPY_RANK_MOST];

    if (rank == 0 || rank > NPY_RANK_MOST)
        return -EINVAL;
    memcpy(packed, dims, (rank - 1) * sizeof(*dims));
    packed[rank - 1] = row_bytes;
    add_dictionary(&dictionary, "|u1", packed, rank);
    return add_npy_header(out, dictionary);
}

/* ---- reading ---- */

/* NumPy's own limit, max_header_size, is 10,000 bytes unless the caller raises it. */
#define HEADER_MOST ((size_t)1 << 20)

/* A position in the text of the dictionary, which ends with NUL. */
struct npy_text {
    const char *at;
};

#define refuse_npy(reason, ...) reason_set(reason, -EBADMSG, "InvalidNpy", __VA_ARGS__)

static void
skip_spaces(struct npy_text *in)
{
    while (isspace((unsigned char)*in->at))
        in->at++;
}

/* Skips spaces, then takes `word` if it is next. */
static bool
npy_take(struct npy_text *in, const char *word)
{
    size_t length = strlen(word);

    skip_spaces(in);
    if (strncmp(in->at, word, length) != 0)
        return false;
    in->at += length;
    return true;
}

/* A string in single or double quotes, of less than 32 bytes. */
static bool
take_string(struct npy_text *in, char text[32])
{
    size_t length;
    char quote;

    skip_spaces(in);
    quote = *in->at;
    if (quote != '\'' && quote != '"')
        return false;
    in->at++;
    length = strcspn(in->at, quote == '"' ? "\"" : "'");
    if (length >= 32 || in->at[length] != quote)
        return false;
    memcpy(text, in->at, length);
    text[length] = '\0';
    in->at += length + 1;
    return true;
}

static bool
take_number(struct npy_text *in, uint64_t *number)
{
    skip_spaces(in);
    if (!isdigit((unsigned char)*in->at))
        return false;
    for (*number = 0; isdigit((unsigned char)*in->at); in->at++)
        if (__builtin_mul_overflow(*number, 10, number) ||
            __builtin_add_overflow(*number, (uint64_t)(*in->at - '0'), number))
            return false;
    npy_take(in, "L"); /* as Python 2 wrote it */
    return true;
}

static bool
take_shape(struct npy_text *in, struct npy *npy)
{
    npy->rank = 0;
    if (!npy_take(in, "("))
        return false;
    while (!npy_take(in, ")")) {
        if (npy->rank == NPY_RANK_MOST || !take_number(in, &npy->dims[npy->rank++]))
            return false;
        if (!npy_take(in, ",") && (skip_spaces(in), *in->at != ')'))
            return false;
    }
    return true;
}

static enum dtype
dtype_from_descr(const char *descr)
{
    if (strcmp(descr, "|V2") == 0)
        return DTYPE_BF16;
    if (strcmp(descr + (*descr != '\0'), "V1") == 0)
        return DTYPE_UNKNOWN;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const char *ours = dtype_npy_descr((enum dtype)i);

        if (ours && strcmp(ours, descr) == 0)
            return (enum dtype)i;
    }
    return DTYPE_UNKNOWN;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } */
static errint_t
parse_dictionary(struct npy_text in, struct npy *npy, struct reason *reason)
{
    char key[32], descr[32] = "", shown[QUOTED_SIZE];
    bool fortran = false, has_shape = false, right = npy_take(&in, "{");

    while (right && !npy_take(&in, "}")) {
        right = take_string(&in, key) && npy_take(&in, ":");
        if (right && strcmp(key, "descr") == 0)
            right = take_string(&in, descr);
        else if (right && strcmp(key, "fortran_order") == 0)
            right = (fortran = npy_take(&in, "True")) || npy_take(&in, "False");
        else if (right && strcmp(key, "shape") == 0)
            right = has_shape = take_shape(&in, npy);
        else
            right = false;
        npy_take(&in, ",");
    }
    if (!right || !*descr || !has_shape)
        return refuse_npy(reason, "its header is not that of an array of numbers");
    if (fortran && npy->rank > 1)
        return refuse_npy(reason, "it is in Fortran order, which safetensors cannot express");
    npy->dtype = dtype_from_descr(descr);
    if (npy->dtype == DTYPE_UNKNOWN)
        return refuse_npy(reason, "safetensors has no values of type %s",
                          quoted(shown, descr, strlen(descr)));
    return 0;
}

errint_t
npy_read(int fd, uint64_t size, struct npy *npy, struct reason *reason)
{
    unsigned char prefix[12];
    size_t width, length = 0;
    char *text;
    errint_t error;

    if (size < sizeof(prefix))
        return refuse_npy(reason, "it is too short for a .npy file");
    error = bytes_read_at(fd, prefix, sizeof(prefix), 0, reason);
    if (error)
        return error;
    if (memcmp(prefix, "\x93NUMPY", 6) != 0 || prefix[6] < 1 || prefix[6] > 3)
        return refuse_npy(reason, "it does not begin like a .npy file of version 1 to 3");
    width = prefix[6] == 1 ? 2 : 4;
    for (size_t i = width; i-- > 0;)
        length = length << 8 | prefix[8 + i];
    if (length > HEADER_MOST)
        return refuse_npy(reason, "its header is too long");
    npy->data_start = 8 + width + length;
    if (npy->data_start > size)
        return refuse_npy(reason, "it ends inside its header");
    text = calloc(length + 1, 1);
    if (!text)
        return reason_no_memory(reason);
    error = bytes_read_at(fd, text, length, 8 + width, reason);
    if (!error)
        error = parse_dictionary((struct npy_text){text}, npy, reason);
    free(text);
    return error;
}
