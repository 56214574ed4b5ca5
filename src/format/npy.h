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
 * Appends the header that numpy.save writes for a C-ordered array of this dtype and shape: magic,
 * version 1.0 (2.0 if the header does not fit into 65,535 bytes), the dictionary, and padding to a
 * multiple of 64 bytes. A tensor of a sub-byte dtype becomes a one-dimensional "|u1" array of its
 * `bytes` packed bytes. -EINVAL: DTYPE_UNKNOWN; -ENOMEM.
 */
errint_t npy_header(struct buffer *out, enum dtype dtype, const uint64_t *dims, uint32_t rank,
                    uint64_t bytes);

/* The same for a tensor of packed rows, of `row_bytes` bytes each: an array of "|u1" whose last
 * dimension is `row_bytes`. -EINVAL: a rank of 0 or over NPY_RANK_MOST; -ENOMEM. */
errint_t npy_packed_header(struct buffer *out, const uint64_t *dims, uint32_t rank,
                           uint64_t row_bytes);

enum { NPY_RANK_MOST = 64 }; /* NumPy's own limit */

/* A header of a .npy file. */
struct npy {
    enum dtype dtype;
    uint32_t rank;
    uint64_t dims[NPY_RANK_MOST];
    uint64_t data_start; /* offset of the data in the file */
};

/*
 * Reads the header of an open .npy file of `size` bytes. -EBADMSG with a reason: it is not a .npy
 * file, or no safetensors tensor can represent the array (Fortran order of more than one dimension,
 * big-endian values, a type that safetensors does not have). "V2" is read as bfloat16, as ml_dtypes
 * saves it; "V1" is refused, since it may be any float8. The size of the data is not checked. Also
 * -ESTALE (the file became shorter), -ENOMEM, errors of pread(2).
 */
errint_t npy_read(int fd, uint64_t size, struct npy *npy, struct reason *reason);

#endif
