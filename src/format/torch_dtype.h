/* SPDX-License-Identifier: Apache-2.0 */
/* Recognizes the storage classes and dtypes in pickles of torch.save(). See torch.h. */
#ifndef FSTFS_FORMAT_TORCH_DTYPE_H
#define FSTFS_FORMAT_TORCH_DTYPE_H

#include "format/dtype.h"
#include "format/pickle.h"

#include <stdbool.h>

enum { TORCH_UNTYPED = DTYPE_UNKNOWN + 1 }; /* the dtype of an UntypedStorage */

/* An element of a storage. */
struct torch_element {
    unsigned dtype; /* enum dtype; DTYPE_UNKNOWN: not in safetensors; or TORCH_UNTYPED */
    unsigned bytes;
};

/* Whether a global is a storage class of torch; sets its elements. */
bool torch_storage_class(const struct pickle *pickle, pickle_value global,
                         struct torch_element *element);

/* Whether a global is a dtype of torch that safetensors has too; sets it. */
bool torch_dtype(const struct pickle *pickle, pickle_value global, enum dtype *dtype);

#endif
