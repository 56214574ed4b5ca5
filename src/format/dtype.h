/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The element types of safetensors, in the order of its own enum
 * (safetensors/src/tensor.rs, `enum Dtype`): increasing alignment.
 */
#ifndef FSTFS_FORMAT_DTYPE_H
#define FSTFS_FORMAT_DTYPE_H

#include <stddef.h>

enum dtype {
    DTYPE_BOOL,
    DTYPE_F4,
    DTYPE_F6_E2M3,
    DTYPE_F6_E3M2,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_F8_E5M2,
    DTYPE_F8_E4M3,
    DTYPE_F8_E8M0,
    DTYPE_F8_E4M3FNUZ,
    DTYPE_F8_E5M2FNUZ,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_F32,
    DTYPE_C64,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_COUNT,
    DTYPE_UNKNOWN = DTYPE_COUNT, /* a name that this version does not know */
};

/* DTYPE_UNKNOWN if `name` is not a dtype of this list. Case matters, as in the format. */
enum dtype dtype_from_name(const char *name, size_t length);
const char *dtype_name(enum dtype dtype); /* of a known dtype */
unsigned dtype_bits(enum dtype dtype); /* per element; of a known dtype */

/*
 * The `descr` of a .npy file of this dtype: that of NumPy if NumPy has the dtype, else "<V2" for
 * bfloat16 and "<V1" for the float8 family, as numpy.save writes them for arrays of ml_dtypes,
 * except for float8_e5m2 (see dtype.c). NULL: a sub-byte dtype, or DTYPE_UNKNOWN. A static string.
 */
const char *dtype_npy_descr(enum dtype dtype);

#endif
