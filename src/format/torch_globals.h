/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognizes the globals in pickles of torch.save(): storage classes, dtypes, and the functions of
 * torch._utils and torch._tensor that create tensors. No state, no threads. See torch.h.
 */
#ifndef FSTFS_FORMAT_TORCH_GLOBALS_H
#define FSTFS_FORMAT_TORCH_GLOBALS_H

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

/* Whether a PICKLE_CALL calls torch._utils.FUNCTION. */
bool torch_calls(const struct pickle *pickle, const struct pickle_node *call, const char *function);

/* If the call creates a tensor of a kind that is never shown, returns why it is not, else NULL. */
const char *torch_refusal_of(const struct pickle *pickle, const struct pickle_node *call);

/* Whether the function creates a tensor of contiguous or strided elements, of a plain class. Sets
 * *has_dtype to whether its arguments include a dtype. */
bool torch_makes_tensor(const struct pickle *pickle, pickle_value function, bool *has_dtype);

/* Whether a PICKLE_CALL makes another call, (FUNCTION, CLASS, ARGUMENTS, STATE), and converts its
 * result to the class. */
bool torch_is_call_from_type(const struct pickle *pickle, const struct pickle_node *call);

/* Whether the global is torch.Tensor, or one of its subclasses that torch.save() stores like it:
 * Parameter and Buffer. */
bool torch_is_plain_class(const struct pickle *pickle, pickle_value global);

#endif
