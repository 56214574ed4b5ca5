/* SPDX-License-Identifier: Apache-2.0 */
/* See npy.h; the layout is that of numpy/lib/format.py, `_write_array_header`. */
#include "format/npy.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NPY_ALIGN 64u
#define NPY_GROWTH_DIGITS 21u /* NumPy leaves room for a first dimension that grows */

static unsigned
digits_of(uint64_t value)
{
    unsigned digits = 1;

    while (value >= 10) {
        value /= 10;
        digits++;
    }
    return digits;
}

/* The dictionary as Python's repr() writes it, and NumPy's room to grow. */
static void
add_dictionary(struct buffer *out, const char *descr, const uint64_t *dims, uint32_t rank)
{
    buffer_addf(out, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (uint32_t i = 0; i < rank; i++) {
        if (i)
            buffer_add_text(out, ", ");
        buffer_add_u64(out, dims[i]);
    }
    buffer_add_text(out, rank == 1 ? ",), }" : "), }");
    if (rank)
        buffer_add_repeat(out, ' ', NPY_GROWTH_DIGITS - digits_of(dims[0]));
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

    /* Padding and line break count into the length, and NumPy always pads: a
     * header that would fit exactly gets 64 spaces. */
    size_t length = dictionary.length + 1, prefix = 8 + 2;
    size_t padding = NPY_ALIGN - (prefix + length) % NPY_ALIGN;
    bool wide = length + padding > UINT16_MAX;
    if (wide) {
        prefix = 8 + 4;
        padding = NPY_ALIGN - (prefix + length) % NPY_ALIGN;
    }
    if (length + padding > UINT32_MAX)
        dictionary.failed = true; /* over 200 million dimensions: not to be had */

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

/* ---- reading ---- */

/* Longer ones NumPy reads only when told that they are to be trusted. */
#define HEADER_MOST ((size_t)1 << 20)

/* A place in the text of the dictionary, which is terminated. */
struct text {
    const char *at;
};

static errint_t
refuse(struct reason *reason, const char *why)
{
    return reason_set(reason, -EBADMSG, "InvalidNpy", "%s", why);
}

static void
skip_spaces(struct text *in)
{
    while (isspace((unsigned char)*in->at))
        in->at++;
}

/* Takes `word` and the spaces before it, if it is next. */
static bool
take(struct text *in, const char *word)
{
    size_t length = strlen(word);

    skip_spaces(in);
    if (strncmp(in->at, word, length) != 0)
        return false;
    in->at += length;
    return true;
}

/* A string in quotes of either kind, of less than 32 bytes. */
static bool
take_string(struct text *in, char text[32])
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
take_number(struct text *in, uint64_t *number)
{
    skip_spaces(in);
    if (!isdigit((unsigned char)*in->at))
        return false;
    for (*number = 0; isdigit((unsigned char)*in->at); in->at++)
        if (__builtin_mul_overflow(*number, 10, number) ||
            __builtin_add_overflow(*number, (uint64_t)(*in->at - '0'), number))
            return false;
    take(in, "L"); /* as Python 2 wrote them */
    return true;
}

static bool
take_shape(struct text *in, struct npy *npy)
{
    npy->rank = 0;
    if (!take(in, "("))
        return false;
    while (!take(in, ")")) {
        if (npy->rank == NPY_RANK_MOST || !take_number(in, &npy->dims[npy->rank++]))
            return false;
        if (!take(in, ",") && (skip_spaces(in), *in->at != ')'))
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
parse_dictionary(struct text in, struct npy *npy, struct reason *reason)
{
    char key[32], descr[32] = "", shown[QUOTED_SIZE];
    bool fortran = false, has_shape = false, right = take(&in, "{");

    while (right && !take(&in, "}")) {
        right = take_string(&in, key) && take(&in, ":");
        if (right && strcmp(key, "descr") == 0)
            right = take_string(&in, descr);
        else if (right && strcmp(key, "fortran_order") == 0)
            right = (fortran = take(&in, "True")) || take(&in, "False");
        else if (right && strcmp(key, "shape") == 0)
            right = has_shape = take_shape(&in, npy);
        else
            right = false;
        take(&in, ",");
    }
    if (!right || !*descr || !has_shape)
        return refuse(reason, "its header is not that of one array of numbers");
    if (fortran && npy->rank > 1)
        return refuse(reason, "it is in Fortran order, which safetensors cannot say");
    npy->dtype = dtype_from_descr(descr);
    if (npy->dtype == DTYPE_UNKNOWN)
        return reason_set(reason, -EBADMSG, "InvalidNpy",
                          "values of type %s are none of safetensors",
                          quoted(shown, descr, strlen(descr)));
    return 0;
}

static errint_t
read_some(int fd, char *to, size_t length, off_t offset, struct reason *reason)
{
    while (length > 0) {
        ssize_t got = pread(fd, to, length, offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return reason_set(reason, -errno, "IoError", "%s", strerror(errno));
        if (got == 0)
            return refuse(reason, "it ends inside its header");
        to += got;
        offset += got;
        length -= (size_t)got;
    }
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
        return refuse(reason, "it is too short for a .npy file");
    error = read_some(fd, (char *)prefix, sizeof(prefix), 0, reason);
    if (error)
        return error;
    if (memcmp(prefix, "\x93NUMPY", 6) != 0 || prefix[6] < 1 || prefix[6] > 3)
        return refuse(reason, "it does not begin as a .npy file of version 1 to 3 does");
    width = prefix[6] == 1 ? 2 : 4;
    for (size_t i = width; i-- > 0;)
        length = length << 8 | prefix[8 + i];
    if (length > HEADER_MOST)
        return refuse(reason, "its header is too long");
    npy->data_start = 8 + width + length;
    if (npy->data_start > size)
        return refuse(reason, "it ends inside its header");
    text = calloc(length + 1, 1);
    if (!text)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    error = read_some(fd, text, length, (off_t)(8 + width), reason);
    if (!error)
        error = parse_dictionary((struct text){text}, npy, reason);
    free(text);
    return error;
}
