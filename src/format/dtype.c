/* SPDX-License-Identifier: Apache-2.0 */
/* See dtype.h. */
#include "format/dtype.h"

#include "base/text.h"

/*
 * numpy.save writes "<V2" for ml_dtypes' bfloat16 and "<V1" for its float8 types, which numpy.load
 * returns as |V2 and |V1. The exception is float8_e5m2: numpy.save writes "<f1", which numpy.load
 * refuses, so it is "<V1" here, like the other float8 types.
 */
static const struct {
    const char *name;
    const char *npy_descr;
    unsigned bits;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_BOOL] = {"BOOL", "|b1", 8},
    [DTYPE_F4] = {"F4", NULL, 4},
    [DTYPE_F6_E2M3] = {"F6_E2M3", NULL, 6},
    [DTYPE_F6_E3M2] = {"F6_E3M2", NULL, 6},
    [DTYPE_U8] = {"U8", "|u1", 8},
    [DTYPE_I8] = {"I8", "|i1", 8},
    [DTYPE_F8_E5M2] = {"F8_E5M2", "<V1", 8},
    [DTYPE_F8_E4M3] = {"F8_E4M3", "<V1", 8},
    [DTYPE_F8_E8M0] = {"F8_E8M0", "<V1", 8},
    [DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", "<V1", 8},
    [DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", "<V1", 8},
    [DTYPE_I16] = {"I16", "<i2", 16},
    [DTYPE_U16] = {"U16", "<u2", 16},
    [DTYPE_F16] = {"F16", "<f2", 16},
    [DTYPE_BF16] = {"BF16", "<V2", 16},
    [DTYPE_I32] = {"I32", "<i4", 32},
    [DTYPE_U32] = {"U32", "<u4", 32},
    [DTYPE_F32] = {"F32", "<f4", 32},
    [DTYPE_C64] = {"C64", "<c8", 64},
    [DTYPE_F64] = {"F64", "<f8", 64},
    [DTYPE_I64] = {"I64", "<i8", 64},
    [DTYPE_U64] = {"U64", "<u8", 64},
};

enum dtype
dtype_from_name(const char *name, size_t length)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (text_is(name, length, dtypes[i].name))
            return (enum dtype)i;
    }
    return DTYPE_UNKNOWN;
}

const char *
dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

unsigned
dtype_bits(enum dtype dtype)
{
    return dtypes[dtype].bits;
}

const char *
dtype_npy_descr(enum dtype dtype)
{
    return dtype == DTYPE_UNKNOWN ? NULL : dtypes[dtype].npy_descr;
}
