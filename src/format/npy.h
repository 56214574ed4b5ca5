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

#endif
