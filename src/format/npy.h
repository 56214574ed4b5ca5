/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of .npy files (NumPy's format, numpy/lib/format.py).
 */
#ifndef FSTFS_FORMAT_NPY_H
#define FSTFS_FORMAT_NPY_H

#include "base/buffer.h"
#include "base/error.h"
#include "format/dtype.h"

#include <stdint.h>

/*
 * Appends the header numpy.save would write for a C-ordered array of this dtype
 * and shape: magic, version 1.0 (2.0 when the header does not fit 65,535 bytes),
 * the dictionary, padding to a multiple of 64. Sub-byte dtypes come as a
 * one-dimensional "|u1" of `bytes` elements, their packed bytes. -EINVAL for
 * DTYPE_UNKNOWN, -ENOMEM.
 */
errint_t npy_header(struct buffer *out, enum dtype dtype, const uint64_t *dims, uint32_t rank,
                    uint64_t bytes);

enum { NPY_RANK_MOST = 64 }; /* NumPy's own limit */

/* What the header of a .npy file says. */
struct npy {
    enum dtype dtype;
    uint32_t rank;
    uint64_t dims[NPY_RANK_MOST];
    uint64_t data_start; /* bytes before the data */
};

/*
 * Reads the header of the open .npy file of `size` bytes. -EBADMSG and the reason:
 * it is none, or has what no tensor of safetensors can be: Fortran order of more than
 * one dimension, big-endian values, a type that safetensors has not. "V2" is taken for
 * bfloat16, as ml_dtypes saves it; which float8 a "V1" was nobody can say. Whether
 * the data has the size is not looked at. Also -errno of the read.
 */
errint_t npy_read(int fd, uint64_t size, struct npy *npy, struct reason *reason);

#endif
