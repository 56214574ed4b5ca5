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
    unsigned dtype; /* enum dtype; DTYPE_UNKNOWN: safetensors does not have it; or TORCH_UNTYPED */
    unsigned bytes;
};

/* Returns whether a global is a storage class of torch, and sets *element. */
bool torch_storage_class(const struct pickle *pickle, pickle_value global,
                         struct torch_element *element);

/* Returns whether a global is a dtype of torch that safetensors also has, and sets *dtype. */
bool torch_dtype(const struct pickle *pickle, pickle_value global, enum dtype *dtype);

#endif
