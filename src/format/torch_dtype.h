/* SPDX-License-Identifier: Apache-2.0 */
/* The storage classes and dtypes that the pickles of torch.save() name. See torch.h. */
#ifndef FSTFS_FORMAT_TORCH_DTYPE_H
#define FSTFS_FORMAT_TORCH_DTYPE_H

#include "format/dtype.h"
#include "format/pickle.h"

#include <stdbool.h>

enum { TORCH_UNTYPED = DTYPE_UNKNOWN + 1 }; /* the dtype of an UntypedStorage */

/* An element of a storage. */
struct torch_element {
    unsigned dtype; /* enum dtype; DTYPE_UNKNOWN: safetensors has none; or TORCH_UNTYPED */
    unsigned bytes;
};

/* Whether a global is a storage class of torch, and of which elements. */
bool torch_storage_class(const struct pickle *pickle, pickle_value global,
                         struct torch_element *element);

/* Whether a global is a dtype of torch that safetensors has, and which. */
bool torch_dtype(const struct pickle *pickle, pickle_value global, enum dtype *dtype);

#endif
