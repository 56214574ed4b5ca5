/* SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <string.h>

/*
 * The bits of one number: a value with all of `exponent` set is infinite where
 * its mantissa is 0, and else not a number. A complex number is two of F32.
 */
struct kind {
    uint64_t exponent, mantissa;
    unsigned size; /* bytes; 0: nothing of the kind */
    bool has_inf; /* else only what is all ones is NaN */
};

static const struct kind kinds[DTYPE_COUNT] = {
    [DTYPE_F8_E5M2] = {0x7c, 0x03, 1, true},
    [DTYPE_F8_E4M3] = {0x7f, 0, 1, false},
    [DTYPE_F8_E8M0] = {0xff, 0, 1, false},
    [DTYPE_F8_E4M3FNUZ] = {0, 0, 1, false}, /* NaN is what would be -0, as in the next */
    [DTYPE_F8_E5M2FNUZ] = {0, 0, 1, false},
    [DTYPE_F16] = {0x7c00, 0x03ff, 2, true},
    [DTYPE_BF16] = {0x7f80, 0x007f, 2, true},
    [DTYPE_F32] = {0x7f800000, 0x007fffff, 4, true},
    [DTYPE_C64] = {0x7f800000, 0x007fffff, 4, true},
    [DTYPE_F64] = {0x7ff0000000000000, 0x000fffffffffffff, 8, true},
};

bool
values_has(enum dtype dtype)
{
    return dtype < DTYPE_COUNT && kinds[dtype].size > 0;
}

/* Each a loop that compilers make into vector code. */
#define COUNT(type)                                                                                \
    static void count_##type(struct values *values, const unsigned char *bytes, size_t count,      \
                             const struct kind *kind)                                              \
    {                                                                                              \
        const type exponent = (type)kind->exponent, mantissa = (type)kind->mantissa;               \
        size_t all = 0, inf = 0;                                                                   \
                                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
                                                                                                   \
            memcpy(&value, bytes + i * sizeof(value), sizeof(value));                              \
            all += (value & exponent) == exponent;                                                 \
            inf += (value & (type)(exponent | mantissa)) == exponent;                              \
        }                                                                                          \
        values->nan += all - (kind->has_inf ? inf : 0);                                            \
        values->inf += kind->has_inf ? inf : 0;                                                    \
    }

COUNT(uint8_t)
COUNT(uint16_t)
COUNT(uint32_t)
COUNT(uint64_t)

static void
count_negative_zero(struct values *values, const unsigned char *bytes, size_t count)
{
    size_t nan = 0;

    for (size_t i = 0; i < count; i++)
        nan += bytes[i] == 0x80;
    values->nan += nan;
}

static void
count_whole(struct values *values, const unsigned char *bytes, size_t count)
{
    const struct kind *kind = &kinds[values->dtype];

    if (kind->exponent == 0)
        count_negative_zero(values, bytes, count);
    else if (kind->size == 1)
        count_uint8_t(values, bytes, count, kind);
    else if (kind->size == 2)
        count_uint16_t(values, bytes, count, kind);
    else if (kind->size == 4)
        count_uint32_t(values, bytes, count, kind);
    else
        count_uint64_t(values, bytes, count, kind);
}

void
values_add(struct values *values, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    const unsigned size = kinds[values->dtype].size;

    if (values->rest_length > 0) {
        size_t take = size - values->rest_length;

        take = take < length ? take : length;
        memcpy(values->rest + values->rest_length, at, take);
        values->rest_length += (unsigned)take;
        at += take;
        length -= take;
        if (values->rest_length < size)
            return;
        count_whole(values, values->rest, 1);
        values->rest_length = 0;
    }
    count_whole(values, at, length / size);
    values->rest_length = (unsigned)(length % size);
    memcpy(values->rest, at + length - values->rest_length, values->rest_length);
}
