/* SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <string.h>

/* The bits of a number. A value with all bits of `exponent` set is special. With has_inf, it is
 * infinite if its bits of `mantissa` are 0, else NaN. Without, it is NaN if they are 0, else a
 * number. A C64 is two F32. */
struct number_format {
    uint64_t exponent, mantissa;
    unsigned size; /* bytes; 0: not a floating-point type */
    bool has_inf;
};

static const struct number_format number_formats[DTYPE_COUNT] = {
    [DTYPE_F8_E5M2] = {0x7c, 0x03, 1, true},
    [DTYPE_F8_E4M3] = {0x7f, 0, 1, false},
    [DTYPE_F8_E8M0] = {0xff, 0, 1, false},
    [DTYPE_F8_E4M3FNUZ] = {0x80, 0x7f, 1, false}, /* only -0 is NaN, as in the next */
    [DTYPE_F8_E5M2FNUZ] = {0x80, 0x7f, 1, false},
    [DTYPE_F16] = {0x7c00, 0x03ff, 2, true},
    [DTYPE_BF16] = {0x7f80, 0x007f, 2, true},
    [DTYPE_F32] = {0x7f800000, 0x007fffff, 4, true},
    [DTYPE_C64] = {0x7f800000, 0x007fffff, 4, true},
    [DTYPE_F64] = {0x7ff0000000000000, 0x000fffffffffffff, 8, true},
};

bool
values_has(enum dtype dtype)
{
    return dtype < DTYPE_COUNT && number_formats[dtype].size > 0;
}

/* Loops that compilers vectorize. */
#define DEFINE_COUNT(type)                                                                         \
    static void count_##type(struct values *values, const unsigned char *bytes, size_t count,      \
                             const struct number_format *format)                                   \
    {                                                                                              \
        const type exponent = (type)format->exponent, mantissa = (type)format->mantissa;           \
        size_t all = 0, inf = 0;                                                                   \
                                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
                                                                                                   \
            memcpy(&value, bytes + i * sizeof(value), sizeof(value));                              \
            all += (value & exponent) == exponent;                                                 \
            inf += (value & (type)(exponent | mantissa)) == exponent;                              \
        }                                                                                          \
        values->nan += format->has_inf ? all - inf : inf;                                          \
        values->inf += format->has_inf ? inf : 0;                                                  \
    }

DEFINE_COUNT(uint8_t)
DEFINE_COUNT(uint16_t)
DEFINE_COUNT(uint32_t)
DEFINE_COUNT(uint64_t)

static void
count_elements(struct values *values, const unsigned char *bytes, size_t count)
{
    const struct number_format *format = &number_formats[values->dtype];

    if (format->size == 1)
        count_uint8_t(values, bytes, count, format);
    else if (format->size == 2)
        count_uint16_t(values, bytes, count, format);
    else if (format->size == 4)
        count_uint32_t(values, bytes, count, format);
    else
        count_uint64_t(values, bytes, count, format);
}

void
values_add(struct values *values, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    const unsigned size = number_formats[values->dtype].size;

    if (values->rest_length > 0) {
        size_t take = size - values->rest_length;

        take = take < length ? take : length;
        memcpy(values->rest + values->rest_length, at, take);
        values->rest_length += (unsigned)take;
        at += take;
        length -= take;
        if (values->rest_length < size)
            return;
        count_elements(values, values->rest, 1);
        values->rest_length = 0;
    }
    count_elements(values, at, length / size);
    values->rest_length = (unsigned)(length % size);
    memcpy(values->rest, at + length - values->rest_length, values->rest_length);
}
