/* SPDX-License-Identifier: Apache-2.0 */
/* See npy.h; the layout is that of numpy/lib/format.py, `_write_array_header`. */
#include "format/npy.h"

#include <errno.h>
#include <string.h>

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
